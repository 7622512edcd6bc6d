"""Hits of a search, and the canonical order of a ranking.

An entry of a ranking is compared by one integer key, so that rankings can be sorted and partitioned
without Python objects.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array, UInt64Array
from foundation.errors import BenchError

MAX_RANK = 2**32 - 2
SORTED_CELLS = 1 << 16  # at a time


@dataclass(frozen=True)
class Hits:
    """Up to k neighbours of each of q queries.

    A missing neighbour has row -1, which must never be used as a position, and score ``-inf``.

    Attributes:
        scores: float32 ``(q, k)``, inner products, best first.
        rows: int64 ``(q, k)``, row numbers of the corpus.
    """

    scores: Float32Array
    rows: Int64Array

    @classmethod
    def of(cls, scores: Float32Array, rows: Int64Array) -> "Hits":
        """Return hits with ``-inf`` in place of the ``scores`` of missing ``rows``."""
        return cls(np.where(rows >= 0, scores, np.float32(-np.inf)), rows)

    @classmethod
    def empty(cls, queries: int, k: int) -> "Hits":
        """Return hits of ``queries`` queries to depth ``k`` that are all missing."""
        return cls(np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int64))


def canonical_order(scores: npt.ArrayLike, tie_rank: npt.ArrayLike) -> Int64Array:
    """Return positions in canonical order along the last axis, ``(..., k)``.

    The order is by score, then by ``tie_rank``, both descending. If ``tie_rank`` is the rank of the
    document id in byte order, this is trec_eval's order. Scores are compared as float32.

    Args:
        scores: ``(..., k)``.
        tie_rank: integers ``(..., k)``, -1 for an unfilled entry, which comes last.

    Raises:
        BenchError: a filled entry has the score NaN.
    """
    keys = order_keys(np.asarray(scores, dtype=np.float32), np.asarray(tie_rank, dtype=np.int64))
    return np.argsort(~keys, axis=-1, kind="stable")


def sort_canonically(hits: Hits, tie_rank: Int64Array, k: int) -> Hits:
    """Return hits in canonical order, cut or padded to depth k.

    Args:
        hits: hits of any width. Entries with row -1 are unfilled, whatever their score.
        tie_rank: int64 ``(n,)``, for each row of the corpus.
        k: depth.

    Raises:
        BenchError: a score is NaN.
    """
    ranks = np.full(hits.rows.shape, -1, np.int64)
    ranks[hits.rows >= 0] = tie_rank[hits.rows[hits.rows >= 0]]
    best = canonical_order(hits.scores, ranks)[:, :k]
    rows = np.take_along_axis(hits.rows, best, axis=1)
    scores = np.take_along_axis(hits.scores, best, axis=1)
    missing = ((0, 0), (0, k - rows.shape[1]))
    rows = np.pad(rows, missing, constant_values=-1)
    scores = np.pad(scores, missing, constant_values=-np.inf)
    return Hits.of(scores, rows)


def multiply_by_similarity(
    hits: Hits, queries: Float32Array, vectors_of: Callable[[Int64Array], Float32Array]
) -> Hits:
    """Multiply scores by the inner product of query and document, in float64; keep the order.

    Args:
        hits: hits of any search.
        queries: float32 ``(q, dim)``.
        vectors_of: maps rows of the corpus, int64 ``(n,)``, to vectors, float32 ``(n, dim)``.
    """
    similarities = _similarities(hits, queries, vectors_of)
    filled, scores = hits.rows >= 0, hits.scores.copy()
    scores[filled] = scores[filled] * similarities[filled]
    return Hits(scores, hits.rows)


def replace_by_similarity(
    hits: Hits, queries: Float32Array, vectors_of: Callable[[Int64Array], Float32Array]
) -> Hits:
    """Replace scores by the inner product of query and document, in float64; keep the order.

    Arguments are those of `multiply_by_similarity`.
    """
    return Hits.of(_similarities(hits, queries, vectors_of).astype(np.float32), hits.rows)


def _similarities(
    hits: Hits, queries: Float32Array, vectors_of: Callable[[Int64Array], Float32Array]
) -> Float64Array:
    """Return the inner product of each query with its hits, 0 where one is missing."""
    found = np.zeros(hits.rows.shape)
    for line, rows, query in zip(found, hits.rows, queries, strict=True):
        filled = rows >= 0
        line[filled] = vectors_of(rows[filled]).astype(np.float64) @ query.astype(np.float64)
    return found


def exclude_documents(hits: Hits, excluded: Int64Array, k: int) -> Hits:
    """Return hits of depth k without the documents that are excluded for each query.

    Args:
        hits: in canonical order, of depth k + w or more.
        excluded: int64 ``(q, w)``, rows of documents, or -1; ``(q,)`` for one of each query.
        k: depth.
    """
    excluded = excluded.reshape(len(hits.rows), -1)
    if hits.rows.shape[1] < k + excluded.shape[1]:
        raise ValueError(f"depth {hits.rows.shape[1]} leaves fewer than {k} after exclusion")
    is_excluded = _are_among(hits.rows, excluded)
    kept = np.argsort(is_excluded, axis=1, kind="stable")[:, :k]
    return Hits(
        np.take_along_axis(hits.scores, kept, axis=1), np.take_along_axis(hits.rows, kept, axis=1)
    )


def recall_at_k(hits: Hits, truth: Hits, k: int) -> Float64Array:
    """Return the share of the true top k among the found top k, float64 ``(q,)``.

    It is 1 for a query without true hits.

    Args:
        hits: found hits.
        truth: hits of exact search.
        k: depth of the comparison.
    """
    true_rows = truth.rows[:, :k]
    found, total = _are_among(true_rows, hits.rows[:, :k]).sum(axis=1), (true_rows >= 0).sum(axis=1)
    shares: Float64Array = np.ones(len(total))
    np.divide(found, total, out=shares, where=total > 0)
    return shares


def _are_among(rows: Int64Array, others: Int64Array) -> BoolArray:
    """Return which ``rows`` of each query, ``(q, k)``, are filled and among its ``others``."""
    width = int(max(rows.max(initial=0), others.max(initial=0))) + 1
    query = np.arange(len(rows))[:, None] * width
    return np.isin(rows + query, (others + query)[others >= 0]) & (rows >= 0)


def order_keys(scores: Float32Array, tie_rank: Int64Array) -> UInt64Array:
    """Return integers that sort like (score, tie rank), uint64, 0 for an unfilled entry.

    The upper half is the score's bits made monotone (negative: all flipped, else: the sign), the
    lower half the rank.

    Args:
        scores: float32, any shape.
        tie_rank: integers of the same shape, -1 for an unfilled entry.

    Raises:
        BenchError: the score of a filled entry is NaN.
    """
    filled = tie_rank >= 0
    if np.isnan(scores[filled]).any():
        raise BenchError("a score is NaN: such a ranking has no order")
    if tie_rank.max(initial=0) > MAX_RANK:
        raise ValueError(f"tie ranks are at most {MAX_RANK}")
    bits = (scores + np.float32(0)).view(np.uint32)  # -0.0 + 0.0 is 0.0: one zero, one key
    monotone = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    keys = (monotone.astype(np.uint64) << np.uint64(32)) | tie_rank.astype(np.uint64)
    return np.where(filled, keys, np.uint64(0))


def scores_of_keys(keys: UInt64Array) -> Float32Array:
    """Return the scores in ``keys``, float32 of the same shape, -inf for unfilled entries."""
    monotone = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(monotone >> 31, monotone ^ np.uint32(1 << 31), ~monotone)
    return np.where(keys > 0, bits.view(np.float32), np.float32(-np.inf))


def ranks_of_keys(keys: UInt64Array) -> Int64Array:
    """Return the tie ranks in ``keys`` of filled entries, int64 of the same shape."""
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def hits_of_keys(keys: UInt64Array, tie_rank: Int64Array) -> Hits:
    """Return hits in canonical order from their keys, uint64 ``(q, k)``, some queries at a time."""
    row_of_rank = np.empty(len(tie_rank), np.int64)
    row_of_rank[tie_rank] = np.arange(len(tie_rank))
    hits = Hits.empty(*keys.shape)
    step = max(1, SORTED_CELLS // keys.shape[1])
    for first in range(0, len(keys), step):
        some = slice(first, first + step)
        ordered = np.sort(keys[some], axis=1)[:, ::-1]
        filled = ordered > 0
        hits.scores[some] = scores_of_keys(ordered)
        hits.rows[some][filled] = row_of_rank[ranks_of_keys(ordered[filled])]
    return hits
