"""The bound on a loss: against hand-made resamples, and where it must refuse."""

import numpy as np
import pytest
from scipy import stats

from bench.noninferiority import largest_loss
from bench.statistics import Resampling

MANY = Resampling(4_999, 0)


def test_of_normal_differences_it_is_the_t_bound():
    differences = np.random.default_rng(3).normal(0.01, 0.2, 2_000)
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    expected = stats.t.ppf(0.95, len(differences) - 1) * error - differences.mean()
    assert largest_loss([differences], resampling=MANY) == pytest.approx(expected, abs=0.1 * error)


def test_rare_losses_widen_it_and_rare_gains_narrow_it():
    losses = np.zeros(300)
    losses[:12] = -0.5
    error = losses.std(ddof=1) / np.sqrt(len(losses))
    bound = 1.645 * error
    assert largest_loss([losses], resampling=MANY) > -losses.mean() + 1.1 * bound
    assert largest_loss([-losses], resampling=MANY) < losses.mean() + bound


def test_a_collection_split_in_two_halves_keeps_its_bound():
    differences = np.random.default_rng(5).normal(0, 0.2, 1_000)
    whole = largest_loss([differences], resampling=MANY)
    halves = largest_loss([differences[:500], differences[500:]], [0.5, 0.5], MANY)
    assert halves == pytest.approx(whole, abs=0.001)


@pytest.mark.parametrize("changed", [0, 9])
def test_too_few_changed_queries_rule_nothing_out(changed):
    assert largest_loss([np.r_[np.full(changed, 0.1), np.zeros(90)]]) is None


def test_one_query_rules_nothing_out():
    assert largest_loss([np.ones(20), np.ones(1)], [0.5, 0.5]) is None


def test_the_same_loss_everywhere_is_known_exactly():
    assert largest_loss([np.full(30, -0.25)]) == pytest.approx(0.25)


def test_the_same_seed_gives_the_same_bound():
    differences = np.random.default_rng(1).normal(0, 0.1, 80)
    bounds = {largest_loss([differences], resampling=Resampling(199, seed)) for seed in (1, 1, 2)}
    assert len(bounds) == 2
