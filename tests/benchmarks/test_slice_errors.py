"""Joint sign flips find a loss in one slice more often than Holm, and err as rarely."""

import numpy as np
import pytest
from scipy import stats

from tests.benchmarks.slice_errors import draw_slices, exchange, plant, rates

DRAWS = 120
MOST = stats.binom.ppf(0.9995, DRAWS, 0.05) / DRAWS


def two_models(queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of which a third differ."""
    rng = np.random.default_rng(queries)
    a = rng.choice([0.0, 0.5, 1.0], queries)
    return a, np.where(rng.random(queries) < 0.3, rng.choice([0.0, 0.5, 1.0], queries), a)


def test_slices_are_all_queries_and_a_planted_loss_is_in_its_slice():
    rng = np.random.default_rng(0)
    parts = draw_slices(100, 8, rng)
    assert sorted(np.concatenate(parts)) == list(range(100))
    assert min(map(len, parts)) >= 5
    a, b = two_models(100)
    candidate, baseline = exchange(a, b, rng)
    assert np.array_equal(candidate + baseline, a + b)
    lost = plant(candidate, parts[0], 0.1, rng)
    assert set(np.flatnonzero(lost != candidate)) <= set(parts[0])
    assert candidate[parts[0]].mean() - lost[parts[0]].mean() >= 0.1


@pytest.mark.slow
def test_any_of_twenty_slices_of_equal_models_is_significant_in_at_most_5_percent():
    found = rates(*two_models(300), 20, 0.0, DRAWS, True)
    assert found["maxT 0.5"] <= MOST
    assert found["check --by"] <= MOST


@pytest.mark.slow
def test_a_planted_loss_is_found_more_often_than_by_holm():
    found = rates(*two_models(150), 10, 0.2, DRAWS // 3, True)
    assert found["maxT 0.5"] > found["Holm"] > 0
