"""The gate on simulated pairs of models; bounds are those of the binomial distribution."""

import numpy as np
import pytest
from scipy import stats

from bench.comparing.statistics import Resampling
from tests.benchmarks import gate_simulation as gate
from tests.benchmarks.gate_pairs import BM25, FAMILY, MINILM, PAIRS, real_pairs
from tests.benchmarks.gate_simulation import MOST_PUSHED, Population

pytestmark = pytest.mark.slow

COUNT = 150  # pairs of models drawn from a population
RESAMPLING = Resampling(399, 0)
MOST = stats.binom.ppf(0.999, COUNT, 0.05) / COUNT
DRAWS = 60  # of each pair of real models
MOST_OF_DRAWS = stats.binom.ppf(0.999, DRAWS, 0.05) / DRAWS
RANKS = np.random.default_rng(0).choice([1, 1, 1, 2, 3, 5, 9], 500)[:, None]
PUSHED = RANKS + np.arange(MOST_PUSHED + 1)


def of_measure(name: str, values: np.ndarray) -> Population:
    return Population(name, np.where(PUSHED <= 10, values, 0.0))


RR = of_measure("RR@10", 1 / PUSHED)
MEASURES = (RR, of_measure("nDCG@10", 1 / np.log2(1 + PUSHED)), of_measure("R@10", PUSHED**0.0))
SHAPES = [(50, 0.5), (50, 0.9), (400, 0.7)]


@pytest.mark.parametrize("real", MEASURES, ids=lambda one: one.name)
@pytest.mark.parametrize(("queries", "zeros"), SHAPES)
def test_exchangeable_models_are_a_regression_at_most_5_times_in_100(real, queries, zeros):
    differences = gate.exchangeable(real, zeros, (queries, COUNT), np.random.default_rng(1))
    assert gate.outcomes(differences, RESAMPLING).count("REGRESSION") / COUNT <= MOST


@pytest.mark.parametrize("real", MEASURES, ids=lambda one: one.name)
@pytest.mark.parametrize(("queries", "zeros"), [*SHAPES, (150, 0.9)])
def test_rare_gains_that_balance_many_losses_are_no_regression(real, queries, zeros):
    rng = np.random.default_rng([queries, 5])
    differences = -gate.skewed(real, zeros, 0.0, (queries, COUNT), rng)
    assert gate.outcomes(differences, RESAMPLING).count("REGRESSION") / COUNT <= MOST


def test_the_simulation_shows_that_the_randomisation_test_alone_errs_on_rare_gains():
    differences = -gate.skewed(RR, 0.9, 0.0, (150, COUNT), np.random.default_rng(6))
    assert gate.alone(differences, RESAMPLING) > 2 * MOST


@pytest.mark.parametrize(("queries", "zeros"), SHAPES)
def test_a_loss_of_the_margin_is_ruled_out_at_most_5_times_in_100(queries, zeros):
    rng = np.random.default_rng([queries, 2])
    differences = gate.skewed(RR, zeros, -gate.MARGIN, (queries, COUNT), rng)
    assert gate.passes(differences, RESAMPLING)["bootstrap-t"] <= MOST


def test_the_simulation_shows_methods_that_pass_too_often():
    differences = gate.skewed(RR, 0.5, -gate.MARGIN, (50, COUNT), np.random.default_rng(3))
    found = gate.passes(differences, RESAMPLING)
    assert min(found[name] for name in ("sign flips", "t", "percentile")) > MOST


def test_the_minimum_detectable_effect_is_found_80_times_in_100_and_twice_it_always():
    rng = np.random.default_rng(4)
    found, loss = gate.planted(RR, 0.7, 1, (400, COUNT), rng)
    assert found.mean() == pytest.approx(-loss, abs=0.01)
    once = gate.outcomes(found, RESAMPLING).count("REGRESSION")
    assert stats.binom.ppf(0.001, COUNT, 0.78) <= once <= stats.binom.ppf(0.999, COUNT, 0.85)
    found, _ = gate.planted(RR, 0.7, 2, (400, COUNT), rng)
    assert gate.outcomes(found, RESAMPLING).count("REGRESSION") >= 0.99 * COUNT


def test_several_collections_and_their_mean_keep_the_level_and_find_a_loss_on_one(monkeypatch):
    monkeypatch.setattr(gate, "FAMILY", (50, 300))
    found = gate.family([RR, MEASURES[1]], 0.7, 60, RESAMPLING)
    most = stats.binom.ppf(0.999, 60, 0.05) / 60
    assert found["exchangeable"] <= most
    assert found["rare gains"] <= most
    assert found["mean lost the margin, passes"] <= most
    assert found["one lost twice"] >= stats.binom.ppf(0.001, 60, 0.98) / 60


@pytest.fixture(scope="module")
def real(bench_data):
    """Real differences: TREC-DL runs, and MiniLM beside BM25 and beside itself with noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_DATA", str(bench_data))
        return real_pairs()


@pytest.mark.parametrize("names", PAIRS, ids=" and ".join)
def test_equal_models_with_real_differences_are_a_regression_by_neither_rule(real, names):
    for row in gate.both_rules(real[names], DRAWS, RESAMPLING):
        rates = {name: rate for name, rate in row.items() if name.endswith("REGRESSION")}
        assert len(rates) == 3
        assert max(rates.values()) <= MOST_OF_DRAWS
        assert row["passes a loss of 0.01"] <= MOST_OF_DRAWS
        assert row["at MDE"] >= stats.binom.ppf(0.001, DRAWS, 0.7) / DRAWS


def test_a_loss_beyond_the_margin_is_often_observed_of_equal_models(real):
    for row in gate.both_rules(real[BM25, MINILM], DRAWS, RESAMPLING):
        assert row["observed beyond 0.01"] > MOST_OF_DRAWS


def test_equal_models_on_several_real_collections_are_a_regression_by_neither_rule(real):
    pairs = [real[names] for names in FAMILY]
    row = gate.both_rules_on_several(pairs, DRAWS, RESAMPLING)
    rates = [rate for name, rate in row.items() if name.endswith("REGRESSION")]
    assert max(rates) <= MOST_OF_DRAWS


def test_rates_that_break_a_promise_are_marked():
    assert gate._cell("exchangeable", 0.2, 100) == "20.0 % !"
    assert gate._cell("exchangeable", 0.05, 100) == "5.0 %"
    assert gate._cell("at MDE", 0.6, 100) == "60.0 % !"
    assert gate._cell("at MDE", 0.8, 100) == "80.0 %"
