"""`cutoff` breaks its promise in at most 5 % of samples, and simpler rules do not."""

import numpy as np
import pytest
from scipy import stats

from bench.cutoffs.cutoff import ScoredRankings
from tests.benchmarks.cutoff_errors import broken, draw_sample, rules, split

DRAWS, INNER, KEEP = 300, 499, 0.9
MOST = stats.binom.ppf(0.9995, DRAWS, 0.05) / DRAWS


def population(queries: int, rng: np.random.Generator) -> ScoredRankings:
    """Three documents for each query, some of them relevant; a few queries have low scores."""
    level = rng.normal(0, 1, (queries, 1)) - 3 * (rng.random((queries, 1)) < 0.1)
    scores = -np.sort(-(level + rng.normal(0, 0.3, (queries, 3))), axis=1)
    relevant = rng.random((queries, 3)) < 0.4
    relevant[:, 0] |= ~relevant.any(axis=1)
    return ScoredRankings(scores.astype(np.float32), relevant, 3)


def test_samples_and_splits_are_those_of_the_population():
    rng = np.random.default_rng(0)
    whole = population(40, rng)
    sample, judged = draw_sample(10)(whole, rng)
    assert (len(sample), judged) == (10, whole)
    first, second = split(0.25)(whole, rng)
    assert (len(first), len(second)) == (10, 30)
    both = np.concatenate([first.scores, second.scores])
    assert np.array_equal(np.sort(both, axis=None), np.sort(whole.scores, axis=None))


@pytest.mark.slow
@pytest.mark.parametrize("queries", [40, 200])
def test_the_bound_keeps_the_promise_and_simpler_rules_do_not(queries):
    whole = population(1_000, np.random.default_rng(queries))
    rates = {
        name: broken(whole, KEEP, draw_sample(queries), DRAWS, estimate)
        for name, estimate in rules(INNER).items()
    }
    assert rates["cutoff"] <= MOST < min(rates["mean"], rates["risk control"])
