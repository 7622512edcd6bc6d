"""Scores in float64, rounded to float32: the ones that decide."""

import numpy as np

from foundation.arrays import Float32Array, Float64Array, Int64Array

RESCORE_BYTES = 1 << 20  # float64 products at a time and thread: fits a second-level cache


def exact_scores(
    vectors: Float32Array, rows: Int64Array, doubles: Float64Array, queries: Int64Array
) -> Float32Array:
    """Dot products of rows with queries, float64 rounded to float32, ``(len(rows),)``.

    Products of float32 values are exact in float64, and numpy's pairwise sum over a contiguous
    axis depends on its length alone: equal vectors have equal scores wherever they stand.
    """
    scores = np.empty(len(rows), np.float32)
    step = max(1, RESCORE_BYTES // (8 * vectors.shape[1]))
    shape = min(step, len(rows)), vectors.shape[1]
    gathered, products = np.empty(shape, np.float32), np.empty(shape)
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        count = len(rows[some])
        # The rows exist; mode "raise" would copy them through a buffer.
        np.take(vectors, rows[some], axis=0, out=gathered[:count], mode="clip")
        products[:count] = gathered[:count]
        products[:count] *= doubles[queries[some]]
        scores[some] = products[:count].sum(axis=1)
    return scores
