"""p of a loss, and the bound on a loss, that allow for what a sample missed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.comparing.statistics import Resampling
from bench.gate.skew import combine_means, largest_loss, loss_p_value, studentise, unseen_allowance

MANY, BOUND = Resampling(9_999, 0), Resampling(4_999, 0)


def p(scores: np.ndarray, resampling: Resampling = MANY) -> float:
    return loss_p_value(studentise(scores, resampling))


def test_of_many_normal_differences_it_is_the_t_test_of_the_loss_without_the_allowance():
    scores = np.random.default_rng(2).normal(-0.004, 0.2, 3_000)
    expected = stats.ttest_1samp(scores + 1 / 3_000, 0).pvalue
    assert p(scores) == pytest.approx(expected, rel=0.3)


def test_small_losses_that_one_unseen_gain_would_balance_are_no_loss():
    scores = np.r_[np.full(20, -0.04), np.zeros(30)]
    assert p(scores) == 1.0
    assert p(10 * scores) < 0.01


@given(st.floats(0, 0.5), st.integers(10, 60))
def test_a_gain_is_never_reported_as_a_loss(gain, count):
    scores = np.r_[np.random.default_rng(count).normal(gain, 0.1, count), np.zeros(40)]
    assert p(np.abs(scores), Resampling(99)) == 1.0


@pytest.mark.parametrize("scores", [np.r_[np.full(9, -1.0), np.zeros(20)], np.full(1, -1.0)])
def test_too_few_queries_show_no_loss(scores):
    assert p(scores) == 1.0


def test_equal_losses_of_all_queries_are_as_sure_as_resamples_allow():
    assert p(np.full(40, -0.5), Resampling(99)) == 0.02


def test_resampled_means_and_errors_are_those_of_drawing_queries_with_replacement():
    scores = np.r_[np.random.default_rng(5).normal(0.1, 0.3, 60), np.zeros(140)]
    found = studentise(scores, MANY)
    drawn = scores[np.random.default_rng(1).integers(200, size=(20_000, 200))]
    for ours, oracle in (
        (found.means, drawn.mean(axis=1)),
        (found.errors, drawn.std(axis=1) / np.sqrt(200)),
    ):
        assert ours.mean() == pytest.approx(oracle.mean(), abs=0.05 * oracle.std())
        assert ours.std() == pytest.approx(oracle.std(), rel=0.05)


def test_a_collection_split_in_two_halves_keeps_its_p():
    scores = np.random.default_rng(7).normal(-0.03, 0.2, 1_000)
    halves = combine_means(
        [studentise(half, MANY) for half in (scores[:500], scores[500:])], [0.5, 0.5]
    )
    assert loss_p_value(halves) == pytest.approx(p(scores), abs=0.01)


def test_the_bound_allows_one_missing_query_per_collection():
    assert unseen_allowance([50]) == pytest.approx(0.02)
    assert unseen_allowance([50, 200], [0.5, 0.5]) == pytest.approx(0.0125)


# The bound on a loss


def bound(parts, weights=(1.0,), resampling=BOUND):
    """The bound on the weighted mean of some collections' differences."""
    return largest_loss(combine_means([studentise(part, resampling) for part in parts], weights))


def test_of_normal_differences_it_is_the_t_bound_and_one_loss_more():
    differences = np.random.default_rng(3).normal(0.01, 0.2, 2_000)
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    expected = stats.t.ppf(0.95, 1_999) * error - differences.mean() + 1 / 2_000
    assert bound([differences]) == pytest.approx(expected, abs=0.1 * error)


def test_rare_losses_widen_it_and_rare_gains_narrow_it():
    losses = np.zeros(300)
    losses[:12] = -0.5
    below, above = (bound([one]) + one.mean() for one in (losses, -losses))
    assert below > 1.1 * 1.645 * losses.std(ddof=1) / np.sqrt(len(losses))
    assert above < below


def test_a_collection_split_in_two_halves_keeps_its_bound():
    differences = np.random.default_rng(5).normal(0, 0.2, 1_000)
    whole = bound([differences])
    halves = bound([differences[:500], differences[500:]], [0.5, 0.5])
    assert halves == pytest.approx(whole, abs=0.002)


@pytest.mark.parametrize("changed", [0, 9])
def test_too_few_changed_queries_rule_nothing_out(changed):
    assert bound([np.r_[np.full(changed, 0.1), np.zeros(90)]]) is None


def test_one_query_rules_nothing_out():
    assert bound([np.ones(20), np.ones(1)], [0.5, 0.5]) is None


def test_losses_that_a_small_sample_may_have_missed_are_not_ruled_out():
    assert bound([np.full(30, 0.001)]) == pytest.approx(1 / 30 - 0.001)


def test_the_same_seed_gives_the_same_bound():
    differences = np.random.default_rng(1).normal(0, 0.1, 80)
    bounds = {bound([differences], resampling=Resampling(199, seed)) for seed in (1, 1, 2)}
    assert len(bounds) == 2
