"""Exact search: what is searched, what is asked, and the way through the tiles."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import starmap
from pathlib import Path
from typing import TypeVar

import numpy as np

from bench.evaluate.exact.task import SearchEngine, SearchTask, Vectors, norm_bounds
from bench.evaluate.search import MAX_RANK
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import Clock
from retrievers.index.faiss_index import Hits

TILE_ROWS = 1 << 17  # 400 MB of 768 dimensions; smaller tiles rescore more candidates
BLOCK_BYTES = 1 << 28  # arrays that grow with queries x candidates

# Of NVIDIA's driver, of Windows' subsystem for Linux, of AMD's driver.
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")

Item = TypeVar("Item")


def exact_search(
    vectors: Vectors,
    queries: Float32Array,
    k: int,
    tie_rank: Int64Array,
    *,
    tile_rows: int = TILE_ROWS,
    block_bytes: int = BLOCK_BYTES,
    device: str = "cpu",
    engine: SearchEngine | None = None,
    advance: Callable[[int], None] | None = None,
    clock: Clock | None = None,
) -> Hits:
    """The k documents of largest inner product, in canonical order.

    A score is the dot product in float64, rounded to float32. After every tile the best k are
    exactly those of all rows so far. The next tile is read while one is searched. Memory:
    ``bench.evaluate.index_search.search_bytes``.

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


def engine_for(device: str) -> SearchEngine:
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
