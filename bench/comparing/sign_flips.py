"""The paired randomisation test: sign flips of the differences between two models.

The null hypothesis is that the two models are exchangeable on every query: each difference is as
likely with the opposite sign. p is the share of sign flips whose mean is at least as far from 0
(Fisher, 1935; for retrieval: Smucker, Allan and Carterette, CIKM 2007). A small p means that the
models differ on queries like these. It is not a test of equal means alone: if many small gains
balance rare large losses, the differences are not exchangeable (docs/explanation/gate-errors.md).

For one test, nothing is drawn: p depends on the scores alone, not on a seed, a name or an order.
Joint tests of several rows, whose dependence matters, draw one set of flips for all of them.
"""

import math
from collections.abc import Iterator

import numpy as np

from foundation.arrays import Float64Array

BLOCK_CELLS = 1 << 19  # cells of a matrix in memory at once: 4 MB
CACHED_CELLS = 1 << 16  # cells of a matrix of cosines
ENUMERATED = 32  # changed queries, all of whose flips are counted
SMALLEST_P = 1e-6  # of more changed queries: the accuracy of the series
FURTHEST = 5.5  # standard deviations that a sum exceeds with a probability below 1e-6 (Hoeffding)
STEPS = (1_000, 4_000, 16_000, 64_000)  # a standard deviation of the sum, in units of its blur
ACCURACY = 5e-5  # difference of two extrapolations from which the blur is too wide
NEGLIGIBLE = 1e-7  # value of the characteristic function that no longer counts


def sign_flip_p(values: Float64Array, same: float = 0.0) -> float:
    """Compute the two-sided p of the sum of ``values`` under random signs.

    With few values, all flips are counted. With more, p comes from the characteristic function of
    the sum, the product of cos(t * value) over the values. A p below .1 is within .0005 of the
    exact one. The error is largest if all values are multiples of a step finer than the blur.

    Args:
        values: float64 ``(c,)``, contribution of each changed query.
        same: rounding tolerance within which two sums are equal.

    Returns:
        p, at least `SMALLEST_P` with many values.
    """
    observed = abs(math.fsum(values)) - same
    sizes = np.sort(np.abs(values))  # so that no order of queries changes a digit
    if observed <= 0:
        return 1.0
    if len(sizes) <= ENUMERATED:
        first, second = (np.sort(_all_sums(half)) for half in (sizes[::2], sizes[1::2]))
        below = np.searchsorted(second, observed - first)
        return 2 * float(np.mean(1 - below / len(second)))
    if observed >= FURTHEST * float(np.linalg.norm(sizes)):
        return SMALLEST_P
    for steps in STEPS:
        near, far, furthest = _tails(sizes, observed, steps)
        p = 3 * (near - far) + furthest
        if abs(near - 2 * far + furthest) <= ACCURACY:
            break
    return min(1.0, max(SMALLEST_P, p))


def _all_sums(values: Float64Array) -> Float64Array:
    """Return the sum of ``values`` under all signs, float64 ``(2**c,)``."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _tails(sizes: Float64Array, observed: float, steps: int) -> list[float]:
    """Return the probabilities of blurred sums beyond 4, 8 and 12 blurs below ``observed``.

    Normal noise of 1/``steps`` of the standard deviation lets the Fourier series of the tail end
    (Gil-Pelaez, 1951). Sums equal to ``observed`` count in full at each of the thresholds, from
    which the caller extrapolates.
    """
    deviation = float(np.linalg.norm(sizes))
    half, blur = FURTHEST * deviation, deviation / steps  # of the period, and its sd
    number = np.arange(1.0, math.ceil(5 * steps * FURTHEST / math.pi))
    frequency = number * (math.pi / half)
    product = np.exp(-((blur * frequency) ** 2) / 2)
    sizes, counts = np.unique(sizes, return_counts=True)
    start = 0
    while start < len(sizes) and len(product):
        some = slice(start, start + max(1, CACHED_CELLS // len(product)))
        factors = np.cos(np.outer(frequency, sizes[::-1][some]))
        product = product * (factors ** counts[::-1][some]).prod(axis=1)
        counted = np.abs(product) > NEGLIGIBLE
        number, frequency, product = number[counted], frequency[counted], product[counted]
        start = some.stop
    thresholds = [max(0.0, observed - blurs * blur) for blurs in (4, 8, 12)]
    weights = 2 / math.pi * product / number
    return [1 - one / half - float(np.sin(frequency * one) @ weights) for one in thresholds]


def flip_means(scores: Float64Array, count: int, rng: np.random.Generator) -> Float64Array:
    """Return the mean of each column under ``count`` sets of random signs of the rows.

    Args:
        scores: float64 ``(queries, columns)``. A column is a model, or a difference.
        count: number of sets, each of which is used for all columns.
        rng: generator of the signs.

    Returns:
        Means, float64 ``(count, columns)``.
    """
    positive = [signs @ scores for signs in _draw_signs(rng, len(scores), count)]
    return np.asarray((2 * np.concatenate(positive) - scores.sum(axis=0)) / len(scores))


def block_sizes(queries: int, count: int) -> Iterator[int]:
    """Yield numbers of rows that add up to ``count``, each small enough for one block of memory."""
    rows = max(1, BLOCK_CELLS // queries)
    for start in range(0, count, rows):
        yield min(rows, count - start)


def _draw_signs(rng: np.random.Generator, queries: int, count: int) -> Iterator[Float64Array]:
    """Yield blocks of random signs ``(rows, queries)``: 1 for plus or 0 for minus."""
    for rows in block_sizes(queries, count):
        coins = rng.integers(256, size=(rows, -(-queries // 8)), dtype=np.uint8)
        yield np.unpackbits(coins, axis=1, count=queries).astype(np.float64)
