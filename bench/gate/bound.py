"""Upper confidence bound of a mean loss that needs no assumption on its distribution.

Most losses are zero, some are small and a few may be large, and the largest may be missing from the
sample. Student's t and the bootstrap know only the losses that were seen. Gaffke's bound (2005;
Learned-Miller and Thomas, 2020) adds one more query with the worst possible loss: it is the 95 %
quantile of the mean of all these losses under random weights from a flat Dirichlet distribution.
The bound of a weighted mean draws the weights of each collection independently, with one worst loss
for each. The worst loss is 1. A query cannot lose more than its baseline's score, but the score of
a query that the sample lacks is unknown.

Three properties matter for a gate. A larger loss of any query never lowers the bound, and the order
of queries has no influence: the random weights are fixed, and meet the sorted losses. If no score
changes, the bound is 1 - 0.05^(1/n): 149 unchanged queries prove a margin of .02. Its coverage is
proved for a few distributions and conjectured for all. `tests.benchmarks.gate_bound` measures it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.comparing.statistics import BLOCK_CELLS, random_stream
from foundation.arrays import Float64Array

LEVEL = 0.95  # one-sided
DRAWS = 19_999  # another seed moves a bound by .6 % of its distance from the mean (1 sd)
MOST_QUERIES = 10_000_000  # that `queries_needed` considers


@dataclass(frozen=True)
class DrawnMeans:
    """Mean loss on one collection under random weights of its queries.

    Attributes:
        queries: number of queries.
        observed: mean loss.
        means: float64 ``(draws,)``, mean loss under flat Dirichlet weights.
        levels: float64 ``(draws,)``, quantile levels of the weight of the worst loss: the centre of
            each of ``draws`` equal steps from 0 to 1, in random order.
    """

    queries: int
    observed: float
    means: Float64Array
    levels: Float64Array


def draw_means(losses: Float64Array, name: str, draws: int = DRAWS) -> DrawnMeans:
    """Draw the mean loss under random weights, which depend on the number of queries and ``name``.

    Args:
        losses: float64 ``(queries,)``, baseline minus candidate; at most 1. The benchmark passes
            ``(queries, samples)``.
        name: name of the collection. Weights of different names are independent.
        draws: number of random weights.
    """
    for_means, for_worst = np.random.default_rng(random_stream(name)).spawn(2)
    ordered = np.sort(losses, axis=0)
    means = np.zeros((draws, *ordered.shape[1:]))
    rows = max(1, BLOCK_CELLS // len(ordered))
    for start in range(0, draws, rows) if ordered.any() else ():
        shares = for_means.standard_exponential((min(rows, draws - start), len(ordered)))
        shares /= shares.sum(axis=1, keepdims=True)
        means[start : start + rows] = shares @ ordered
    levels = (for_worst.permutation(draws) + 0.5) / draws
    return DrawnMeans(len(ordered), float(ordered.mean()), means, levels)


def upper_bound(
    parts: Sequence[DrawnMeans], weights: Sequence[float] = (1.0,), factor: float = 1.0
) -> float:
    """Return the upper 95 % confidence bound of the weighted mean loss.

    Args:
        parts: draws of each collection.
        weights: weight of each collection; they sum to 1.
        factor: for planning: the bound if there were so many times as many queries with losses like
            these. The spread of the mean shrinks by its root.
    """
    shrink = 1 / math.sqrt(factor)
    total = np.zeros(len(parts[0].means))
    for weight, part in zip(weights, parts, strict=True):
        means = shrink * part.means + (1 - shrink) * part.observed
        worst = 1 - (1 - part.levels) ** (1 / (factor * part.queries))  # quantiles of Beta(1, n)
        total += weight * (worst + (1 - worst) * means)
    place = math.ceil(LEVEL * len(total)) - 1
    return float(np.partition(total, place)[place])


def queries_needed(
    parts: Sequence[DrawnMeans], weights: Sequence[float], margin: float
) -> int | None:
    """Return the number of queries with losses like these whose bound is at most ``margin``.

    Args:
        parts: draws of each collection, all of which grow by the same factor.
        weights: weight of each collection; they sum to 1.
        margin: largest accepted mean loss.

    Returns:
        None if no number is enough, since the observed loss is not smaller than the margin.
    """
    known = sum(part.queries for part in parts)

    def proves(queries: int) -> bool:
        return upper_bound(parts, weights, queries / known) <= margin

    high = known
    while not proves(high):
        if high > MOST_QUERIES:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if proves(middle) else (middle, high)
    return high
