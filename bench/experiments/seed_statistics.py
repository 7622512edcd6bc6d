"""Statistics of scores over training seeds and queries.

A score is a mean over training seeds and queries. All seeds answer the same queries, so a resample
draws seeds and, for all of them alike, queries. The variance of a mean difference is seeds / S +
queries / Q + (seeds x queries) / (S Q). Plain resampling fails with few seeds: its variance is (S -
1) / S of the true one, and it counts the third part three times. Here each level is resampled with
one unit fewer than it has (McCarthy and Snowden, 1985), and the third part is subtracted where it
is counted too often (Owen, 2007). The interval uses the t distribution with Satterthwaite's (1946)
degrees of freedom. The variance has a closed form; the tests also draw it. In simulations with 150
queries the interval covers the true mean in 93 to 96 of 100 cases with 3 seeds, 94 to 95 with 5,
and 88 to 95 with 2; an interval over queries alone in 22 to 96.

If queries vary more than seeds, these degrees of freedom are almost Q - 1. But a t test with few
groups has S - 1 (Donald and Lang, 2007). Reports therefore print p as "< .001", "< .01" or "< .05",
the smallest level that a t test over the seeds' means alone reaches.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from bench.comparing.statistics import ALPHA, Estimate, detectable_effect, t_quantile
from foundation.arrays import Float64Array

TINY = 1e-12


class SeedEstimate(Estimate, kw_only=True):
    """A mean over collections, seeds and queries, with its interval over other seeds and queries.

    Attributes:
        value: the mean; ``mean`` in JSON.
        p: two-sided p-value of a mean of 0; None if there is no interval.
        p_seeds: two-sided p-value of a t test over the seeds' means alone, whose degrees of freedom
            are the seeds less one; None with one seed. p is not printed below what it supports.
        seeds_sd: standard deviation of the seeds' means; None with one seed.
        detectable: smallest mean that is detected with a power of 80 % at 5 %, two-sided.
    """

    value: float = msgspec.field(name="mean")
    p: float | None = None
    p_seeds: float | None = None
    seeds_sd: float | None = None
    detectable: float | None = None


def estimate_interval(
    parts: Sequence[Float64Array], weights: Sequence[float] = (1.0,)
) -> SeedEstimate:
    """Estimate the mean of several collections, with its 95 % interval and p-value.

    Args:
        parts: by collection, float64 ``(seeds, queries)``, with the same seeds in the same order:
            scores of a recipe, or differences of two.
        weights: weights of the collections in the mean; they sum to 1.
    """
    of_seeds = _seed_means(parts, weights)
    mean = float(of_seeds.mean())
    if len(of_seeds) < 2 or min(part.shape[1] for part in parts) < 2:
        return SeedEstimate(value=mean)
    deviation = float(of_seeds.std(ddof=1))
    error, degrees = standard_error(parts, weights)
    if error <= TINY:
        return SeedEstimate(value=mean, seeds_sd=deviation)
    count = len(of_seeds)
    t_of_seeds = mean / max(deviation, TINY) * math.sqrt(count)
    reach = t_quantile(1 - ALPHA / 2, degrees) * error
    return SeedEstimate(
        value=mean,
        low=mean - reach,
        high=mean + reach,
        p=_two_sided_p(mean / error, degrees),
        p_seeds=_two_sided_p(t_of_seeds, count - 1),
        seeds_sd=deviation,
        detectable=detectable_effect(error, degrees),
    )


def _two_sided_p(t: float, degrees: float) -> float:
    from scipy.special import stdtr  # imported late, so that `list` works without scipy

    return float(2 * stdtr(degrees, -abs(t)))


def standard_error(
    parts: Sequence[Float64Array], weights: Sequence[float] = (1.0,)
) -> tuple[float, float]:
    """Return the standard error of a mean and its degrees of freedom, by analysis of variance.

    The seeds' part is the variance of the seeds' means over the number of seeds. It includes the
    interaction of seeds with queries. The queries' part is the rest of the variance of the queries'
    means.

    Args:
        parts: by collection, float64 ``(seeds, queries)``, as for `estimate_interval`.
        weights: weights of the collections in the mean; they sum to 1.
    """
    of_seeds = _seed_means(parts, weights)
    count = len(of_seeds)
    seeds = float(of_seeds.var(ddof=1)) / count
    queries, squares = 0.0, seeds**2 / (count - 1)
    for part, share in zip(parts, weights, strict=True):
        of_queries = part.mean(axis=0)
        rest = part - part.mean(axis=1, keepdims=True) - of_queries + part.mean()
        n = len(of_queries)
        raw = float(of_queries.var(ddof=1)) / n * share**2
        twice = float((rest**2).sum()) / ((count - 1) * (n - 1)) / (count * n) * share**2
        queries += max(0.0, raw - twice)
        squares += raw**2 / (n - 1) + twice**2 / ((count - 1) * (n - 1))
    total = seeds + queries
    degrees = max(1.0, total**2 / squares) if squares else 1.0
    return math.sqrt(total), degrees


def _seed_means(parts: Sequence[Float64Array], weights: Sequence[float]) -> Float64Array:
    """Return the mean over collections for each seed, float64 ``(seeds,)``."""
    means: Float64Array = np.average([part.mean(axis=1) for part in parts], axis=0, weights=weights)
    return means
