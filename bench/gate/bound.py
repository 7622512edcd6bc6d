"""Upper confidence bound of a mean loss that needs no assumption on the distribution.

Most losses are zero, some are small and a few may be large, and the largest may be missing from the
sample. Student's t and the bootstrap know only the losses that were seen. Gaffke's bound (2005;
Learned-Miller and Thomas, 2020) adds the worst possible loss, 1, as one more query: it is the 95 %
quantile of the mean of all these losses under random weights from a flat Dirichlet distribution.
The bound of a weighted mean over collections draws the weights of each collection independently.

Three properties matter for a gate. A larger loss of any query never lowers the bound, and the order
of queries has no influence: the weights are fixed, and the sorted losses are put into them. Without
any loss the bound is exactly 1 - 0.05^(1/n): 149 unchanged queries prove a margin of .02. Its
coverage is proved for a few distributions and conjectured for all; `tests.benchmarks.gate_bound`
measures it, also for several collections.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bench.comparing.statistics import BLOCK_CELLS, random_stream
from foundation.arrays import Float64Array

LEVEL = 0.95  # one-sided
WORST = 1.0  # largest possible loss of a query, by a measure from 0 to 1
DRAWS = 19_999  # of random weights


@dataclass(frozen=True)
class MeanLoss:
    """Weighted mean loss over collections, under random weights of the queries.

    Attributes:
        weights: weight of each collection, ``(collections,)``.
        queries: number of queries of each collection, ``(collections,)``.
        observed: mean loss of each collection, ``(collections,)``.
        drawn: mean loss under random weights of the queries, ``(draws, collections)``.
        levels: quantile level of the weight of the worst loss, ``(draws, collections)``. Each of
            ``draws`` equal steps from 0 to 1 occurs once in a column.
    """

    weights: Float64Array
    queries: Float64Array
    observed: Float64Array
    drawn: Float64Array
    levels: Float64Array

    def bound(self, factor: float = 1.0) -> float:
        """Return the upper 95 % confidence bound of the mean loss.

        Args:
            factor: number of times as many queries with losses like these, for planning. The spread
                shrinks by its root.
        """
        shrink = 1 / math.sqrt(factor)
        means = shrink * self.drawn + (1 - shrink) * self.observed
        worst = 1 - (1 - self.levels) ** (1 / (factor * self.queries))  # quantiles of Beta(1, n)
        total = (worst * WORST + (1 - worst) * means) @ self.weights
        place = math.ceil(LEVEL * len(total)) - 1
        return float(np.partition(total, place)[place])


def draw_mean_loss(
    losses: Mapping[str, Float64Array], weights: Mapping[str, float], draws: int = DRAWS
) -> MeanLoss:
    """Draw the mean loss under random weights. The draws depend on names and numbers alone.

    Args:
        losses: baseline minus candidate on each query, by collection; in -1 to 1.
        weights: weight of each collection; they sum to 1.
        draws: number of random weights.
    """
    names = sorted(weights)
    columns = [draw_means(losses[name], name, draws) for name in names]
    return MeanLoss(
        weights=np.array([weights[name] for name in names]),
        queries=np.array([float(len(losses[name])) for name in names]),
        observed=np.array([float(np.sort(losses[name]).mean()) for name in names]),
        drawn=np.stack([means for means, _ in columns], axis=1),
        levels=np.stack([levels for _, levels in columns], axis=1),
    )


def draw_means(losses: Float64Array, name: str, draws: int) -> tuple[Float64Array, Float64Array]:
    """Return means under flat Dirichlet weights, and the levels of the worst loss's weight.

    Args:
        losses: ``(queries,)``, or ``(queries, samples)`` for several samples at once.
        name: name of the collection, whose weights are independent of those of other names.
        draws: number of random weights.
    """
    for_means, for_worst = np.random.default_rng(random_stream(name)).spawn(2)
    ordered, means = np.sort(losses, axis=0), []
    rows = max(1, BLOCK_CELLS // len(ordered))
    for start in range(0, draws, rows):
        shares = for_means.standard_exponential((min(rows, draws - start), len(ordered)))
        shares /= shares.sum(axis=1, keepdims=True)
        means.append(shares @ ordered)
    return np.concatenate(means), (for_worst.permutation(draws) + 0.5) / draws
