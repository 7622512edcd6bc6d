"""Bootstrap-t tests for skewed differences, allowing for rare large ones missing from the sample.

A sample may lack rare large differences. Then the mean leans to the other side, exactly when its
standard error looks small. Sign flips, the t test and the percentile bootstrap ignore this. Here
the mean is divided by its standard error in every resample (bootstrap-t; Efron, 1982; Hall, 1988).
No resample shows differences that the sample lacks, so each collection is assumed to lack as much
as `UNSEEN`. The price is small except on few queries, and the allowance is sufficient if typical
gains are a fraction of the measure's range: the simulation in the tests has the figures. The same
holds for gains that hide rare large losses: sign flips around a margin, the t bound and the
percentile bootstrap rule out losses too often.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.comparing.statistics import FEW, SAME_MEAN, SAME_SCORE, Resampling
from foundation.arrays import Float64Array

LEVEL = 0.95  # one-sided confidence of `largest_loss`
UNSEEN = 1.0  # queries missing from the sample that gain or lose the full measure
ROUNDING = 1e-12  # rounding of a variance, relative to the mean square
BLOCK_DRAWS = 1 << 19  # draws in memory at once: 4 MB


@dataclass(frozen=True)
class StudentisedMean:
    """Mean of differences with its standard error, and both in every resample.

    Attributes:
        mean: mean difference.
        error: its standard error.
        changed: number of queries on which the models differ.
        known: False if a collection has one query, so that the spread is unknown.
        unseen: gain or loss that the sample may lack, in units of the measure.
        means, errors: float64 ``(resamples,)``; an error is 0 if a resample has no spread.
    """

    mean: float
    error: float
    changed: int
    known: bool
    unseen: float
    means: Float64Array
    errors: Float64Array

    @property
    def is_inconclusive(self) -> bool:
        """True if too few queries changed for any conclusion."""
        return self.changed < FEW or not self.known


def studentise(differences: Float64Array, resampling: Resampling) -> StudentisedMean:
    """Resample the queries of one collection.

    Args:
        differences: float64 ``(queries,)``, candidate minus baseline by a measure from 0 to 1.
        resampling: number of resamples, and seed.
    """
    means, errors = _resample(differences, resampling)
    return StudentisedMean(
        mean=float(differences.mean()),
        error=float(differences.std()) / math.sqrt(len(differences)),
        changed=int(np.count_nonzero(np.abs(differences) > SAME_SCORE)),
        known=len(differences) > 1,
        unseen=unseen_allowance([len(differences)]),
        means=means,
        errors=errors,
    )


def combine_means(parts: Sequence[StudentisedMean], weights: Sequence[float]) -> StudentisedMean:
    """Return the weighted mean of several collections, each resampled separately.

    Args:
        parts: mean of each collection.
        weights: weight of each collection; they sum to 1.
    """
    pairs = list(zip(weights, parts, strict=True))
    return StudentisedMean(
        mean=sum(weight * part.mean for weight, part in pairs),
        error=math.sqrt(sum((weight * part.error) ** 2 for weight, part in pairs)),
        changed=sum(part.changed for part in parts),
        known=all(part.known for part in parts),
        unseen=sum(weight * part.unseen for weight, part in pairs),
        means=sum((w * part.means for w, part in pairs), np.zeros(1)),
        errors=np.sqrt(sum(((w * part.errors) ** 2 for w, part in pairs), np.zeros(1))),
    )


def unseen_allowance(queries: Sequence[int], weights: Sequence[float] = (1.0,)) -> float:
    """Return the gain or loss that a mean may lack.

    Args:
        queries: number of queries of each collection.
        weights: weight of each collection; they sum to 1.
    """
    return sum(weight * UNSEEN / count for weight, count in zip(weights, queries, strict=True))


def loss_p_value(difference: StudentisedMean) -> float:
    """Return p of a loss by bootstrap-t, doubled as for a two-sided test.

    It is 1 if the mean of ``difference`` lost no more than the sample may lack, or is inconclusive.
    """
    loss = -difference.mean - difference.unseen
    if loss <= 0 or difference.is_inconclusive:
        return 1.0
    if difference.error <= SAME_MEAN:
        return 2 / (1 + len(difference.means))
    further = difference.mean - difference.means >= loss / difference.error * difference.errors
    further |= difference.errors <= SAME_MEAN  # a mean without spread may be anything
    return min(1.0, 2 * (1 + int(np.count_nonzero(further))) / (1 + len(difference.means)))


def largest_loss(difference: StudentisedMean) -> float | None:
    """Return the upper confidence limit of the loss (95 %, one-sided): larger losses are ruled out.

    Below 0, a gain is certain.

    Args:
        difference: mean with its resamples.

    Returns:
        None if nothing is ruled out: too few queries changed, a collection has one query, or too
            many
        resamples have no spread.
    """
    if difference.is_inconclusive:
        return None
    if difference.error <= SAME_MEAN:
        return difference.unseen - difference.mean
    quantile = _upper_quantile(difference)
    if not math.isfinite(quantile):
        return None
    return quantile * difference.error - difference.mean + difference.unseen


def _upper_quantile(difference: StudentisedMean) -> float:
    """Return the upper quantile of the studentised distances, which may be infinite."""
    flat = difference.errors <= SAME_MEAN
    distances = (difference.means - difference.mean) / np.where(flat, 1.0, difference.errors)
    studentised = np.where(flat, np.inf, distances)
    place = min(len(studentised) - 1, math.ceil(LEVEL * len(studentised)))
    return float(np.partition(studentised, place)[place])


def _resample(
    differences: Float64Array, resampling: Resampling
) -> tuple[Float64Array, Float64Array]:
    """Return mean and standard error in each resample, float64 ``(resamples,)`` each.

    Unchanged queries add nothing to a sum, so only their number is drawn.
    """
    content = hashlib.sha256(np.ascontiguousarray(differences).tobytes()).digest()
    rng = np.random.default_rng([resampling.seed, int.from_bytes(content[:8], "big")])
    changed, count = differences[differences != 0], len(differences)
    times = rng.binomial(count, len(changed) / count, size=resampling.resamples)
    rows = max(1, BLOCK_DRAWS // max(1, len(changed)))
    sums, squares = np.zeros(len(times)), np.zeros(len(times))
    for start in range(0, len(times) if len(changed) else 0, rows):
        block = slice(start, start + rows)
        owner = np.repeat(np.arange(len(times[block])), times[block])
        values = changed[rng.integers(len(changed), size=len(owner))]
        sums[block] = np.bincount(owner, values, len(times[block]))
        squares[block] = np.bincount(owner, values * values, len(times[block]))
    means, mean_squares = sums / count, squares / count
    variances = mean_squares - means**2
    variances[variances <= ROUNDING * mean_squares] = 0.0
    return means, np.sqrt(variances / count)
