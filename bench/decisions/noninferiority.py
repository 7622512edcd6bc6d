"""Which loss of a mean is ruled out? A one-sided bound that allows for skew.

A model that loses much on few queries has skewed differences, and a sample may miss the losses: the
mean looks better exactly where its standard error looks small. Sign flips around a margin, the t
bound and the percentile bootstrap take no note of it, and rule losses out too often. Here the mean
is divided by its standard error in every resample (bootstrap-t; Efron, 1982; Hall, 1988). No
resample shows a loss that the sample missed, so the bound allows in each collection for as many
unseen total losses as `UNSEEN` says: it costs little but where few queries are known.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from bench.decisions.statistics import FEW, SAME_MEAN, SAME_SCORE, Floats, Resampling

LEVEL = 0.95  # one-sided
UNSEEN = 1.0  # queries of a collection that lose all
BLOCK_CELLS = 1 << 19  # of drawn queries that are held at once: 4 MB


def largest_loss(
    parts: Sequence[Floats],
    weights: Sequence[float] = (1.0,),
    resampling: Resampling = Resampling(),  # noqa: B008 - frozen
) -> float | None:
    """The loss of a weighted mean beyond which losses are ruled out at 95 %, one-sided.

    Below 0, a gain is certain. Queries are resampled within each collection.

    Args:
        parts: by collection, float64 ``(n,)``: candidate minus baseline, by query; a measure
            from 0 to 1.
        weights: of the collections in the mean; they sum to 1.

    Returns:
        None where nothing is ruled out: fewer than `FEW` queries changed, a collection has one
        query, or too many resamples have no spread.
    """
    changed = sum(int(np.count_nonzero(np.abs(part) > SAME_SCORE)) for part in parts)
    if changed < FEW or any(len(part) < 2 for part in parts):
        return None
    means, errors = 0.0, 0.0
    drawn_means = np.zeros(resampling.resamples)
    drawn_errors = np.zeros(resampling.resamples)
    for weight, part in zip(weights, parts, strict=True):
        mean, error = part.mean(), part.var() / len(part)
        drawn_mean, drawn_error = _drawn(part, resampling)
        means, errors = means + weight * mean, errors + weight**2 * error
        drawn_means += weight * drawn_mean
        drawn_errors += weight**2 * drawn_error
    unseen = sum(w * UNSEEN / len(part) for w, part in zip(weights, parts, strict=True))
    if errors <= SAME_MEAN**2:
        return float(unseen - means)
    quantile = _quantile(drawn_means - means, np.sqrt(drawn_errors))
    if not np.isfinite(quantile):
        return None
    return float(quantile * np.sqrt(errors) - means + unseen)


def _drawn(part: Floats, resampling: Resampling) -> tuple[Floats, Floats]:
    """Mean and squared standard error in each resample: float64 ``(resamples,)`` each."""
    content = hashlib.sha256(np.ascontiguousarray(part).tobytes()).digest()
    rng = np.random.default_rng([resampling.seed, int.from_bytes(content[:8], "big")])
    blocks = [_moments(part[rows]) for rows in _rows(rng, len(part), resampling.resamples)]
    return np.concatenate([mean for mean, _ in blocks]), np.concatenate([e for _, e in blocks])


def _moments(values: Floats) -> tuple[Floats, Floats]:
    return values.mean(axis=1), values.var(axis=1) / values.shape[1]


def _rows(rng: np.random.Generator, queries: int, count: int) -> Iterator[np.ndarray]:
    """Queries drawn with replacement: blocks of ``(rows, queries)``."""
    rows = max(1, BLOCK_CELLS // queries)
    for start in range(0, count, rows):
        yield rng.integers(queries, size=(min(rows, count - start), queries))


def _quantile(distances: Floats, errors: Floats) -> float:
    """Upper quantile of the studentised distances; a resample without spread may be anything."""
    flat = errors <= SAME_MEAN
    studentised = np.where(flat, np.inf, distances / np.where(flat, 1.0, errors))
    place = min(len(studentised) - 1, int(np.ceil(LEVEL * len(studentised))))
    return float(np.partition(studentised, place)[place])
