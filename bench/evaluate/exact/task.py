"""The task of an exact search, and the protocol of the engines that solve it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from bench.evaluate.exact.vectors import TileArray, Vectors
from foundation.arrays import Float32Array, Float64Array, Int64Array
from retrievers.encoders.clock import Clock
from retrievers.index.faiss_index import Hits


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


class Engine(Protocol):
    """Where and with what arithmetic candidates are found. Every engine gives the same hits."""

    def open(self, task: SearchTask) -> AbstractContextManager[Search]:
        """Start a search; leaving the context frees what it holds."""
        ...
