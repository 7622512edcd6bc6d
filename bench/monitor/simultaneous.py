"""Many comparisons at once: the largest of their statistics under random flips of signs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from bench.comparing.statistics import SAME_MEAN, SAME_SCORE, Resampled
from foundation.arrays import Float64Array, Int64Array

Pair = tuple[int, int]
BLOCK_PAIRS = 64  # whose flips are held at once: 5 MB for 9,999 resamples


@dataclass(frozen=True)
class Part:
    """All checkpoints on one collection.

    Attributes:
        weight: of the collection in the mean.
        scores: float64 ``(queries, m)``, a column for each checkpoint.
    """

    weight: float
    scores: Float64Array
    resampled: Resampled

    @property
    def shares(self) -> Float64Array:
        """Share of each query in the mean of each checkpoint, float64 ``(queries, m)``."""
        return self.scores * (self.weight / len(self.scores))


def means_of(parts: Sequence[Part]) -> Float64Array:
    """Mean of each checkpoint, float64 ``(m,)``."""
    total: Float64Array = np.sum([part.weight * part.scores.mean(axis=0) for part in parts], axis=0)
    return total


def max_statistic(parts: Sequence[Part], pairs: Sequence[Pair]) -> tuple[list[float], bool]:
    """p of each pair, adjusted for all of them, and whether it is over all flips of signs.

    The statistic of a pair is its difference of means over the root of its sum of squares, which
    orders flips as the t of paired differences does, and which no flip of signs changes. A query
    gets one sign for all pairs, so that flipped curves keep their correlation. p is the share of
    flips whose largest statistic over all pairs is at least that of the pair (Westfall and Young,
    1993, single-step maxT): where pairs do not differ, any of them gets p at most 5 % in at most
    5 % of curves, whatever the other pairs do.

    Args:
        pairs: columns; the first is not the second.
    """
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    shares = [part.shares for part in parts]
    scale = np.sqrt(sum(_squares(share, first, second) for share in shares))
    flips, exact = _flips(parts, shares)
    largest = np.zeros(len(flips))
    for some in _blocks(len(pairs)):
        ratios = _ratios(flips[:, first[some]] - flips[:, second[some]], scale[some])
        np.maximum(largest, ratios.max(axis=1), out=largest)
    means = means_of(parts)
    seen = _ratios(means[first] - means[second], scale) - _ratios(SAME_MEAN, scale)
    below = np.searchsorted(np.sort(largest), seen, side="left")
    as_far = len(largest) - below
    p = as_far / len(largest) if exact else (1 + as_far) / (1 + len(largest))
    return p.tolist(), exact


def _blocks(pairs: int) -> Iterator[slice]:
    for start in range(0, pairs, BLOCK_PAIRS):
        yield slice(start, start + BLOCK_PAIRS)


def _squares(shares: Float64Array, first: Int64Array, second: Int64Array) -> Float64Array:
    """Sum of squared differences of each pair."""
    sums = [
        ((shares[:, first[some]] - shares[:, second[some]]) ** 2).sum(axis=0)
        for some in _blocks(len(first))
    ]
    return np.concatenate(sums)


def _ratios(differences: Float64Array | float, scale: Float64Array) -> Float64Array:
    """Absolute differences over their scale; 0 for pairs that differ nowhere."""
    size = np.abs(differences)
    return np.divide(size, scale, out=np.zeros(np.broadcast(size, scale).shape), where=scale > 0)


def _flips(parts: Sequence[Part], shares: Sequence[Float64Array]) -> tuple[Float64Array, bool]:
    """Means under flips of signs, up to what all checkpoints share; and whether these are all.

    Queries on which all checkpoints are equal cancel, so that few others have few flips.
    """
    changed = [np.ptp(part.scores, axis=1) > SAME_SCORE for part in parts]
    kept = np.concatenate([share[rows] for share, rows in zip(shares, changed, strict=True)])
    if len(kept) > math.log2(len(parts[0].resampled.flipped)):
        return np.sum([part.weight * part.resampled.flipped for part in parts], axis=0), False
    signs = np.array(list(product((1.0, -1.0), repeat=len(kept))))
    return signs.reshape(2 ** len(kept), len(kept)) @ kept, True
