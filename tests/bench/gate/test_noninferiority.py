"""The bound on a loss: against hand-made resamples, and where it must refuse."""

import numpy as np
import pytest
from scipy import stats

from bench.comparing.statistics import Resampling
from bench.gate.skew import largest_loss, mean_of, studentise

MANY = Resampling(4_999, 0)


def bound(parts, weights=(1.0,), resampling=MANY):
    """The bound on the weighted mean of some collections' differences."""
    return largest_loss(mean_of([studentise(part, resampling) for part in parts], weights))


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
