"""Exact search: the iteration over tiles, and the search of one tile on the CPU.

A tile is searched in pieces, each as large as everything searched before. Matrix products show
which rows may reach the threshold, a score that k documents have and below which no other document
is among the top k. Their scores raise the threshold for the next piece. The rows that are still
above it at the end of the tile are scored in float64, and the top k of each query are kept as
integer keys.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from bench.evaluation.certificate import (
    TILE_ROWS,
    Candidates,
    Tile,
    TileArray,
    Vectors,
    float32_error,
    float64_error,
    guaranteed_score,
    lowest_proposal,
    max_candidates,
    norm_bounds,
    read_ahead,
    rescored_rows,
    round_scores,
)
from foundation.arrays import Float32Array, Float64Array, Int64Array, IntArray, UInt64Array
from foundation.errors import BenchError
from foundation.machine import count_threads, keep_freed_memory
from retrievers.encoders.protocol import PhaseTimer
from retrievers.index.hits import Hits, hits_of_keys, order_keys, scores_of_keys

BLOCK_BYTES = 1 << 28  # arrays that grow with queries x candidates
MAX_QUERIES = 1 << 16  # in a block, numbered with 16 bits
CANDIDATE_BYTES = 64  # per candidate until it is merged
SCORE_BYTES = 5  # per query and row: a float32 score and a flag
PRODUCT_ROWS = 1 << 11  # scores of a thousand queries stay in a third-level cache
FIRST_ROWS = 16  # per entry of the top k: they give the first threshold
FIRST_BYTES = 16  # per query and first row: three scores and a position
MERGED_CELLS = 1 << 16  # at a time, per thread

# Device files of NVIDIA, of the Windows Subsystem for Linux, and of AMD.
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True)
class ArrayVectors:
    """Vectors in a C-contiguous array, in memory or memory-mapped. Tiles are views.

    Attributes:
        array: float32 or float16 ``(n, dim)``.
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
        """Number of documents and dimension."""
        return self.array.shape[0], self.array.shape[1]

    def tiles(self, rows: int) -> Iterator[tuple[int, TileArray]]:
        """Yield the first row and a view of each run of at most ``rows`` rows."""
        for start in range(0, len(self.array), rows):
            yield start, self.array[start : start + rows]

    def rows(self, wanted: Int64Array) -> Float32Array:
        """Return the vectors of the rows ``wanted``, float32 ``(len(wanted), dim)``."""
        return self.array[wanted].astype(np.float32, copy=False)


def exact_search(
    vectors: Vectors,
    queries: Float32Array,
    k: int,
    tie_rank: Int64Array,
    *,
    tile_rows: int = TILE_ROWS,
    device: str = "cpu",
    advance: Callable[[int], None] | None = None,
    timer: PhaseTimer | None = None,
) -> Hits:
    """Return the k documents of largest inner product, in canonical order.

    A score is the dot product in float64, rounded to float32. After every tile the top k are
    exactly those of all rows so far. The next tile is read while one is searched.
    ``bench.evaluation.index_search.search_bytes`` estimates the memory.

    Args:
        vectors: vectors of n documents, finite.
        queries: float32 ``(q, dim)``, finite.
        k: depth. Ranks beyond the corpus stay unfilled (row -1).
        tie_rank: int64 ``(n,)``, rank of each row's document id in byte order.
        tile_rows: maximum rows at a time, fewer if the GPU has too little memory.
        device: ``cpu``, ``cuda`` or ``cuda:N`` (`bench.evaluation.device_search`).
        advance: called with the number of rows searched.
        timer: of the phases ``search`` (candidates) and ``rescore`` (float64).

    Raises:
        BenchError: shapes do not match, a vector is not finite or too long for float32, or the
            device is unknown or missing.
    """
    _check_shapes(vectors, queries, k, tie_rank)
    queries, timer = np.ascontiguousarray(queries), timer or PhaseTimer()
    if not len(queries):
        return Hits.empty(0, k)
    with ThreadPoolExecutor(count_threads()) as pool:
        if device == "cpu":
            search: Any = CpuSearch(queries, k, tie_rank, pool, timer)
        else:
            from bench.evaluation.device_search import DeviceSearch

            search = DeviceSearch(queries, k, tie_rank, device, pool, timer)
        return search_tiles(search, vectors, tile_rows, advance)


def search_tiles(
    search: Any,
    vectors: Vectors,
    tile_rows: int = TILE_ROWS,
    advance: Callable[[int], None] | None = None,
) -> Hits:
    """Search all tiles of ``vectors``, reading the next one while one is searched.

    ``search`` is a `CpuSearch` or a `DeviceSearch`. Other arguments are those of `exact_search`.
    """
    with ThreadPoolExecutor(1) as reader:
        for tile, rows in read_ahead(search.tiles(vectors, tile_rows), reader):
            search.add(tile)
            if advance:
                advance(rows)
            del tile  # frees its memory before the next one arrives
    return hits_of_keys(search.keys(), search.tie_rank)


def has_gpu() -> bool:
    """Return whether PyTorch has a GPU. It is imported only if a driver is installed."""
    if "torch" not in sys.modules and not any(Path(file).exists() for file in GPU_FILES):
        return False
    import torch

    return bool(torch.cuda.is_available())


def search_device(device: str) -> str:
    """Return the device of exact search: with ``auto``, a GPU if there is one."""
    if device == "auto":
        return "cuda" if has_gpu() else "cpu"
    return device


def _check_shapes(vectors: Vectors, queries: Float32Array, k: int, tie_rank: Int64Array) -> None:
    rows, dim = vectors.shape
    if queries.ndim != 2 or queries.shape[1] != dim or queries.dtype != np.float32:
        raise BenchError(
            f"queries are {queries.dtype} {queries.shape}, documents float32 {(rows, dim)}"
        )
    if tie_rank.shape != (rows,):
        raise BenchError(f"{len(tie_rank)} tie ranks for {rows} documents")
    if k < 1:
        raise BenchError(f"depth {k} must be at least 1")


NO_CANDIDATES = Candidates(np.empty(0, np.uint16), np.empty(0, np.int32), np.empty(0, np.float32))


def block_bytes(queries: int, k: int) -> int:
    """Return the maximum memory of arrays that grow with queries x candidates, for depth ``k``."""
    candidates = CANDIDATE_BYTES * max_candidates(k)
    wanted = 2 * queries * max(candidates, SCORE_BYTES * PRODUCT_ROWS)
    return max(2 * candidates, min(BLOCK_BYTES, wanted))


def read_tiles(
    vectors: Any, rows: int, libraries: ThreadpoolController
) -> Iterator[tuple[int, Float32Array]]:
    """Yield the first row and the vectors of tiles of `StoredVectors`, at most ``rows`` rows each.

    A tile is overwritten by the one after the next: clearing new memory would take a tenth of the
    time of a search. Threads of OpenMP in ``libraries``, which keep a core busy while they wait,
    would take as much from it, so one thread converts.
    """
    (total, dim), step = vectors.shape, min(rows, PRODUCT_ROWS)
    rows -= rows % step
    memory = np.empty((2, min(rows, total), dim), np.float32)
    for start, part in vectors.stored_tiles(step):
        tile, first = memory[start // rows % 2], start % rows
        end = first + len(part)
        with libraries.limit(limits=1, user_api="openmp"):
            convert_to_float32(part, tile[first:end])
        if end == rows or start + len(part) == total:
            yield start - first, tile[:end]


def convert_to_float32(vectors: TileArray, into: Float32Array) -> None:
    """Copy float16 or float32 ``vectors`` into an array of their shape.

    PyTorch converts 20 times as fast as NumPy. It is in memory if anything was encoded, and its
    import would take longer than a small search.
    """
    if torch := sys.modules.get("torch"):
        torch.from_numpy(into).copy_(torch.from_numpy(vectors))
    else:
        into[:] = vectors


class CpuSearch:
    """Top k of each query so far, as unsorted keys. Key 0 is an unfilled rank."""

    def __init__(
        self,
        queries: Float32Array,
        k: int,
        tie_rank: Int64Array,
        pool: ThreadPoolExecutor,
        timer: PhaseTimer,
    ) -> None:
        self.queries, self.norms, self.k = queries, norm_bounds(queries, "query"), k
        self.tie_rank, self.pool, self.timer = tie_rank, pool, timer
        self.top: UInt64Array = np.zeros((len(queries), k), np.uint64)
        self._libraries = ThreadpoolController()
        keep_freed_memory()

    def tiles(self, vectors: Vectors, rows: int) -> Iterator[tuple[Tile, int]]:
        """Yield tiles of at most ``rows`` rows as float32, and their numbers of rows."""
        is_stored = hasattr(vectors, "stored_tiles")
        few = min(rows, TILE_ROWS)
        tiles = read_tiles(vectors, few, self._libraries) if is_stored else vectors.tiles(rows)
        for start, array in tiles:
            values = np.ascontiguousarray(array, np.float32)  # a copy of float16
            norm = float(norm_bounds(values, "document", start).max(initial=0.0))
            yield Tile(start, values, norm), len(values)
            del array, values

    def keys(self) -> UInt64Array:
        """Return the keys of the top k, as `order_keys` makes them, uint64 ``(q, k)``."""
        return self.top

    def add(self, tile: Tile) -> None:
        """Update the top k with a tile, one block of queries at a time."""
        # Candidates fill half of the memory of a block and scores the other half.
        fitting = BLOCK_BYTES // (2 * CANDIDATE_BYTES * max_candidates(self.k))
        step = min(max(1, fitting), MAX_QUERIES)
        with self._libraries.limit(limits=1, user_api="blas"):  # threads multiply in parallel
            for first in range(0, len(self.queries), step):
                _TileSearch(self, tile, slice(first, first + step)).run()


class _TileSearch:
    """The search of one tile for a block of queries, which updates their top k."""

    def __init__(self, search: CpuSearch, tile: Tile, block: slice) -> None:
        self._search, self._tile = search, tile
        self._queries, self._keys = search.queries[block], search.top[block]
        dim, norms = self._queries.shape[1], search.norms[block]
        self._queries64 = self._queries.astype(np.float64)
        self._error = float32_error(dim, norms, tile.norm)
        self._sum_error = float64_error(dim, norms, tile.norm)
        self._limit = len(self._queries) * max_candidates(search.k)
        self._threshold = scores_of_keys(self._keys)  # scores of k different documents
        self._pending: list[Candidates] = []

    def run(self) -> None:
        """Search the tile and update the top k in place."""
        before, rows = self._tile.start, len(self._tile.vectors)
        least = max_candidates(self._search.k)  # this many rows always fit
        done, size = self._search_first_rows(), rows
        while done < rows:
            size = min(size, max(least, before + done))
            piece = slice(done, min(done + size, rows))
            pairs = self._find_candidates(piece)
            if pairs is None:
                size = max(least, (piece.stop - done) // 2)
                continue
            self._raise_threshold(pairs)
            self._add_pending(pairs)
            done, size = piece.stop, 2 * size
        self._rescore()

    def _search_first_rows(self) -> int:
        """Return the number of first rows searched without a threshold, or 0 on overflow.

        Their k largest scores are picked by partitioning.
        """
        tile, k, found = self._tile, self._search.k, list[int]()
        first = tile.vectors[: FIRST_ROWS * k]
        if tile.start or len(first) <= k:
            return 0
        fitting = BLOCK_BYTES // (2 * FIRST_BYTES * len(first) * count_threads())
        step = max(1, min(fitting, -(-len(self._queries) // count_threads())))

        def picked(start: int) -> Candidates:
            some = slice(start, start + step)
            scores = self._queries[some] @ first.T
            self._threshold[some] = np.partition(scores, len(first) - k, axis=1)[:, -k:]
            pairs = Candidates.at_least(scores, self._lowest_proposals(some), start)
            found.append(len(pairs.rows))
            return pairs if sum(found) <= self._limit else NO_CANDIDATES

        with self._search.timer.phase("search"):
            parts = list(self._search.pool.map(picked, range(0, len(self._queries), step)))
        if sum(found) > self._limit:  # equal scores
            self._threshold[:] = -np.inf
            return 0
        self._add_pending(Candidates.concatenate(parts))
        return len(first)

    def _lowest_proposals(self, some: slice = slice(None)) -> Float32Array:
        """Return the proposed score below which a document cannot be in the top k, ``(q,)``."""
        reached = guaranteed_score(self._threshold[some].min(axis=1), self._error[some])
        return lowest_proposal(reached, self._error[some])

    def _find_candidates(self, piece: slice) -> Candidates | None:
        """Return rows of a piece that may exceed the threshold, or None if they are too many.

        Each thread multiplies its own rows and compares the scores while they are in its cache.
        """
        lowest, found = self._lowest_proposals(), list[int]()
        step = self._product_rows(piece.stop - piece.start)

        def reached(first: int) -> Candidates:
            rows = self._tile.vectors[first : min(first + step, piece.stop)]
            pairs = Candidates.at_least(self._queries @ rows.T, lowest, first_row=first)
            found.append(len(pairs.rows))
            return pairs if sum(found) <= self._limit else NO_CANDIDATES

        with self._search.timer.phase("search"):
            parts = list(self._search.pool.map(reached, range(piece.start, piece.stop, step)))
            return None if sum(found) > self._limit else Candidates.concatenate(parts)

    def _product_rows(self, rows: int) -> int:
        """Return the rows of one matrix product, such that each thread gets a few products."""
        threads = count_threads()
        fitting = BLOCK_BYTES // (2 * SCORE_BYTES * max(1, len(self._queries)) * threads)
        return max(1, min(PRODUCT_ROWS, -(-rows // threads), fitting))

    def _raise_threshold(self, pairs: Candidates) -> None:
        """Raise the threshold by the scores of new candidates."""
        with self._search.timer.phase("search"):
            self._map_query_groups(
                pairs,
                lambda some, queries, found: update_top_k(
                    self._threshold[some], queries, found.scores, -np.inf
                ),
            )

    def _add_pending(self, pairs: Candidates) -> None:
        """Add candidates, and score all pending ones when they become too many."""
        self._pending.append(pairs)
        if sum(len(part.rows) for part in self._pending) > 2 * self._limit:
            self._pending = [self._pending_above_threshold()]
            if len(self._pending[0].rows) > self._limit:
                self._rescore()

    def _pending_above_threshold(self) -> Candidates:
        """Return the pending candidates that still exceed the threshold."""
        lowest = self._lowest_proposals()
        return Candidates.concatenate(
            [
                NO_CANDIDATES,
                *(
                    part.take(np.flatnonzero(part.scores >= lowest[part.queries]))
                    for part in self._pending
                ),
            ]
        )

    def _rescore(self) -> None:
        """Score pending candidates in float64 and update the top k."""
        tile, search = self._tile, self._search

        def score(some: slice, queries: IntArray, found: Candidates) -> None:
            rows = found.rows
            scores = score_candidates(
                tile.vectors, rows, self._queries64[some], queries, self._sum_error[some]
            )
            keys = order_keys(scores, np.asarray(search.tie_rank[tile.start + rows]))
            update_top_k(self._keys[some], queries, keys, 0)

        with search.timer.phase("rescore"):
            self._map_query_groups(self._pending_above_threshold(), score)
            self._pending, self._threshold = [], scores_of_keys(self._keys)

    def _map_query_groups(
        self, pairs: Candidates, work: Callable[[slice, IntArray, Candidates], None]
    ) -> None:
        """Call ``work`` for groups of queries with their candidates, numbered within the group."""
        count = np.bincount(pairs.queries, minlength=len(self._queries))
        ends = np.concatenate([[0], np.cumsum(count)])

        def on(run: slice) -> None:
            found = pairs.take(slice(ends[run.start], ends[run.stop]))
            work(run, found.queries - np.uint16(run.start), found)

        list(self._search.pool.map(on, query_groups(count, self._search.k) if count.any() else ()))


def query_groups(count: Int64Array, k: int) -> Iterator[slice]:
    """Yield slices of queries with at most ``MERGED_CELLS`` cells.

    The cells of a group are its queries times the widest row of k entries and candidates. ``count``
    has the candidates of each query, int64 ``(q,)``.
    """
    first = width = 0
    for query, candidates in enumerate(count.tolist()):
        width = max(width, candidates)
        if query > first and (query + 1 - first) * (k + width) > MERGED_CELLS:
            yield slice(first, query)
            first, width = query, candidates
    yield slice(first, len(count))


def update_top_k(best: Any, queries: IntArray, values: Any, unfilled: float) -> None:
    """Update ``best``, the k largest values of each query ``(q, k)``, in place.

    ``queries`` has the query of each of the further ``values``, sorted. ``unfilled`` is smaller
    than all values.
    """
    count, k = best.shape
    counts = np.bincount(queries, minlength=count)
    updated, most = np.flatnonzero(counts), int(counts.max(initial=0))
    line = (np.cumsum(counts > 0) - 1)[queries]
    column = k + np.arange(len(queries)) - (np.cumsum(counts) - counts)[queries]
    both = np.full((len(updated), k + most), unfilled, best.dtype)
    both[:, :k] = best[updated]
    both[line, column] = values
    best[updated] = np.partition(both, most, axis=1)[:, most:]


def score_candidates(
    vectors: Float32Array,
    rows: IntArray,
    queries64: Float64Array,
    queries: IntArray,
    sum_error: Float64Array,
) -> Float32Array:
    """Return float64 scores of pairs sorted by query, rounded to float32, ``(n,)``.

    Args:
        vectors: float32 ``(m, dim)``.
        rows: row of each pair, ``(n,)``.
        queries64: float64 ``(q, dim)``.
        queries: query of each pair, ``(n,)``.
        sum_error: bound of `float64_error`, float64 ``(q,)``.
    """
    sums, step = np.empty(len(rows)), rescored_rows(queries64.shape[1])
    ends = np.searchsorted(queries, np.arange(len(queries64) + 1)).tolist()
    for query, (start, end) in zip(queries64, pairwise(ends), strict=True):
        for first in range(start, end, step):
            some = slice(first, min(first + step, end))
            gathered = np.take(vectors, rows[some], axis=0).astype(np.float64)
            np.matmul(gathered, query, out=sums[some])
    return round_scores(sums, sum_error, vectors, rows, queries64, queries)
