"""The task of an exact search: vectors, queries, and the protocol of the engines that solve it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from foundation.arrays import Float16Array, Float32Array, Float64Array, Int64Array
from retrievers.encoders.protocol import Clock
from retrievers.index.faiss_index import Hits

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
