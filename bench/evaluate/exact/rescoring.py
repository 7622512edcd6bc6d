"""Scores in float64, rounded to float32: the ones that decide."""

from itertools import pairwise

import numpy as np

from foundation.arrays import Float32Array, Float64Array, IntArray

RESCORE_BYTES = 1 << 20  # float64 products at a time and thread: fits a second-level cache


def exact_scores(
    vectors: Float32Array, rows: IntArray, doubles: Float64Array, queries: IntArray
) -> Float32Array:
    """Dot products of rows with queries, float64 rounded to float32, ``(len(rows),)``.

    Products of float32 values are exact in float64, and numpy's pairwise sum over a contiguous
    axis depends on its length alone: equal vectors have equal scores wherever they stand.
    """
    scores = np.empty(len(rows), np.float32)
    gathered, products = _buffers(len(rows), vectors.shape[1])
    for start in range(0, len(rows), max(1, len(products))):
        some = slice(start, start + len(products))
        terms = _gather(vectors, rows[some], gathered, products)
        terms *= doubles[queries[some]]
        scores[some] = terms.sum(axis=1)
    return scores


def exact_scores_by_query(
    vectors: Float32Array,
    rows: IntArray,
    doubles: Float64Array,
    queries: IntArray,
    distance: Float64Array,
) -> Float32Array:
    """The scores of `exact_scores`, of pairs that are sorted by query, in half the time.

    BLAS sums in an order of its own. Where that may change the rounded score, the order of
    `exact_scores` decides.

    Args:
        distance: of two sums in different orders, float64, for each query: `double_distance`.
    """
    sums = np.empty(len(rows))
    gathered, products = _buffers(len(rows), vectors.shape[1])
    cuts = np.searchsorted(queries, np.arange(len(doubles) + 1)).tolist()
    for query, (first, last) in zip(doubles, pairwise(cuts), strict=True):
        for start in range(first, last, max(1, len(products))):
            some = slice(start, min(start + len(products), last))
            np.matmul(_gather(vectors, rows[some], gathered, products), query, out=sums[some])
    off = distance[queries]
    scores = (sums - off).astype(np.float32)
    unsure = np.flatnonzero(scores != (sums + off).astype(np.float32))
    scores[unsure] = exact_scores(vectors, rows[unsure], doubles, queries[unsure])
    return scores


def _buffers(rows: int, dim: int) -> tuple[Float32Array, Float64Array]:
    """Space for some rows as they are, and in float64."""
    shape = min(rows, max(1, RESCORE_BYTES // (8 * dim))), dim
    return np.empty(shape, np.float32), np.empty(shape)


def _gather(
    vectors: Float32Array, rows: IntArray, gathered: Float32Array, products: Float64Array
) -> Float64Array:
    """Rows in float64, in the space for them."""
    # The rows exist; mode "raise" would copy them through a buffer.
    np.take(vectors, rows, axis=0, out=gathered[: len(rows)], mode="clip")
    products[: len(rows)] = gathered[: len(rows)]
    return products[: len(rows)]
