"""The gate on simulated pairs of models; bounds are those of the binomial distribution."""

import numpy as np
import pytest
from scipy import stats

from bench.decisions.statistics import Resampling
from tests.benchmarks import gate_simulation as gate

PAIRS = 200
RESAMPLING = Resampling(399, 0)
RANKS = np.random.default_rng(0).choice([0, 1, 1, 1, 2, 3, 5, 9], 500)
MOST = stats.binom.ppf(0.999, PAIRS, 0.05) / PAIRS


@pytest.mark.parametrize(("queries", "zeros"), [(50, 0.5), (50, 0.9), (400, 0.7)])
def test_exchangeable_models_are_a_regression_at_most_5_times_in_100(queries, zeros):
    rng = np.random.default_rng([queries, 1])
    differences = gate.exchangeable(RANKS, zeros, (queries, PAIRS), rng)
    found = gate.outcomes(differences, RESAMPLING)
    assert found.count("REGRESSION") / PAIRS <= MOST


@pytest.mark.parametrize(("queries", "zeros"), [(50, 0.5), (50, 0.9), (400, 0.7)])
def test_a_loss_of_the_margin_is_ruled_out_at_most_5_times_in_100(queries, zeros):
    rng = np.random.default_rng([queries, 2])
    differences = gate.skewed(RANKS, zeros, -gate.MARGIN, (queries, PAIRS), rng)
    assert gate.passes(differences, RESAMPLING)["bootstrap-t"] <= MOST


def test_the_simulation_shows_methods_that_pass_too_often():
    rng = np.random.default_rng(3)
    differences = gate.skewed(RANKS, 0.5, -gate.MARGIN, (50, PAIRS), rng)
    found = gate.passes(differences, RESAMPLING)
    assert min(found[name] for name in ("sign flips", "t", "percentile")) > MOST


def test_the_minimum_detectable_effect_is_found_80_times_in_100_and_twice_it_always():
    rng = np.random.default_rng(4)
    found, loss = gate.planted(RANKS, 0.7, 1, (400, PAIRS), rng)
    assert found.mean() == pytest.approx(-loss, abs=0.01)
    once = gate.outcomes(found, RESAMPLING).count("REGRESSION")
    assert stats.binom.ppf(0.001, PAIRS, 0.8) <= once <= stats.binom.ppf(0.999, PAIRS, 0.85)
    found, _ = gate.planted(RANKS, 0.7, 2, (400, PAIRS), rng)
    assert gate.outcomes(found, RESAMPLING).count("REGRESSION") >= 0.99 * PAIRS
