"""Is one model better than another? Paired differences over queries, resampled.

Retrieval scores are awkward: most differences are exactly zero, the rest are skewed, and some
collections have 50 queries. Hence a randomisation test, which assumes no distribution, for
*whether* two models differ, and a bootstrap for *by how much*. The mean of a model is linear in
its scores, so one matrix of signs and one of weights serve every pair of models on a collection,
and every suite that holds it.
"""

import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Literal, Self, TypeVar

import msgspec
import numpy as np

from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.records import Record

ALPHA = 0.05  # two-sided
POWER = 0.8
FEW = 10  # changed queries, below which an interval says little
SAME_SCORE = 1e-9  # scores of one query that differ by less are a tie
SAME_MEAN = 1e-11  # above the rounding of any sum of 90,000 scores up to 1, in any order
BLOCK_CELLS = 1 << 19  # of a matrix of signs or weights that is held at once: 4 MB

_NORMAL = NormalDist()
Name = TypeVar("Name", bound=Hashable)


class Resampling(Record):
    """Number of resamples of the queries, and the seed (0 or more)."""

    resamples: int = 9_999
    seed: int = 0

    def check_enough(self, tests: int, sides: int = 1) -> None:
        """Refuse so few that the smallest p they can give is not significant after Holm.

        Args:
            tests: in the family.
            sides: 2 where the p of one side is doubled.

        Raises:
            BenchError: nothing could ever be told apart, so that a check would always pass.
        """
        needed = math.ceil(sides * tests / ALPHA) - 1
        if self.resamples < needed:
            raise BenchError(
                f"{self.resamples:,} resamples can find no difference among {tests} tests",
                f"--resamples {needed} or more",
            )


class Difference(Record, kw_only=True):
    """Paired difference of two models over queries, on one collection or in a mean.

    Attributes:
        on: collection, suite or "mean".
        a, b: names of the models; b is "" if a stands alone.
        difference: of the means; above 0 the first model is better.
        low, high: 95 % interval of the difference, see `_interval`; None if all queries differ
            alike (mostly not at all), or a collection has one query.
        p: two-sided, of the paired randomisation test, see `_p_value`; never 0.
        p_adjusted: p corrected for its family of tests; None if it is a test of its own.
        exact: True if p is over all flips of signs, not over a sample of them.
        wins, ties, losses: queries on which the first model is better, equal, worse.
        effect: standardised paired difference: the mean over the standard deviation (d_z of Cohen,
            1988); for a suite, over the root of the weighted mean of the collections' variances.
            None if there is no variance.
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
        """True at the 5 % level, by the adjusted p if there is one."""
        return (self.p if self.p_adjusted is None else self.p_adjusted) <= ALPHA

    @property
    def verdict_on_b(self) -> Literal["worse", "better", "cannot tell"]:
        """What b is, compared with a, at the 5 % level."""
        if not self.significant:
            return "cannot tell"
        return "worse" if self.difference > 0 else "better"

    @property
    def changed(self) -> int:
        """Queries on which the models differ."""
        return self.wins + self.losses

    @property
    def few(self) -> bool:
        """True if so few queries changed that the interval promises nothing."""
        return self.changed < FEW


class MeanScore(Record):
    """A mean over queries and its 95 % interval; None if nothing varies."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ResampledMeans:
    """Means of m models over resamples of one collection's queries, the same ones for each model.

    Attributes:
        bootstrap: float64 ``(resamples, m)``, over as many queries, drawn with replacement.
        flipped: float64 ``(resamples, m)``, over all queries, each score with a random sign.
    """

    bootstrap: Float64Array
    flipped: Float64Array


@dataclass(frozen=True)
class PairedScores:
    """First model minus second on one collection, or minus nothing.

    Attributes:
        scores: float64 ``(n,)``, by query.
        bootstrap, flipped: float64 ``(resamples,)``: columns of `Resampled`, subtracted.
        on, measure, a, b: as of `Difference`.
    """

    scores: Float64Array
    bootstrap: Float64Array
    flipped: Float64Array
    on: str = ""
    measure: str = ""
    a: str = ""
    b: str = ""

    @classmethod
    def from_columns(
        cls,
        scores: Float64Array,
        drawn: ResampledMeans,
        first: int,
        second: int | None = None,
        **labels: str,
    ) -> Self:
        """First column minus second of scores ``(n, m)``; the first alone without a second."""
        tables = (scores, drawn.bootstrap, drawn.flipped)
        columns = [t[:, first] - (0 if second is None else t[:, second]) for t in tables]
        return cls(columns[0], columns[1], columns[2], **labels)


@dataclass(frozen=True)
class ScoreMatrix:
    """Models on the same queries of one collection, with the resamples that all of them share.

    Attributes:
        columns: column of each model.
        scores: float64 ``(queries, models)``.
        gaps: why a model is not among them.
        left_out: queries that not all of them have.
        queries: ids of the rows of ``scores``.
    """

    collection: str
    measure: str
    columns: Mapping[str, int]
    scores: Float64Array
    resampling: Resampling
    gaps: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0
    queries: tuple[str, ...] = ()
    drawn: ResampledMeans | None = None

    @cached_property
    def resampled(self) -> ResampledMeans:
        """The means over resampled queries; ``drawn``, or drawn when first needed."""
        return self.drawn or resample(self.scores, self.resampling, random_stream(self.collection))

    def mean(self, name: str) -> float | None:
        """Mean of a model over the queries; None for a gap."""
        return float(self.scores[:, self.columns[name]].mean()) if name in self.columns else None

    def minus(self, a: str, b: str = "") -> PairedScores:
        """First model minus second, neither of them a gap; the first alone without a second."""
        labels = {"on": self.collection, "measure": self.measure, "a": a, "b": b}
        first, second = self.columns[a], self.columns[b] if b else None
        return PairedScores.from_columns(self.scores, self.resampled, first, second, **labels)


def random_stream(collection: str) -> int:
    """Each collection draws by itself: what else is compared does not change its figures."""
    return int.from_bytes(hashlib.sha256(collection.encode()).digest()[:8], "big")


def resample(scores: Float64Array, resampling: Resampling, stream: int = 0) -> ResampledMeans:
    """Resample the queries of one collection for all models at once.

    Args:
        scores: float64 ``(n, m)``: a row for each query, a column for each model.
        stream: collections with different streams are resampled independently.
    """
    queries, count = len(scores), resampling.resamples
    for_signs, for_draws = np.random.default_rng([resampling.seed, stream]).spawn(2)
    drawn = [weights @ scores for weights in _draw_weights(for_draws, queries, count)]
    positive = [kept @ scores for kept in _draw_signs(for_signs, queries, count)]
    flipped = 2 * np.concatenate(positive) - scores.sum(axis=0)
    return ResampledMeans(np.concatenate(drawn) / queries, flipped / queries)


def _block_sizes(queries: int, count: int) -> Iterator[int]:
    """Numbers of rows that add up to ``count``."""
    rows = max(1, BLOCK_CELLS // queries)
    for start in range(0, count, rows):
        yield min(rows, count - start)


def _draw_weights(rng: np.random.Generator, queries: int, count: int) -> Iterator[Float64Array]:
    """Times that each query is drawn: blocks of rows that sum to the number of queries."""
    for rows in _block_sizes(queries, count):
        drawn = rng.integers(queries, size=(rows, queries))
        drawn += np.arange(rows)[:, None] * queries
        times = np.bincount(drawn.ravel(), minlength=rows * queries)
        yield times.reshape(rows, queries).astype(np.float64)


def _draw_signs(rng: np.random.Generator, queries: int, count: int) -> Iterator[Float64Array]:
    """1 if the sign is plus, 0 if it is minus: blocks of fair coins."""
    for rows in _block_sizes(queries, count):
        coins = rng.integers(256, size=(rows, -(-queries // 8)), dtype=np.uint8)
        yield np.unpackbits(coins, axis=1, count=queries).astype(np.float64)


def paired_difference(
    parts: Sequence[PairedScores], weights: Sequence[float] = (1.0,), on: str | None = None
) -> Difference:
    """Compare two models on one collection, or in the weighted mean of several.

    Queries are resampled within each collection; the collections are fixed. A conclusion is about
    other queries of the same collections, not about other collections.

    Args:
        parts: by collection.
        weights: of the collections in the mean; they sum to 1.
        on: name of the mean; None for one collection.
    """
    first, scores = parts[0], [part.scores for part in parts]
    bootstrap = _weighted_sum(weights, [part.bootstrap for part in parts])
    flipped = _weighted_sum(weights, [part.flipped for part in parts])
    shares = np.concatenate([w / len(own) * own for w, own in zip(weights, scores, strict=True)])
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
    """Mean of a model over collections; ``weights`` sum to 1, and without any all are equal."""
    test = paired_difference(parts, weights or [1 / len(parts)] * len(parts))
    return MeanScore(test.difference, test.low, test.high)


def _weighted_sum(weights: Sequence[float], values: Sequence[Float64Array]) -> Float64Array:
    total = np.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        total += weight * value
    return total


def _p_value(
    difference: float, changed: Float64Array, flipped: Float64Array, same: float
) -> tuple[float, bool]:
    """p of the paired randomisation test, and whether it is exact.

    The null hypothesis is that the two models are exchangeable on every query: each difference is
    as likely with the other sign. p is the share of sign flips whose mean is at least as far from
    0 (Fisher, 1935; for retrieval: Smucker, Allan and Carterette, CIKM 2007). Where the changed
    queries have no more flips than there are resamples, all are enumerated; otherwise p is
    (1 + those found) / (1 + resamples), so that the test keeps its level and p is never 0 (Phipson
    and Smyth, 2010). A small p says that the models differ on queries like these. It is no test of
    equal means alone: where many small gains and rare large losses balance, the differences are
    not exchangeable, and 5 % becomes 5 to 8 with many queries and up to 22 with 50.

    Args:
        changed: what each query that changed adds to the difference.
        flipped: differences with random signs.
        same: rounding, within which two means are equal.
    """
    bar = abs(difference) - same
    if len(changed) <= math.log2(len(flipped)):
        sums = np.zeros(1)
        for value in changed:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= bar)), True
    extreme = int(np.count_nonzero(np.abs(flipped) >= bar))
    return (1 + extreme) / (1 + len(flipped)), False


@dataclass(frozen=True)
class _Spread:
    """Variation of a difference of means over samples of queries.

    Attributes:
        error: standard error, from unbiased variances.
        drawn_error: the same of the bootstrap, whose variances divide by n and not by n - 1.
        degrees: of freedom of ``error`` (Satterthwaite, 1946).
        skew: acceleration of the BCa interval: a sixth of the skewness of the mean.
        deviation: root of the weighted mean of the collections' variances.
    """

    error: float
    drawn_error: float
    degrees: float
    skew: float
    deviation: float


def _spread(parts: Sequence[Float64Array], weights: Sequence[float]) -> _Spread | None:
    """None if it is not known or nothing varies."""
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
    """Limits that hold the difference over all queries of this kind in 95 % of samples.

    Each limit is the outer one of the percentile bootstrap and of BCa (Efron, 1987), both with
    levels widened from the normal to the t distribution (Hesterberg, 2015): BCa corrects skewed
    differences, and is too narrow where few queries changed, where the percentile is better. With
    20 changed queries or more the simulations in the tests hold the difference 92 to 97 times in
    100. With fewer, and wherever rare large losses may be missing from the sample, no bootstrap
    holds its level: `Difference.few` marks the worst. The interval and p answer different
    questions, and near 0.05 they may disagree.

    Args:
        drawn: differences over resampled queries.
    """
    widest = t_quantile(1 - ALPHA / 2, spread.degrees) * spread.error / spread.drawn_error
    levels = [_NORMAL.cdf(z) for z in (-widest, widest)]
    below = np.count_nonzero(drawn < difference - same) + np.count_nonzero(
        drawn <= difference + same
    )
    share = below / (2 * len(drawn))
    if 0 < share < 1:
        levels += [_bca_level(z, _NORMAL.inv_cdf(share), spread.skew) for z in (-widest, widest)]
    limits = np.quantile(drawn, levels)
    return float(limits[::2].min()), float(limits[1::2].max())


def _bca_level(z: float, bias: float, skew: float) -> float:
    """Level of the bootstrap distribution at which BCa takes its limit; its own if undefined."""
    shrink = 1 - skew * (bias + z)
    return _NORMAL.cdf(bias + (bias + z) / shrink) if shrink > 0 else _NORMAL.cdf(z)


def detectable_effect(error: float, degrees: float) -> float:
    """Minimum detectable effect: the true difference found, at 5 % two-sided, 80 times in 100.

    (t(1 - 0.05 / 2) + t(0.8)) times the standard error (Bloom, 1995), within 1 % of the power of
    the t test from 10 queries on. It takes the spread that was observed: where few queries changed
    that is a guess, and a larger difference would change more queries.

    Args:
        error: standard error of the difference.
        degrees: of freedom of the standard error; at least 1.
    """
    return (t_quantile(1 - ALPHA / 2, degrees) + t_quantile(POWER, degrees)) * error


def t_quantile(level: float, degrees: float) -> float:
    """Quantile of Student's t distribution; ``degrees`` of freedom need not be whole."""
    from scipy.special import stdtrit  # late: `list` must answer without scipy

    return float(stdtrit(degrees, level))


def adjust_p_values(family: Mapping[Name, Difference]) -> dict[Name, Difference]:
    """The differences of a family of tests with their p of Holm."""
    p_values = holm([test.p for test in family.values()])
    return {
        name: msgspec.structs.replace(test, p_adjusted=p)
        for (name, test), p in zip(family.items(), p_values, strict=True)
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p of a family of tests: at most 5 % chance of any false one (Holm, 1979)."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
