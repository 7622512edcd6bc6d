"""Paired differences between two models over the same queries, with intervals and p-values.

Retrieval scores are awkward: most differences are exactly zero, the rest are skewed, and some
collections have 50 queries. Therefore a randomisation test, which assumes no distribution, decides
*whether* two models differ, and a bootstrap estimates *by how much*. The mean of a model is linear
in its scores, so one matrix of signs and one of weights serve every pair of models on a collection,
and every suite that contains it.
"""

import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Literal, TypeVar

import msgspec
import numpy as np

from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.records import Record

ALPHA = 0.05  # two-sided
POWER = 0.8
FEW = 10  # with fewer changed queries an interval is unreliable
SAME_SCORE = 1e-9  # scores of one query that differ by less are a tie
SAME_MEAN = 1e-11  # above the rounding of any sum of 90,000 scores up to 1, in any order
BLOCK_CELLS = 1 << 19  # cells of a matrix of signs or weights in memory at once: 4 MB

_NORMAL = NormalDist()
Name = TypeVar("Name", bound=Hashable)
Verdict = Literal["a", "b", "neither"]


class Resampling(Record):
    """Number of resamples and seed of the randomisation test and the bootstrap."""

    resamples: int = 9_999
    seed: int = 0

    def check_enough(self, tests: int, sides: int = 1) -> None:
        """Raise if even the smallest possible p of ``tests`` would not be significant (Holm).

        Then every check would pass. ``sides`` is 2 if a one-sided p is doubled.
        """
        needed = math.ceil(sides * tests / ALPHA) - 1
        if self.resamples < needed:
            raise BenchError(
                f"with {self.resamples:,} resamples none of {tests} tests can be significant",
                f"Use --resamples {needed} or more.",
            )


class Difference(Record, kw_only=True):
    """Paired difference of two models over queries, on one collection or in a mean.

    Attributes:
        a, b: names of the models; ``b`` is "" for the mean score of ``a`` alone.
        difference: mean of a minus mean of b, so that above 0 the first model is better.
        low, high: 95 % interval of the difference, see `_interval`. None if all queries differ by
            the same amount (usually 0), or if a collection has one query.
        p: two-sided p of the paired randomisation test, see `_p_value`. Never 0.
        p_adjusted: p corrected for its family of tests; None for a single test.
        exact: True if p counts all sign flips, not a sample of them.
        wins, ties, losses: number of queries on which the first model is better, equal, worse.
        effect: standardised paired difference: the mean divided by the standard deviation (d_z of
            Cohen, 1988). In a suite, divided by the root of the weighted mean of the collections'
            variances. None if there is no variance.
        detectable: minimum detectable effect in units of the measure, see `detectable_effect`.
    """

    on: str = ""
    measure: str = ""
    a: str = ""
    b: str = ""
    difference: float
    low: float | None
    high: float | None
    p: float
    p_adjusted: float | None = None
    exact: bool
    wins: int
    ties: int
    losses: int
    effect: float | None
    detectable: float | None

    @property
    def significant(self) -> bool:
        """True if p, adjusted if it is, is at most 0.05."""
        return (self.p if self.p_adjusted is None else self.p_adjusted) <= ALPHA

    @property
    def verdict(self) -> Verdict:
        """Better model at the 5 % level."""
        if not self.significant:
            return "neither"
        return "a" if self.difference > 0 else "b"

    @property
    def changed(self) -> int:
        """Number of queries on which the models differ."""
        return self.wins + self.losses

    @property
    def few(self) -> bool:
        """True if fewer than 10 queries changed, too few for a reliable interval."""
        return self.changed < FEW


class MeanScore(Record):
    """Mean score over queries with its 95 % interval, whose limits are None without variation."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ResampledMeans:
    """Means of m models over the same resamples of one collection's queries.

    Attributes:
        bootstrap: float64 ``(resamples, m)``, means over as many queries drawn with replacement.
        flipped: float64 ``(resamples, m)``, means over all queries, each score with a random sign.
    """

    bootstrap: Float64Array
    flipped: Float64Array


@dataclass(frozen=True)
class PairedScores:
    """Scores of one model minus another on one collection, or the scores of one model alone.

    Attributes:
        scores: float64 ``(queries,)``, difference on each query.
        bootstrap, flipped: float64 ``(resamples,)``, differences of columns of `ResampledMeans`.
        on, measure, a, b: labels, as in `Difference`.
    """

    scores: Float64Array
    bootstrap: Float64Array
    flipped: Float64Array
    on: str = ""
    measure: str = ""
    a: str = ""
    b: str = ""


@dataclass(frozen=True)
class ScoreMatrix:
    """Scores of several models on the same queries of one collection, with shared resamples.

    Attributes:
        columns: column of each model, by name.
        scores: float64 ``(queries, models)``.
        gaps: reason by name for each model without scores.
        queries: ids of the rows of ``scores``.
        drawn: resampled means, if they were drawn already.
    """

    collection: str
    measure: str
    columns: Mapping[str, int]
    scores: Float64Array
    resampling: Resampling
    gaps: Mapping[str, str] = field(default_factory=dict)
    queries: tuple[str, ...] = ()
    drawn: ResampledMeans | None = None

    @cached_property
    def resampled(self) -> ResampledMeans:
        """Resampled means of all models, drawn on first use."""
        return self.drawn or resample(self.scores, self.resampling, random_stream(self.collection))

    def mean(self, name: str) -> float | None:
        """Return the mean score of a model, or None for a gap."""
        return float(self.scores[:, self.columns[name]].mean()) if name in self.columns else None

    def minus(self, a: str, b: str = "") -> PairedScores:
        """Return the scores of ``a`` minus the scores of ``b``, or of ``a`` alone without ``b``."""
        tables = (self.scores, self.resampled.bootstrap, self.resampled.flipped)
        scores, bootstrap, flipped = (
            table[:, self.columns[a]] - (table[:, self.columns[b]] if b else 0) for table in tables
        )
        return PairedScores(scores, bootstrap, flipped, self.collection, self.measure, a, b)


def random_stream(collection: str) -> int:
    """Return the random stream of ``collection``: its resamples depend on its name alone."""
    return int.from_bytes(hashlib.sha256(collection.encode()).digest()[:8], "big")


def resample(scores: Float64Array, resampling: Resampling, stream: int = 0) -> ResampledMeans:
    """Resample the queries of one collection for all models at once.

    Args:
        scores: float64 ``(queries, models)``.
        resampling: number of resamples, and seed.
        stream: collections with different streams are resampled independently.
    """
    queries, count = len(scores), resampling.resamples
    for_signs, for_draws = np.random.default_rng([resampling.seed, stream]).spawn(2)
    drawn = [weights @ scores for weights in _draw_weights(for_draws, queries, count)]
    positive = [signs @ scores for signs in _draw_signs(for_signs, queries, count)]
    flipped = 2 * np.concatenate(positive) - scores.sum(axis=0)
    return ResampledMeans(np.concatenate(drawn) / queries, flipped / queries)


def resample_differences(
    scores: Float64Array, resampling: Resampling, on: str, measure: str
) -> PairedScores:
    """Resample the differences of two models on the collection ``on``, float64 ``(queries,)``."""
    drawn = resample(scores[:, None], resampling, random_stream(on))
    return PairedScores(scores, drawn.bootstrap[:, 0], drawn.flipped[:, 0], on, measure)


def _block_sizes(queries: int, count: int) -> Iterator[int]:
    """Yield numbers of rows that add up to ``count``, each small enough for one block of memory."""
    rows = max(1, BLOCK_CELLS // queries)
    for start in range(0, count, rows):
        yield min(rows, count - start)


def _draw_weights(rng: np.random.Generator, queries: int, count: int) -> Iterator[Float64Array]:
    """Yield blocks of bootstrap weights: how often each query is drawn, ``(rows, queries)``."""
    for rows in _block_sizes(queries, count):
        drawn = rng.integers(queries, size=(rows, queries))
        drawn += np.arange(rows)[:, None] * queries
        times = np.bincount(drawn.ravel(), minlength=rows * queries)
        yield times.reshape(rows, queries).astype(np.float64)


def _draw_signs(rng: np.random.Generator, queries: int, count: int) -> Iterator[Float64Array]:
    """Yield blocks of random signs ``(rows, queries)``: 1 for plus or 0 for minus."""
    for rows in _block_sizes(queries, count):
        coins = rng.integers(256, size=(rows, -(-queries // 8)), dtype=np.uint8)
        yield np.unpackbits(coins, axis=1, count=queries).astype(np.float64)


def paired_difference(
    parts: Sequence[PairedScores], weights: Sequence[float] = (1.0,), on: str | None = None
) -> Difference:
    """Compare two models on one collection, or in the weighted mean of several.

    Queries are resampled within each collection, and the collections are fixed. A conclusion is
    about other queries of the same collections, not about other collections.

    Args:
        parts: paired scores on each collection.
        weights: weight of each collection in the mean; they sum to 1.
        on: name of the mean; None for one collection.
    """
    first, scores = parts[0], [part.scores for part in parts]
    bootstrap = weighted_sum(weights, [part.bootstrap for part in parts])
    flipped = weighted_sum(weights, [part.flipped for part in parts])
    shares = np.concatenate([w / len(one) * one for w, one in zip(weights, scores, strict=True)])
    every = np.concatenate(scores)
    difference = float(shares.sum())
    same = SAME_MEAN * max(1.0, float(np.abs(every).max()))
    changed = np.abs(every) > SAME_SCORE
    spread = _spread(scores, weights)
    p, exact = _p_value(difference, shares[changed], flipped, same)
    low, high = _interval(difference, bootstrap, spread, same) if spread else (None, None)
    return Difference(
        on=first.on if on is None else on,
        measure=first.measure,
        a=first.a,
        b=first.b,
        difference=difference,
        low=low,
        high=high,
        p=p,
        exact=exact,
        wins=int(np.count_nonzero(every[changed] > 0)),
        ties=int(np.count_nonzero(~changed)),
        losses=int(np.count_nonzero(every[changed] < 0)),
        effect=difference / spread.deviation if spread else None,
        detectable=detectable_effect(spread.error, spread.degrees) if spread else None,
    )


def mean_with_interval(
    parts: Sequence[PairedScores], weights: Sequence[float] | None = None
) -> MeanScore:
    """Return the mean score of one model over collections, with its 95 % interval.

    Args:
        parts: scores of the model on each collection.
        weights: weight of each collection, summing to 1; None for equal weights.
    """
    test = paired_difference(parts, weights or [1 / len(parts)] * len(parts))
    return MeanScore(test.difference, test.low, test.high)


def weighted_sum(weights: Sequence[float], values: Sequence[Float64Array]) -> Float64Array:
    """Return the weighted sum of arrays of one shape, added in their order."""
    total = np.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        total += weight * value
    return total


def _p_value(
    difference: float, changed: Float64Array, flipped: Float64Array, same: float
) -> tuple[float, bool]:
    """Compute p of the paired randomisation test, and whether it is exact.

    The null hypothesis is that the two models are exchangeable on every query: each difference is
    as likely with the opposite sign. p is the share of sign flips whose mean is at least as far
    from 0 (Fisher, 1935; for retrieval: Smucker, Allan and Carterette, CIKM 2007). If the changed
    queries have no more flips than there are resamples, all are enumerated. Otherwise p is (1 +
    flips found) / (1 + resamples), so that the test keeps its level and p is never 0 (Phipson and
    Smyth, 2010). A small p means that the models differ on queries like these. This is not a test
    of equal means alone: if many small gains balance rare large losses, the differences are not
    exchangeable, and the false positive rate of 5 % becomes 5 to 8 % with many queries and up to 22
    % with 50.

    Args:
        difference: observed difference of means.
        changed: float64 ``(c,)``, contribution of each changed query to the difference.
        flipped: float64 ``(resamples,)``, differences under random signs.
        same: rounding tolerance within which two means are equal.
    """
    threshold = abs(difference) - same
    if len(changed) <= math.log2(len(flipped)):
        sums = np.zeros(1)
        for value in changed:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= threshold)), True
    extreme = int(np.count_nonzero(np.abs(flipped) >= threshold))
    return (1 + extreme) / (1 + len(flipped)), False


@dataclass(frozen=True)
class _Spread:
    """Variation of a difference of means over samples of queries.

    ``error`` is the standard error from unbiased variances, with ``degrees`` of freedom
    (Satterthwaite, 1946). ``drawn_error`` is the standard error of bootstrap means, whose variances
    divide by n. ``skew`` is the acceleration of the BCa interval, and ``deviation`` the root of the
    mean variance.
    """

    error: float
    drawn_error: float
    degrees: float
    skew: float
    deviation: float


def _spread(parts: Sequence[Float64Array], weights: Sequence[float]) -> _Spread | None:
    """Return the variation of a weighted mean of ``parts``, or None if it is unknown or zero."""
    if any(len(part) < 2 for part in parts):
        return None
    counts = np.array([len(part) for part in parts])
    centred = [part - part.mean() for part in parts]
    shares = [w / len(c) * c for w, c in zip(weights, centred, strict=True)]
    squares = np.array([float((part**2).sum()) for part in shares])
    if math.sqrt(squares.sum()) <= SAME_MEAN:
        return None
    unbiased = squares * counts / (counts - 1)
    variances = [float((part**2).sum()) / (len(part) - 1) for part in centred]
    return _Spread(
        error=math.sqrt(unbiased.sum()),
        drawn_error=math.sqrt(squares.sum()),
        degrees=float(unbiased.sum() ** 2 / (unbiased**2 / (counts - 1)).sum()),
        skew=sum(float((part * part * part).sum()) for part in shares) / (6 * squares.sum() ** 1.5),
        deviation=math.sqrt(np.dot(weights, variances)),
    )


def _interval(
    difference: float, drawn: Float64Array, spread: _Spread, same: float
) -> tuple[float, float]:
    """Compute the 95 % interval of a difference.

    Each limit is the outer one of the percentile bootstrap and of BCa (Efron, 1987), both with
    levels widened from the normal to the t distribution (Hesterberg, 2015). BCa corrects for skewed
    differences but is too narrow if few queries changed, and then the percentile bootstrap is
    better. With 20 changed queries or more, the intervals cover the true difference in 92 to 97 %
    of the simulations in the tests. With fewer, or if rare large losses may be missing from the
    sample, no bootstrap keeps its level: `Difference.few` marks the worst cases. The interval and p
    answer different questions and may disagree near 0.05.

    ``drawn`` are the differences over resampled queries, float64 ``(resamples,)``.
    """
    widest = t_quantile(1 - ALPHA / 2, spread.degrees) * spread.error / spread.drawn_error
    levels = [_NORMAL.cdf(z) for z in (-widest, widest)]
    below = np.count_nonzero([drawn < difference - same, drawn <= difference + same])
    share = below / (2 * len(drawn))
    if 0 < share < 1:
        levels += [_bca_level(z, _NORMAL.inv_cdf(share), spread.skew) for z in (-widest, widest)]
    limits = np.quantile(drawn, levels)
    return float(limits[::2].min()), float(limits[1::2].max())


def _bca_level(z: float, bias: float, skew: float) -> float:
    """Return the level of the bootstrap distribution at which BCa takes its limit."""
    shrink = 1 - skew * (bias + z)
    return _NORMAL.cdf(bias + (bias + z) / shrink) if shrink > 0 else _NORMAL.cdf(z)


def detectable_effect(error: float, degrees: float) -> float:
    """Return the minimum detectable effect: the difference found with 80 % power at 5 %, two-sided.

    It is (t(1 - 0.05 / 2) + t(0.8)) times the standard error (Bloom, 1995), within 1 % of the power
    of the t test from 10 queries on. It uses the observed spread. If few queries changed, that is a
    guess: a larger difference would change more queries. ``error`` is the standard error of the
    difference, and ``degrees``, at least 1, are its degrees of freedom.
    """
    return (t_quantile(1 - ALPHA / 2, degrees) + t_quantile(POWER, degrees)) * error


def t_quantile(level: float, degrees: float) -> float:
    """Return the quantile of Student's t at ``level``, for any ``degrees`` of freedom."""
    from scipy.special import stdtrit  # late: `list` must answer without scipy

    return float(stdtrit(degrees, level))


def adjust_p_values(family: Mapping[Name, Difference]) -> dict[Name, Difference]:
    """Return the differences of a family with p-values corrected by Holm's method."""
    p_values = holm([test.p for test in family.values()])
    return {
        name: msgspec.structs.replace(test, p_adjusted=p)
        for (name, test), p in zip(family.items(), p_values, strict=True)
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct ``p_values`` for their number: family-wise error 5 % (Holm, 1979)."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    scaled = np.arange(len(p_values), 0, -1) * np.array(p_values)[order]
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [float(p) for p in adjusted]
