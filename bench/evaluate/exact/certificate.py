"""Vectors and tiles of an exact search, and the arithmetic that certifies it.

Error bounds of scores that are proposed in float32, and the float64 scores that decide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

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
TINY = float(np.finfo(np.float32).tiny)
RESCORE_BYTES = 1 << 20  # float64 products at a time: fit a second-level cache
SLACK = 64  # candidates beyond 2 k

TileArray = Float32Array | Float16Array


def as_float32(tile: TileArray) -> Float32Array:
    """The same numbers as float32: a copy where they are float16."""
    return np.ascontiguousarray(tile, np.float32)


class Candidates(NamedTuple):
    """Candidates, sorted by query; each array is ``(n,)``.

    Attributes:
        queries: uint16, number of the query in its block.
        rows: int32, of the tile.
        scores: as float32 proposes them.
    """

    queries: UInt16Array
    rows: Int32Array
    scores: Float32Array

    def take(self, positions: Any) -> "Candidates":
        """Those at some places, or in a slice."""
        return Candidates(self.queries[positions], self.rows[positions], self.scores[positions])

    @classmethod
    def at_least(
        cls, scores: Float32Array, lowest: Float32Array, first_query: int = 0, first_row: int = 0
    ) -> "Candidates":
        """The places of a matrix ``(q, m)`` whose score is not below the lowest of its query."""
        places = np.flatnonzero(scores >= lowest[:, None]).astype(np.int32)  # divided faster
        queries, rows = np.divmod(places, np.int32(scores.shape[1]))
        numbers = queries.astype(np.uint16) + np.uint16(first_query)
        return cls(numbers, rows + np.int32(first_row), scores.reshape(-1)[places])

    @classmethod
    def concatenate(cls, parts: Sequence["Candidates"]) -> "Candidates":
        """All of them, sorted by query again."""
        if len(parts) == 1:
            return parts[0]
        both = cls(*map(np.concatenate, zip(*parts, strict=True)))
        return both.take(np.argsort(both.queries, kind="stable"))


class Vectors(Protocol):
    """The vectors of a corpus, wherever they are kept."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        ...

    def tiles(self, rows: int) -> Iterator[tuple[int, TileArray]]:
        """First row and ``(m, dim)``, C-contiguous, m <= ``rows``, in row order.

        A tile is float32, or float16 that counts as the same numbers in float32.
        """
        ...


@dataclass(frozen=True)
class ArrayVectors:
    """Vectors in one array ``(n, dim)``, in memory or memory-mapped. Tiles are views.

    The array is float32 or float16.
    """

    array: TileArray

    def __post_init__(self) -> None:
        array = self.array
        known = array.dtype in (np.float32, np.float16)
        if array.ndim != 2 or not known or not array.flags.c_contiguous:
            raise ValueError(
                "vectors are a C-contiguous float32 or float16 array of two dimensions"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        return self.array.shape[0], self.array.shape[1]

    def tiles(self, rows: int) -> Iterator[tuple[int, TileArray]]:
        """First row and view of each run of at most ``rows`` rows."""
        for start in range(0, len(self.array), rows):
            yield start, self.array[start : start + rows]


@dataclass(frozen=True)
class Tile:
    """Some rows of the corpus.

    Attributes:
        start: the first row.
        vectors: float32 ``(m, dim)``, where they are searched: an array, or a tensor on a GPU.
        stored: the same numbers on the processor.
        norm: of the longest, at most.
    """

    start: int
    vectors: Any
    stored: TileArray
    norm: float


def max_candidates(k: int) -> int:
    """Most candidates of one query that are proposed at a time, on average of all queries."""
    return 2 * k + SLACK


def float32_error(dim: int, query_norms: Float64Array, document_norm: float) -> Float64Array:
    """Largest distance between a float32 and a float64 dot product, float64 ``(q,)``.

    In any order of summation, with or without fused multiply-add, a dot product of n terms is
    off by at most gamma_n |x|.|y| <= gamma_n ||x|| ||y||, gamma_n = n u / (1 - n u), with u the
    unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1).
    Higham leaves out underflow: a product or an operand flushed to zero costs less than the last
    term.
    """
    relative = _gamma(dim, FLOAT32_ROUNDOFF) + _gamma(dim, FLOAT64_ROUNDOFF)
    underflow = dim * TINY * (1 + query_norms + document_norm)
    return relative * query_norms * document_norm + underflow


def float64_error(dim: int, query_norms: Float64Array, document_norm: float) -> Float64Array:
    """Largest distance between two float64 dot products summed in different orders, ``(q,)``.

    With room for the rounding of an addition of this distance.
    """
    return 2 * _gamma(dim + 4, FLOAT64_ROUNDOFF) * query_norms * document_norm


def lowest_proposal(bar: Float32Array, error: Float64Array) -> Float32Array:
    """The proposed score below which the exact one cannot reach ``bar``, float32 ``(q,)``."""
    goal = np.nextafter(bar, np.float32(-np.inf)).astype(np.float64)
    return np.nextafter((goal - error).astype(np.float32), np.float32(-np.inf))


def guaranteed_score(proposed: Float32Array, error: Float64Array) -> Float32Array:
    """A score that rows with these proposed scores reach at least, float32 ``(q,)``."""
    least = (proposed.astype(np.float64) - error).astype(np.float32)
    return np.nextafter(least, np.float32(-np.inf))


def norm_bounds(vectors: Float32Array, what: str, first_row: int = 0) -> Float64Array:
    """Upper bounds of the Euclidean norms, float64 ``(m,)``.

    Raises:
        BenchError: a vector is not finite, or so long that float32 dot products may overflow.
    """
    squares = np.einsum("ij,ij->i", vectors, vectors)
    return norms_of_squares(squares, vectors.shape[1], what, first_row)


def norms_of_squares(
    squares: Float32Array, dim: int, what: str, first_row: int = 0
) -> Float64Array:
    """Bounds as of `norm_bounds`, from squared norms summed in any order, float32 ``(m,)``."""
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
    """Vectors that are scored in float64 at a time."""
    return max(1, RESCORE_BYTES // (8 * dim))


def exact_scores(
    vectors: TileArray, rows: IntArray, queries64: Float64Array, queries: IntArray
) -> Float32Array:
    """Dot products of rows with queries, float64 rounded to float32, ``(len(rows),)``.

    Products of float32 values are exact in float64, and numpy's pairwise sum over a contiguous
    axis depends on its length alone: equal vectors have equal scores wherever they stand.
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
    """The scores of `exact_scores`, from dot products that were summed in any order.

    Where the order may change the rounded score, that of `exact_scores` decides.

    Args:
        sums: float64 ``(len(rows),)``.
        sum_error: of two sums in different orders, float64, for each query: `float64_error`.
    """
    off = sum_error[queries]
    scores = (sums - off).astype(np.float32)
    unsure = np.flatnonzero(scores != (sums + off).astype(np.float32))
    scores[unsure] = exact_scores(vectors, rows[unsure], queries64, queries[unsure])
    return scores
