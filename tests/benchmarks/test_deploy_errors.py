"""`deploy` accepts a setting that loses the margin in at most 5 % of samples."""

import numpy as np
import pytest
from scipy import stats

from tests.benchmarks.deploy_errors import (
    bound_by_gaffke,
    correlations,
    error_rates,
    plant,
)

DRAWS, INNER, MARGIN = 500, 999, 0.02
MOST = stats.binom.ppf(0.9995, DRAWS, 0.05) / DRAWS


def losses_of_settings(queries: int, settings: int, rng: np.random.Generator) -> np.ndarray:
    """Losses that are 0 for most queries; stronger settings change more of them."""
    shares = np.linspace(0.05, 0.5, settings)
    changed = rng.random((queries, settings)) < shares
    return np.clip(changed * rng.normal(0, 0.3, (queries, settings)), -1, 1)


def test_planted_losses_have_the_margin_as_their_mean():
    losses = losses_of_settings(300, 5, np.random.default_rng(0))
    planted = plant(losses, MARGIN)
    assert planted.mean(axis=0) == pytest.approx(np.full(5, MARGIN), abs=1e-9)
    assert planted.max() <= 1


def test_a_fixed_order_correlates_with_errors_in_a_sample_but_not_on_average():
    rng = np.random.default_rng(3)
    found = correlations(losses_of_settings(300, 12, rng), DRAWS, rng)
    assert abs(found.mean()) < 4 * found.std() / np.sqrt(DRAWS)
    assert found.std() > 0.2


@pytest.mark.slow
def test_an_order_that_follows_the_deciding_losses_errs_like_separate_tests():
    rng = np.random.default_rng(600)
    planted = plant(losses_of_settings(600, 12, rng), MARGIN)
    rows = rng.integers(len(planted), size=(len(planted), DRAWS))
    samples = [column[rows] for column in planted.T]
    passed = np.array([bound_by_gaffke([one], [1.0], 499) <= MARGIN for one in samples])
    first = np.argmin([one.mean(axis=0) for one in samples], axis=0)
    errors = passed[first, np.arange(DRAWS)].mean()
    assert MOST < 0.8 * passed.any(axis=0).mean() <= errors


@pytest.mark.slow
@pytest.mark.parametrize("queries", [150, 600])
def test_a_sequence_keeps_the_promise_and_separate_tests_do_not(queries):
    rng = np.random.default_rng(queries)
    planted = plant(losses_of_settings(queries, 12, rng), MARGIN)
    in_order, separately = error_rates(planted, MARGIN, DRAWS, INNER, rng)
    assert in_order <= MOST < separately
