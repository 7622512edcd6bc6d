"""The task of an exact search, the protocol of engines, and the arithmetic that certifies them.

Error bounds of scores that are proposed in float32, and the float64 scores that decide.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from foundation.arrays import Float16Array, Float32Array, Float64Array, Int64Array, IntArray
from foundation.errors import BenchError
from retrievers.encoders.protocol import Clock
from retrievers.index.faiss_index import Hits

FLOAT32_ROUNDOFF = 2.0**-24
FLOAT64_ROUNDOFF = 2.0**-53
TINY = float(np.finfo(np.float32).tiny)
RESCORE_BYTES = 1 << 20  # float64 products at a time and thread: fits a second-level cache
SLACK = 64  # candidates beyond 2 k

TileArray = Float32Array | Float16Array


def as_float32(tile: TileArray) -> Float32Array:
    """The same numbers as float32: a copy where they are float16."""
    return np.ascontiguousarray(tile, np.float32)


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


@runtime_checkable
class HasStored(Protocol):
    """Vectors that can also be had without a conversion."""

    def stored_tiles(self, rows: int) -> Iterator[tuple[int, TileArray]]:
        """The tiles of ``Vectors.tiles``, of the type in which they are kept."""
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
class SearchTask:
    """Queries, and how the vectors that answer them are gone through.

    Attributes:
        queries: float32 ``(q, dim)``, C-contiguous and finite.
        norms: upper bounds of their Euclidean norms, float64 ``(q,)``.
        k: depth.
        tie_rank: int64 ``(n,)``, of the whole corpus.
        tile_rows: most rows at a time.
        block_bytes: most memory of arrays that grow with queries x candidates.
        clock: of the phases ``search`` and ``rescore``.
    """

    queries: Float32Array
    norms: Float64Array
    k: int
    tie_rank: Int64Array
    tile_rows: int
    block_bytes: int
    clock: Clock


class Search(Protocol):
    """One search under way: tiles are staged in turn, each is merged before the next but one."""

    def read(self, vectors: Vectors) -> Iterator[tuple[int, TileArray]]:
        """First row and vectors of each tile, of a size and type that suit the search."""
        ...

    def stage(self, start: int, vectors: TileArray) -> Any:
        """Put rows from ``start`` on where they are searched; runs while another is merged.

        Raises:
            BenchError: a vector is not finite, or too long for float32.
        """
        ...

    def merge(self, tile: Any) -> int:
        """Make the best so far the best of this staged tile too; its number of rows."""
        ...

    def hits(self) -> Hits:
        """The best of all tiles, in canonical order."""
        ...


class SearchEngine(Protocol):
    """Where and with what arithmetic candidates are found. Every engine gives the same hits."""

    def open(self, task: SearchTask) -> AbstractContextManager[Search]:
        """Start a search; leaving the context frees what it holds."""
        ...


def most_candidates(k: int) -> int:
    """Most candidates of one query that are proposed at a time, on average of all queries."""
    return 2 * k + SLACK


def dot_error(dim: int, query_norms: Float64Array, document_norm: float) -> Float64Array:
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


def double_distance(dim: int, query_norms: Float64Array, document_norm: float) -> Float64Array:
    """Largest distance between two float64 dot products summed in different orders, ``(q,)``.

    With room for the rounding of an addition of this distance.
    """
    return 2 * _gamma(dim + 4, FLOAT64_ROUNDOFF) * query_norms * document_norm


def lowest_score(bar: Float32Array, error: Float64Array) -> Float32Array:
    """The proposed score below which the exact one cannot reach ``bar``, float32 ``(q,)``."""
    goal = np.nextafter(bar, np.float32(-np.inf)).astype(np.float64)
    return np.nextafter((goal - error).astype(np.float32), np.float32(-np.inf))


def reached_score(proposed: Float32Array, error: Float64Array) -> Float32Array:
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
