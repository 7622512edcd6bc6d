"""Tiles and candidates of exact search, and the arithmetic that certifies its result.

It consists of error bounds for scores proposed in float32, and float64 scores that decide.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from foundation.arrays import (
    Float16Array,
    Float32Array,
    Float64Array,
    Int32Array,
    IntArray,
    UInt16Array,
)
from foundation.errors import BenchError

FLOAT32_ROUNDOFF = 2.0**-24
FLOAT64_ROUNDOFF = 2.0**-53
NORM_ROUNDING = 1 + 1e-9  # of norms in float64
TENSOR_CORE_ERRORS = 3  # of a sum in float32 on tensor cores, see `proposal_error`
TINY = float(np.finfo(np.float32).tiny)
RESCORE_BYTES = 1 << 20  # float64 products at a time: fit a second-level cache
SLACK = 64  # candidates beyond 2 k

TILE_ROWS = 1 << 17  # 400 MB of 768 dimensions; smaller tiles rescore more
TileArray = Float32Array | Float16Array
Item = TypeVar("Item")


class Candidates(NamedTuple):
    """Candidates, sorted by query. Each array is ``(n,)``.

    Attributes:
        queries: uint16, number of the query in its block.
        rows: int32, row in the tile.
        scores: float32, as proposed.
    """

    queries: UInt16Array
    rows: Int32Array
    scores: Float32Array

    def take(self, positions: Any) -> "Candidates":
        """Return the candidates at ``positions``, an integer array or a slice."""
        return Candidates(self.queries[positions], self.rows[positions], self.scores[positions])

    @classmethod
    def at_least(
        cls, scores: Float32Array, lowest: Float32Array, first_query: int = 0, first_row: int = 0
    ) -> "Candidates":
        """Return the candidates in a score matrix that reach the threshold of their query.

        Args:
            scores: float32 ``(q, m)``.
            lowest: threshold of each query, float32 ``(q,)``.
            first_query: number of the first query.
            first_row: row of the first column.
        """
        places = np.flatnonzero(scores >= lowest[:, None]).astype(np.int32)  # divided faster
        queries, rows = np.divmod(places, np.int32(scores.shape[1]))
        numbers = queries.astype(np.uint16) + np.uint16(first_query)
        return cls(numbers, rows + np.int32(first_row), scores.reshape(-1)[places])

    @classmethod
    def concatenate(cls, parts: Sequence["Candidates"]) -> "Candidates":
        """Join the candidates in ``parts``, sorted by query."""
        if len(parts) == 1:
            return parts[0]
        both = cls(*map(np.concatenate, zip(*parts, strict=True)))
        return both.take(np.argsort(both.queries, kind="stable"))


class Vectors(Protocol):
    """The vectors of a corpus, on disk or in memory."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and dimension."""

    def tiles(self, rows: int) -> Iterator[tuple[int, TileArray]]:
        """Yield the first row and the vectors of each tile of at most ``rows`` rows, in order.

        A tile is C-contiguous ``(m, dim)``, float32, or float16 with the same values in float32.
        """


@dataclass(frozen=True)
class Tile:
    """Consecutive rows of the corpus.

    Attributes:
        start: first row.
        vectors: float32 ``(m, dim)``.
        norm: upper bound of the Euclidean norms.
    """

    start: int
    vectors: Float32Array
    norm: float


def read_ahead(tiles: Iterator[Item], reader: ThreadPoolExecutor) -> Iterator[Item]:
    """Yield the same tiles, reading the next one while the last one is in use."""
    coming = reader.submit(next, tiles, None)
    while (tile := coming.result()) is not None:
        coming = reader.submit(next, tiles, None)
        yield tile
        del tile


def max_candidates(k: int) -> int:
    """Return the mean number of candidates per query at which a piece is split, for depth ``k``."""
    return 2 * k + SLACK


def float32_error(dim: int, query_norms: Float64Array, document_norm: float) -> Float64Array:
    """Bound the distance between float32 and float64 dot products, float64 ``(q,)``.

    In any order of summation, with or without fused multiply-add, a dot product of n terms is off
    by at most gamma_n |x|.|y| <= gamma_n ||x|| ||y||, gamma_n = n u / (1 - n u), with u the unit
    roundoff (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1). Higham
    leaves out underflow: a product or an operand flushed to zero costs less than the last term.

    Args:
        dim: dimension of the vectors.
        query_norms: upper bounds of the norms of queries, float64 ``(q,)``.
        document_norm: upper bound of the norms of documents.
    """
    relative = _gamma(dim, FLOAT32_ROUNDOFF) + _gamma(dim, FLOAT64_ROUNDOFF)
    underflow = dim * TINY * (1 + query_norms + document_norm)
    return relative * query_norms * document_norm + underflow


def proposal_error(
    dim: int,
    query_norms: Float64Array,
    half_norms: Float64Array,
    document_norm: float,
    query_lost: Float64Array,
    document_lost: float,
) -> Float64Array:
    """Bound the distance of products in half precision from exact scores, float64 ``(q,)``.

    The bound has four parts: rounding of the vectors to half precision, summation, rounding of the
    exact score to float32, which can make scores equal, and the order of the float64 sum. Products
    of numbers in half precision are exact in float32. Tensor cores add them in blocks with
    truncation, with at most three times the error of a float32 sum (Fasi, Higham, Mikaitis and
    Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021).

    Args:
        dim: dimension of the vectors.
        query_norms: norms of queries, float64 ``(q,)``.
        half_norms: norms of queries in half precision, float64 ``(q,)``.
        document_norm: largest norm of the documents.
        query_lost: norms of what queries lost, float64 ``(q,)``.
        document_lost: largest norm of what documents lost.
    """
    sums = _gamma(TENSOR_CORE_ERRORS * dim, FLOAT32_ROUNDOFF)
    lost = query_lost * document_norm + half_norms * document_lost
    added = sums * half_norms * (document_norm + document_lost)
    rounded = FLOAT32_ROUNDOFF * query_norms * document_norm + 2.0**-148
    order = float64_error(dim, query_norms, document_norm)
    return NORM_ROUNDING * (lost + added + rounded) + order


def float64_error(dim: int, query_norms: Float64Array, document_norm: float) -> Float64Array:
    """Bound the distance between float64 dot products in different orders, float64 ``(q,)``.

    The bound allows for the rounding error of adding it to a product. Arguments are those of
    `float32_error`.
    """
    return 2 * _gamma(dim + 4, FLOAT64_ROUNDOFF) * query_norms * document_norm


def lowest_proposal(threshold: Float32Array, error: Float64Array) -> Float32Array:
    """Return the lowest proposed score of a document that may reach the threshold, ``(q,)``.

    ``threshold`` is the exact score of each query, float32, and ``error`` its `float32_error`.
    """
    goal = np.nextafter(threshold, np.float32(-np.inf)).astype(np.float64)
    return np.nextafter((goal - error).astype(np.float32), np.float32(-np.inf))


def guaranteed_score(proposed: Float32Array, error: Float64Array) -> Float32Array:
    """Return a lower bound of the exact scores of proposals, float32 ``(q,)``.

    ``error`` is the `float32_error` of the proposed scores.
    """
    least = (proposed.astype(np.float64) - error).astype(np.float32)
    return np.nextafter(least, np.float32(-np.inf))


def norm_bounds(vectors: Float32Array, what: str, first_row: int = 0) -> Float64Array:
    """Return upper bounds of Euclidean norms, float64 ``(m,)``.

    Args:
        vectors: float32 ``(m, dim)``.
        what: kind of vectors in messages.
        first_row: number of the first vector in messages.

    Raises:
        BenchError: a vector is not finite, or so long that float32 dot products may overflow.
    """
    squares = np.einsum("ij,ij->i", vectors, vectors)
    return norms_of_squares(squares, vectors.shape[1], what, first_row)


def norms_of_squares(
    squares: Float32Array, dim: int, what: str, first_row: int = 0
) -> Float64Array:
    """Return the bounds of `norm_bounds`, float64 ``(m,)``, from squared norms, float32 ``(m,)``.

    The squares may be summed in any order.
    """
    bad = np.flatnonzero(~np.isfinite(squares))
    if len(bad):
        raise BenchError(
            f"the vector of {what} {first_row + int(bad[0])} is not finite, or too long for "
            f"float32 ({len(bad)} such vectors)"
        )
    norms: Float64Array = np.sqrt(
        (squares.astype(np.float64) + dim * TINY) / (1 - dim * FLOAT32_ROUNDOFF)
    )
    return norms


def _gamma(terms: int, roundoff: float) -> float:
    return terms * roundoff / (1 - terms * roundoff)


def rescored_rows(dim: int) -> int:
    """Return the number of vectors of dimension ``dim`` to score in float64 at a time."""
    return max(1, RESCORE_BYTES // (8 * dim))


def exact_scores(
    vectors: TileArray, rows: IntArray, queries64: Float64Array, queries: IntArray
) -> Float32Array:
    """Return dot products in float64, rounded to float32, ``(n,)``.

    Products of float32 values are exact in float64, and numpy's pairwise sum over a contiguous axis
    depends on its length alone. Equal vectors therefore have equal scores in every row.

    Args:
        vectors: float32 or float16 ``(m, dim)``.
        rows: row of each pair, ``(n,)``.
        queries64: float64 ``(q, dim)``.
        queries: query of each pair, ``(n,)``.
    """
    scores = np.empty(len(rows), np.float32)
    step = rescored_rows(queries64.shape[1])
    for first in range(0, len(rows), step):
        some = slice(first, first + step)
        terms = np.take(vectors, rows[some], axis=0).astype(np.float64)
        terms *= queries64[queries[some]]
        scores[some] = terms.sum(axis=1)
    return scores


def round_scores(
    sums: Float64Array,
    sum_error: Float64Array,
    vectors: TileArray,
    rows: IntArray,
    queries64: Float64Array,
    queries: IntArray,
) -> Float32Array:
    """Return the scores of `exact_scores` from sums in any order, float32 ``(n,)``.

    If the order could change the rounded score, `exact_scores` decides. ``sums`` are float64
    ``(n,)``, ``sum_error`` is the `float64_error` of each query. Others are those of
    `exact_scores`.
    """
    off = sum_error[queries]
    scores = (sums - off).astype(np.float32)
    unsure = np.flatnonzero(scores != (sums + off).astype(np.float32))
    scores[unsure] = exact_scores(vectors, rows[unsure], queries64, queries[unsure])
    return scores
