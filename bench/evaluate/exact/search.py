"""Exact search: what is searched, what is asked, and the way through the tiles."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from bench.evaluate.exact.bounds import norm_bounds
from bench.evaluate.search import MAX_RANK
from foundation.arrays import Float16Array, Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import Clock
from retrievers.index.faiss_index import Hits

TILE_ROWS = 1 << 17  # 400 MB of 768 dimensions; smaller tiles rescore more candidates
BLOCK_BYTES = 1 << 28  # arrays that grow with queries x candidates
SLACK = 64  # candidates beyond 2 k

# Of NVIDIA's driver, of Windows' subsystem for Linux, of AMD's driver.
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")

TileArray = Float32Array | Float16Array
Item = TypeVar("Item")


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


class Engine(Protocol):
    """Where and with what arithmetic candidates are found. Every engine gives the same hits."""

    def open(self, task: SearchTask) -> AbstractContextManager[Search]:
        """Start a search; leaving the context frees what it holds."""
        ...


def most_candidates(k: int) -> int:
    """Most candidates of one query that are proposed at a time, on average of all queries."""
    return 2 * k + SLACK


def exact_search(
    vectors: Vectors,
    queries: Float32Array,
    k: int,
    tie_rank: Int64Array,
    *,
    tile_rows: int = TILE_ROWS,
    block_bytes: int = BLOCK_BYTES,
    device: str = "cpu",
    engine: Engine | None = None,
    advance: Callable[[int], None] | None = None,
    clock: Clock | None = None,
) -> Hits:
    """The k documents of largest inner product, in canonical order.

    A score is the dot product in float64, rounded to float32. After every tile the best k are
    exactly those of all rows so far. The next tile is read while one is searched. Memory:
    ``bench.evaluate.memory.search_bytes``.

    Args:
        vectors: n documents, finite.
        queries: float32 ``(q, dim)``, finite.
        k: depth; places beyond the corpus stay unfilled (-1).
        tie_rank: int64 ``(n,)``, rank of each row's document id in the order of bytes.
        tile_rows: most rows at a time; fewer where a GPU has no room for them.
        block_bytes: of the arrays that grow with queries x candidates; queries come in blocks
            that fit. A GPU has its own memory, and sizes its blocks by what is free there.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        engine: what finds the candidates; by default what suits the device.
        advance: called with the number of rows searched.
        clock: of the phases ``search`` (candidates) and ``rescore`` (float64).

    Raises:
        BenchError: shapes do not fit, or a vector is not finite or too long for float32.
        BenchError: the device is unknown or missing, or has too little memory.
    """
    _check_shapes(vectors, queries, k, tie_rank)
    queries = np.ascontiguousarray(queries)
    task = SearchTask(
        queries=queries,
        norms=norm_bounds(queries, "query"),
        k=k,
        tie_rank=tie_rank,
        tile_rows=tile_rows,
        block_bytes=block_bytes,
        clock=clock or Clock(),
    )
    chosen = engine or engine_for(device)
    with chosen.open(task) as search, ThreadPoolExecutor(1) as reader:
        tiles = starmap(search.stage, search.read(vectors))
        for tile in _read_ahead(tiles, reader):
            rows = search.merge(tile)
            if advance:
                advance(rows)
            del tile  # or there would be three while the next one is awaited
        return search.hits()


def engine_for(device: str) -> Engine:
    """NumPy for ``cpu``, PyTorch for ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: the device is unknown or missing.
    """
    if device == "cpu":
        from bench.evaluate.exact.numpy_engine import NumpyEngine

        return NumpyEngine()
    from bench.evaluate.exact.torch_engine import TorchEngine

    return TorchEngine(device)


def sees_gpu() -> bool:
    """True where PyTorch has a GPU; it is imported only where a driver has left its file."""
    if "torch" not in sys.modules and not any(Path(file).exists() for file in GPU_FILES):
        return False
    import torch

    return bool(torch.cuda.is_available())


def _read_ahead(tiles: Iterator[Item], reader: ThreadPoolExecutor) -> Iterator[Item]:
    """The same tiles; the next one is read while the last one is in use."""
    coming = reader.submit(next, tiles, None)
    while (tile := coming.result()) is not None:
        coming = reader.submit(next, tiles, None)
        yield tile
        del tile


def _check_shapes(vectors: Vectors, queries: Float32Array, k: int, tie_rank: Int64Array) -> None:
    rows, dim = vectors.shape
    if queries.ndim != 2 or queries.shape[1] != dim or queries.dtype != np.float32:
        raise BenchError(
            f"queries are {queries.dtype} {queries.shape}, documents float32 {(rows, dim)}"
        )
    if tie_rank.shape != (rows,):
        raise BenchError(f"{len(tie_rank)} tie ranks for {rows} documents")
    if rows and not 0 <= int(tie_rank.min()) <= int(tie_rank.max()) <= MAX_RANK:
        raise ValueError(f"tie ranks are 0 to {MAX_RANK}")
    if k < 1:
        raise BenchError(f"depth {k}: at least one document is retrieved")
