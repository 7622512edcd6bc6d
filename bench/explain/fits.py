"""How well a prediction agrees with what was given: a likelihood, and the share that agrees.

The error of a vector is ``|given - predicted|^2 / |predicted|^2``. Rounding and arithmetic of lower
precision spread its logarithm around a level that is the same for all texts; a few texts may be
anything. So the likelihood is that of a normal distribution of the logarithm around the best of a
grid of levels, mixed with a uniform one, times the density of a vector at that distance, which
falls with the distance as in a space of few dimensions. A set-up *fits* if nearly all texts lie
within the spread of a level that int8 can explain.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from foundation.arrays import Float32Array, Float64Array

FLOOR, CEILING = 1e-13, 10.0
SPREAD = 0.6  # standard deviation of the decimal logarithm of errors of one precision
LEVELS = np.arange(-12.0, -1.9, 0.25)  # of the logarithm; the last is that of int8 arithmetic
WITHIN = 1.5  # decades above a level that still agree
WORST = -1.3  # logarithm of an error above which nothing agrees: a cosine of 0.975
OUTLIERS = 0.01
DEGREES = 8  # of freedom of an error, few: neighbouring dimensions and scores are not independent
SHARE = 0.95  # of the texts, queries or numbers must agree
ROUGH = -5.2  # logarithm of a typical error that leaves room for another small cause
# The error's logarithm up to which a precision explains it.
PRECISIONS = (("float32", -8.5), ("float16", -6.3), ("bfloat16", -3.4), ("int8", WORST))


@dataclass(frozen=True)
class Fit:
    """Agreement of one set-up with the evidence.

    Attributes:
        likelihood: natural logarithm.
        share: part of the items that agree, from 0 to 1.
        errors: float64 ``(n,)``, one for each text, query or number; smaller is better.
        level: decimal logarithm of the typical error of vectors and runs; None for scores.
    """

    likelihood: float
    share: float
    errors: Float64Array
    level: float | None = None

    @property
    def fits(self) -> bool:
        """True if nearly all items agree."""
        return self.share >= SHARE

    @property
    def is_rough(self) -> bool:
        """True if the typical error is larger than rounding to 16 bits makes it."""
        return self.level is not None and self.level > ROUGH

    @property
    def precision(self) -> str:
        """The precision whose arithmetic or rounding the typical error is like; "" if none."""
        if self.level is None:
            return ""
        return next((name for name, most in PRECISIONS if self.level <= most), "")

    def beats(self, other: "Fit") -> bool:
        """True if this is closer on significantly more of the items on which the two differ.

        Args:
            other: fit of another set-up to the same items.
        """
        ours, others = (np.log10(np.maximum(fit.errors, FLOOR)) for fit in (self, other))
        closer, farther = int((others - ours > 0.1).sum()), int((ours - others > 0.1).sum())
        if not closer or self.likelihood - other.likelihood < 3.0:
            return False
        least = 0.5 if self.level is None or not other.fits else 0.8
        enough = binomtest(closer, closer + farther, least, alternative="greater").pvalue < 0.05
        return enough or (closer >= 1 and farther == 0)

    def equals(self, other: "Fit") -> bool:
        """True if the evidence cannot tell the two apart.

        Args:
            other: fit of another set-up to the same items.
        """
        ours, others = (np.log10(np.maximum(fit.errors, FLOOR)) for fit in (self, other))
        both_tiny = np.maximum(ours, others) < -9
        return bool(np.all((np.abs(ours - others) < 0.01) | both_tiny))


def together(fits: list[Fit]) -> Fit:
    """Return the fit to several kinds of evidence at once; the worst share counts.

    Args:
        fits: of one set-up, one for each kind of evidence.
    """
    levels = [fit.level for fit in fits if fit.level is not None]
    return Fit(
        sum(fit.likelihood for fit in fits),
        min(fit.share for fit in fits),
        np.concatenate([fit.errors for fit in fits]),
        max(levels) if levels else None,
    )


def noise_fit(errors: Float64Array) -> Fit:
    """Return the fit of relative squared errors under the noise model.

    Args:
        errors: float64 ``(n,)``, at least one.
    """
    logs = np.log10(np.clip(errors, FLOOR, CEILING))
    width = np.log10(CEILING) - np.log10(FLOOR)
    deviations = (logs[:, None] - LEVELS) / SPREAD
    normal = np.exp(-0.5 * deviations**2) / (SPREAD * np.sqrt(2 * np.pi))
    sums = np.log((1 - OUTLIERS) * normal + OUTLIERS / width).sum(axis=0)
    best = int(sums.argmax())
    share = float((logs <= min(LEVELS[best] + WITHIN, WORST)).mean())
    density = -0.5 * DEGREES * np.log(10.0) * logs.sum()
    return Fit(float(sums[best] + density), share, errors, float(np.median(logs)))


def vector_errors(given: Float32Array, predicted: Float32Array) -> Float64Array:
    """Return the relative squared error of each vector, float64 ``(n,)``; 10 for another dimension.

    Whole numbers, as quantised vectors are, are first brought to the predicted scale, dimension by
    dimension.

    Args:
        given: ``(n, dim)`` of any number type.
        predicted: float32 ``(n, dim)``.
    """
    if given.shape != predicted.shape:
        return np.full(len(predicted), CEILING)
    compared, target = given.astype(np.float64), predicted.astype(np.float64)
    if np.issubdtype(given.dtype, np.integer):
        if len(np.unique(given)) <= 2:
            compared = np.where(compared > 0, 1.0, -1.0)
        else:
            return _code_errors(compared, target)
    squares = np.maximum((target**2).sum(axis=1), FLOOR)
    errors: Float64Array = ((compared - target) ** 2).sum(axis=1) / squares
    return errors


def _code_errors(codes: Float64Array, target: Float64Array) -> Float64Array:
    """Return how far codes are from a linear function of the target in each dimension."""
    codes, centred = codes - codes.mean(axis=0), target - target.mean(axis=0)
    slopes = (centred * codes).sum(axis=0) / np.maximum((centred**2).sum(axis=0), FLOOR)
    squares = max(float((codes**2).sum(axis=1).mean()), FLOOR)
    errors: Float64Array = ((codes - centred * slopes) ** 2).sum(axis=1) / squares
    return errors


def score_errors(
    given: Float64Array, predicted: Float64Array, queries: Any, ranks_only: bool
) -> Float64Array:
    """Return the error of each query's scores, relative to their spread; float64 ``(q,)``.

    Given scores may be a linear function of predicted ones, the same for all queries.

    Args:
        given, predicted: float64 ``(n,)``, of pairs of a query and a document.
        queries: int64 ``(n,)``, number of each pair's query, from 0 on without gaps.
        ranks_only: compare ranks within a query, for runs whose scores are only ranks.
    """
    if ranks_only:
        given, predicted = _ranks(given, queries), _ranks(predicted, queries)
    spread = given.std()
    if spread == 0 or predicted.std() == 0:
        return np.full(int(queries.max()) + 1, CEILING)
    slope = float(((given - given.mean()) * (predicted - predicted.mean())).mean())
    slope /= float(predicted.var())
    if slope <= 0:
        return np.full(int(queries.max()) + 1, CEILING)
    fitted = given.mean() + slope * (predicted - predicted.mean())
    counts = np.bincount(queries)
    squares = np.bincount(queries, weights=(given - fitted) ** 2).astype(np.float64)
    relative: Float64Array = squares / counts / spread**2
    return relative


def _ranks(scores: Float64Array, queries: Any) -> Float64Array:
    ranks = np.empty(len(scores))
    for query in range(int(queries.max()) + 1):
        rows = np.flatnonzero(queries == query)
        ranks[rows] = np.argsort(np.argsort(scores[rows], kind="stable"), kind="stable")
    return ranks


def value_fit(given: Float64Array, predicted: Float64Array, tolerances: Float64Array) -> Fit:
    """Return the fit of scores, each of which agrees within its tolerance.

    Args:
        given, predicted, tolerances: float64 ``(n,)``.
    """
    errors = np.abs(given - predicted) / tolerances
    agree = errors <= 1 + 1e-9
    # Mostly anywhere within the tolerance; else Laplace with a scale of 0.05.
    elsewhere = 0.02 * 10 * np.exp(-np.abs(given - predicted) / 0.05)
    density = np.where(agree, 0.98 / (2 * tolerances), 0.0) + elsewhere
    return Fit(float(np.log(density).sum()), float(agree.mean()), np.maximum(errors, 1.0))
