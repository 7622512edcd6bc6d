"""The promises of the gate's bound, in simulation; the limits are those of chance."""

import numpy as np
import pytest
from scipy import stats

from bench.gate.decision import draw_means, upper_bound
from tests.benchmarks import gate_bound

DRAWS, INNER = 1_000, 1_999
MOST = stats.binom.ppf(0.9995, DRAWS, 0.05) / DRAWS


def test_many_samples_at_once_have_the_bound_of_the_gate():
    rng = np.random.default_rng(0)
    sample = [rng.normal(0, 0.2, (40, 3)), rng.normal(0, 0.1, (90, 3))]
    found = gate_bound.bound_by_gaffke(sample, [0.3, 0.7], INNER)
    for column in range(3):
        parts = [
            draw_means(part[:, column], f"collection {number}", INNER)
            for number, part in enumerate(sample)
        ]
        assert found[column] == pytest.approx(upper_bound(parts, [0.3, 0.7]), abs=1e-12)


def test_every_kind_of_losses_has_the_mean_that_it_states():
    rng = np.random.default_rng(1)
    for mean in (0.0, gate_bound.MARGIN):
        for kind, one in gate_bound.populations(100, mean):
            drawn = one.draw(100, 4_000, rng).mean(axis=0)
            assert one.true_mean == pytest.approx(drawn.mean(), abs=0.003), kind


@pytest.mark.slow
@pytest.mark.parametrize("queries", [30, 300, 3_000])
def test_the_bound_covers_the_true_mean_whatever_the_losses_are(queries):
    rng = np.random.default_rng([queries, 0])
    for kind, one in gate_bound.populations(queries):
        sample = [one.draw(queries, DRAWS, rng)]
        bounds = gate_bound.bound_by_gaffke(sample, [1.0], INNER)
        assert np.mean(bounds < one.true_mean - 1e-9) <= MOST, kind


@pytest.mark.slow
@pytest.mark.parametrize("family", gate_bound.FAMILIES)
def test_the_bound_covers_the_mean_of_unequal_collections(family):
    sizes = gate_bound.FAMILIES[family]
    weights = np.arange(1, len(sizes) + 1) / np.arange(1, len(sizes) + 1).sum()
    rng = np.random.default_rng(len(sizes))
    for kind, members in gate_bound.mixtures(sizes):
        sample = [one.draw(n, DRAWS, rng) for one, n in zip(members, sizes, strict=True)]
        mean = float(np.dot(weights, [one.true_mean for one in members]))
        bounds = gate_bound.bound_by_gaffke(sample, weights.tolist(), INNER)
        assert np.mean(bounds < mean - 1e-9) <= MOST, kind


@pytest.mark.slow
@pytest.mark.parametrize("queries", [100, 1_000])
def test_a_true_loss_of_the_margin_passes_at_most_5_times_in_100(queries):
    rng = np.random.default_rng([queries, 1])
    for kind, one in gate_bound.populations(queries, gate_bound.MARGIN):
        if one.true_mean == pytest.approx(gate_bound.MARGIN):
            bounds = gate_bound.bound_by_gaffke([one.draw(queries, DRAWS, rng)], [1.0], INNER)
            assert np.mean(bounds <= gate_bound.MARGIN) <= MOST, kind


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "least"), [(300, 0.5), (1_000, 0.98), (3_000, 1.0)])
def test_equal_models_pass_as_often_as_the_page_says(queries, least):
    rng = np.random.default_rng([queries, 2])
    sample = [gate_bound.symmetric(0.5).draw(queries, DRAWS, rng)]
    assert np.mean(gate_bound.bound_by_gaffke(sample, [1.0], INNER) <= 0.02) >= least


def test_the_simulation_shows_bounds_that_miss_rare_losses():
    rng = np.random.default_rng(3)
    one = gate_bound.rare(1 / 300, 0.5)
    found = gate_bound.misses([one.draw(300, 200, rng)], [1.0], 0.0, 499)
    assert min(found["t"], found["bootstrap-t"]) > 0.2
    assert max(found["Gaffke"], found["betting"]) < 0.1


def test_rates_that_break_the_promise_are_marked():
    rows = [{"losses": "rare", "t": 0.3, "Gaffke": 0.05}]
    shown = gate_bound.table(rows, 1_000)
    assert "30.0 % !" in shown
    assert "5.0 % " in shown
