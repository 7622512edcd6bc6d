"""Exact search, tile by tile."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import ThreadpoolController

from bench.evaluate.exact.best import Best
from bench.evaluate.exact.bounds import norm_bounds
from bench.evaluate.exact.candidate_search import engine
from bench.evaluate.exact.candidates import Asked, Tile
from bench.evaluate.exact.tile_search import TileSearch
from bench.evaluate.exact.vectors import Vectors
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from retrievers.encoders.clock import Clock
from retrievers.index.faiss_index import Hits
from retrievers.index.library import import_faiss

TILE_ROWS = 1 << 17  # 400 MB of 768 dimensions; smaller tiles rescore more candidates
BLOCK_BYTES = 1 << 28  # arrays that grow with queries x candidates


def exact_search(
    vectors: Vectors,
    queries: Float32Array,
    k: int,
    tie_rank: Int64Array,
    *,
    tile_rows: int = TILE_ROWS,
    block_bytes: int = BLOCK_BYTES,
    device: str = "cpu",
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
        tile_rows: rows at a time; on the GPU the tile and the queries must fit its memory.
        block_bytes: of the arrays that grow with queries x candidates; queries come in blocks
            that fit.
        device: ``cpu``, ``cuda`` or ``cuda:N``, for the float32 candidates only.
        advance: called with the number of rows searched.
        clock: of the phases ``search`` (candidates) and ``rescore`` (float64).

    Raises:
        BenchError: shapes do not fit, or a vector is not finite or too long for float32.
        BenchError: FAISS is not installed, or the device is missing.
    """
    _check_shapes(vectors, queries, k, tie_rank)
    queries = np.ascontiguousarray(queries)
    norms = norm_bounds(queries, "query")
    best = Best.nothing(len(queries), k)
    with ThreadPoolExecutor(_threads()) as pool, ThreadPoolExecutor(1) as reader:
        search = TileSearch(
            knn=engine(device),
            uses_bar=device == "cpu",
            block_bytes=block_bytes,
            each=pool.map,
            threads=_threads(),
            blas=ThreadpoolController(),
            clock=clock or Clock(),
        )
        step = search.block_queries(k)
        for start, vectors_of_tile in _read_ahead(vectors.tiles(tile_rows), reader):
            tile = Tile.of(start, vectors_of_tile, tie_rank)
            for first in range(0, len(queries), step):
                block = slice(first, first + step)
                search.merge_tile(tile, Asked.of(queries[block], norms[block], tile), best[block])
            if advance:
                advance(len(vectors_of_tile))
            del tile, vectors_of_tile  # or there would be three while the next one is awaited
    return best.hits()


def _read_ahead(
    tiles: Iterator[tuple[int, Float32Array]], reader: ThreadPoolExecutor
) -> Iterator[tuple[int, Float32Array]]:
    """The same tiles; the next one is read while the last one is in use."""
    coming = reader.submit(next, tiles, None)
    while (tile := coming.result()) is not None:
        coming = reader.submit(next, tiles, None)
        yield tile
        del tile


def _threads() -> int:
    """As many as FAISS uses, so that OMP_NUM_THREADS limits both."""
    return int(import_faiss().omp_get_max_threads())


def _check_shapes(vectors: Vectors, queries: Float32Array, k: int, tie_rank: Int64Array) -> None:
    rows, dim = vectors.shape
    if queries.ndim != 2 or queries.shape[1] != dim or queries.dtype != np.float32:
        raise BenchError(
            f"queries are {queries.dtype} {queries.shape}, documents float32 {(rows, dim)}"
        )
    if tie_rank.shape != (rows,):
        raise BenchError(f"{len(tie_rank)} tie ranks for {rows} documents")
    if k < 1:
        raise BenchError(f"depth {k}: at least one document is retrieved")
