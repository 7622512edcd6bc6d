"""Exact search: the way through the tiles, and the steps of one tile on the processor.

A piece of a tile is as large as all that was searched before. Matrix products show which of its
rows may reach the bar, a score that k documents reach and below which no other is among the best
k; those raise the bar for the next piece. What is still above the bar at the end of the tile is
scored in float64, and the best k of each query are kept as integer keys.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from bench.evaluate.exact.certificate import (
    Candidates,
    Tile,
    TileArray,
    Vectors,
    as_float32,
    float32_error,
    float64_error,
    guaranteed_score,
    lowest_proposal,
    max_candidates,
    norm_bounds,
    rescored_rows,
    round_scores,
)
from bench.evaluate.search import order_keys, ranks_of_keys, scores_of_keys
from foundation.arrays import Float32Array, Float64Array, Int64Array, IntArray, UInt64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import PhaseTimer
from retrievers.index.faiss_index import Hits

if TYPE_CHECKING:
    from bench.evaluate.exact.torch_engine import TorchEngine

TILE_ROWS = 1 << 17  # 400 MB of 768 dimensions; smaller tiles rescore more candidates
BLOCK_BYTES = 1 << 28  # arrays that grow with queries x candidates
MAX_QUERIES = 1 << 16  # of a block: candidates count them in 16 bits
CANDIDATE_BYTES = 64  # of one candidate of one query, until it is merged
SCORE_BYTES = 5  # of one query and row: the float32 score, and whether it is high enough
PRODUCT_ROWS = 1 << 11  # scores of a thousand queries stay in a third-level cache
FIRST_ROWS = 16  # for each place of a ranking: the first bar is the best of so many
FIRST_BYTES = 16  # of one query and row of these: scores three times, and places
MERGED_CELLS = 1 << 16  # at a time and thread

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
    device: str = "cpu",
    engine: "NumpyEngine | TorchEngine | None" = None,
    advance: Callable[[int], None] | None = None,
    timer: PhaseTimer | None = None,
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
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        engine: what finds the candidates; by default what suits the device.
        advance: called with the number of rows searched.
        clock: of the phases ``search`` (candidates) and ``rescore`` (float64).

    Raises:
        BenchError: shapes do not fit, or a vector is not finite or too long for float32.
        BenchError: the device is unknown or missing.
    """
    _check_shapes(vectors, queries, k, tie_rank)
    with ThreadPoolExecutor(count_threads()) as pool, ThreadPoolExecutor(1) as reader:
        chosen = engine or engine_for(device, pool)
        search = _CorpusSearch(
            np.ascontiguousarray(queries), k, tie_rank, chosen, pool, timer or PhaseTimer()
        )
        try:
            tiles = starmap(chosen.stage, chosen.tiles(vectors, tile_rows))
            for tile in _read_ahead(tiles, reader):
                search.merge(tile)
                if advance:
                    advance(len(tile.vectors))
                del tile  # or there would be three while the next one is awaited
        finally:
            chosen.release()
        return search.hits()


def engine_for(device: str, pool: ThreadPoolExecutor) -> "NumpyEngine | TorchEngine":
    """NumPy for ``cpu``, PyTorch for ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: the device is unknown or missing.
    """
    if device == "cpu":
        return NumpyEngine(pool)
    from bench.evaluate.exact.torch_engine import TorchEngine

    return TorchEngine(device)


def count_threads() -> int:
    """``OMP_NUM_THREADS`` where it is set, as for other libraries; else the processors allowed."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else len(os.sched_getaffinity(0))


def has_gpu() -> bool:
    """True if PyTorch has a GPU; it is imported only where a driver has left its file."""
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
    if k < 1:
        raise BenchError(f"depth {k}: at least one document is retrieved")


NO_CANDIDATES = Candidates(np.empty(0, np.uint16), np.empty(0, np.int32), np.empty(0, np.float32))


def block_queries(k: int) -> int:
    """Queries at a time: their candidates fill half of a block, scores the other half."""
    return min(max(1, BLOCK_BYTES // (2 * CANDIDATE_BYTES * max_candidates(k))), MAX_QUERIES)


def block_bytes(queries: int, k: int) -> int:
    """Most memory of the arrays that grow with queries x candidates."""
    candidates = CANDIDATE_BYTES * max_candidates(k)
    wanted = 2 * queries * max(candidates, SCORE_BYTES * PRODUCT_ROWS)
    return max(2 * candidates, min(BLOCK_BYTES, wanted))


class _CorpusSearch:
    """The top k of each query so far, as unsorted keys. An unfilled place has key 0."""

    def __init__(
        self,
        queries: Float32Array,
        k: int,
        tie_rank: Int64Array,
        engine: "NumpyEngine | TorchEngine",
        pool: ThreadPoolExecutor,
        timer: PhaseTimer,
    ) -> None:
        self.queries, self.norms, self.k = queries, norm_bounds(queries, "query"), k
        self.tie_rank, self.engine, self.pool, self.timer = tie_rank, engine, pool, timer
        self.keys: UInt64Array = np.zeros((len(queries), k), np.uint64)
        self._blas = ThreadpoolController()

    def merge(self, tile: Tile) -> None:
        """Make the best so far the best of this tile too, a block of queries at a time."""
        step = block_queries(self.k)
        with self._blas.limit(limits=1, user_api="blas"):  # products side by side
            for first in range(0, len(self.queries), step):
                _TileSearch(self, tile, slice(first, first + step)).run()

    def hits(self) -> Hits:
        """The hits in canonical order, sorted some queries at a time."""
        row_of_rank = np.empty(len(self.tie_rank), np.int64)
        row_of_rank[self.tie_rank] = np.arange(len(self.tie_rank))
        scores = np.full(self.keys.shape, -np.inf, np.float32)
        rows = np.full(self.keys.shape, -1, np.int64)
        step = max(1, MERGED_CELLS // self.k)
        for first in range(0, len(self.keys), step):
            some = slice(first, first + step)
            keys = np.sort(self.keys[some], axis=1)[:, ::-1]
            filled = keys > 0
            scores[some] = scores_of_keys(keys)
            rows[some][filled] = row_of_rank[ranks_of_keys(keys[filled])]
        return Hits(scores, rows)


class _TileSearch:
    """The search of a tile for a block of queries, whose best it changes."""

    def __init__(self, search: _CorpusSearch, tile: Tile, block: slice) -> None:
        self._search, self._tile = search, tile
        self._queries, self._keys = search.queries[block], search.keys[block]
        dim, norms = self._queries.shape[1], search.norms[block]
        self._queries64 = self._queries.astype(np.float64)
        self._error = float32_error(dim, norms, tile.norm)
        self._sum_error = float64_error(dim, norms, tile.norm)
        self._limit = len(self._queries) * max_candidates(search.k)
        self._threshold = scores_of_keys(self._keys)  # scores that k different documents have
        self._pending: list[Candidates] = []

    def run(self) -> None:
        """Make the best so far the best of the tile, too."""
        before, rows = self._tile.start, len(self._tile.vectors)
        least = max_candidates(self._search.k)  # of so many rows none can be too many candidates
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
        """Search the first rows, for which there is no bar; how many, or 0 if in vain.

        The best k of all their scores are picked. A GPU does without: it passes candidates fast.
        """
        tile, k, found = self._tile, self._search.k, list[int]()
        first = tile.vectors[: FIRST_ROWS * k]
        if tile.start or len(first) <= k or tile.vectors is not tile.stored:
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
        if sum(found) > self._limit:  # of one score
            self._threshold[:] = -np.inf
            return 0
        self._add_pending(Candidates.concatenate(parts))
        return len(first)

    def _lowest_proposals(self, some: slice = slice(None)) -> Float32Array:
        """The proposed score below which a document is not among the best k, ``(q,)``."""
        reached = guaranteed_score(self._threshold[some].min(axis=1), self._error[some])
        return lowest_proposal(reached, self._error[some])

    def _find_candidates(self, piece: slice) -> Candidates | None:
        """Return the rows of a piece that may exceed the threshold; None if they are too many."""
        with self._search.timer.phase("search"):
            parts = self._search.engine.find_candidates(
                self._queries, self._tile, piece, self._lowest_proposals(), self._limit
            )
            return None if parts is None else Candidates.concatenate(parts)

    def _raise_threshold(self, pairs: Candidates) -> None:
        """Raise the bar by candidates that it does not have."""
        with self._search.timer.phase("search"):
            self._map_query_groups(
                pairs,
                lambda some, asked, own: update_top_k(
                    self._threshold[some], asked, own.scores, -np.inf
                ),
            )

    def _add_pending(self, pairs: Candidates) -> None:
        """Hold candidates, and score them once too many exceed the threshold."""
        self._pending.append(pairs)
        if sum(len(part.rows) for part in self._pending) > 2 * self._limit:
            self._pending = [self._pending_above_threshold()]
            if len(self._pending[0].rows) > self._limit:
                self._rescore()

    def _pending_above_threshold(self) -> Candidates:
        """What is held, without what is below the bar by now."""
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
        """Score candidates in float64 and keep the best k."""
        tile, search = self._tile, self._search

        def score(some: slice, asked: IntArray, own: Candidates) -> None:
            rows = own.rows
            scores = search.engine.score_candidates(
                tile, rows, self._queries64[some], asked, self._sum_error[some]
            )
            keys = order_keys(scores, np.asarray(search.tie_rank[tile.start + rows]))
            update_top_k(self._keys[some], asked, keys, 0)

        with search.timer.phase("rescore"):
            self._map_query_groups(self._pending_above_threshold(), score)
            self._pending, self._threshold = [], scores_of_keys(self._keys)

    def _map_query_groups(
        self, pairs: Candidates, work: Callable[[slice, IntArray, Candidates], None]
    ) -> None:
        """Do work on runs of queries: with their candidates, numbered within the run."""
        count = np.bincount(pairs.queries, minlength=len(self._queries))
        ends = np.concatenate([[0], np.cumsum(count)])

        def on(run: slice) -> None:
            own = pairs.take(slice(ends[run.start], ends[run.stop]))
            work(run, own.queries - np.uint16(run.start), own)

        list(self._search.pool.map(on, query_groups(count, self._search.k) if count.any() else ()))


def query_groups(count: Int64Array, k: int) -> Iterator[slice]:
    """Runs of queries with at most ``MERGED_CELLS`` places, as many as the widest has for each.

    Args:
        count: candidates of each query.
        k: places of each query beside them.
    """
    first = width = 0
    for query, own in enumerate(count.tolist()):
        width = max(width, own)
        if query > first and (query + 1 - first) * (k + width) > MERGED_CELLS:
            yield slice(first, query)
            first, width = query, own
    yield slice(first, len(count))


def update_top_k(best: Any, queries: IntArray, values: Any, unfilled: float) -> None:
    """Keep the highest k of those so far, ``(q, k)``, and of values that are sorted by query."""
    count, k = best.shape
    own = np.bincount(queries, minlength=count)
    asked, most = np.flatnonzero(own), int(own.max(initial=0))
    line = (np.cumsum(own > 0) - 1)[queries]
    column = k + np.arange(len(queries)) - (np.cumsum(own) - own)[queries]
    both = np.full((len(asked), k + most), unfilled, best.dtype)
    both[:, :k] = best[asked]
    both[line, column] = values
    best[asked] = np.partition(both, most, axis=1)[:, most:]


@dataclass(frozen=True)
class NumpyEngine:
    """Candidates by NumPy's products, shared among threads."""

    pool: ThreadPoolExecutor

    def tiles(self, vectors: Vectors, rows: int) -> Iterator[tuple[int, TileArray]]:
        """First row and vectors of each tile."""
        return vectors.tiles(rows)

    def stage(self, start: int, vectors: TileArray) -> Tile:
        """The tile as float32, with its norm; runs while another is searched.

        Raises:
            BenchError: a vector is not finite, or too long for float32.
        """
        vectors = as_float32(vectors)
        norm = float(norm_bounds(vectors, "document", start).max(initial=0.0))
        return Tile(start, vectors, vectors, norm)

    def find_candidates(
        self, queries: Float32Array, tile: Tile, piece: slice, lowest: Float32Array, most: int
    ) -> Sequence[Candidates] | None:
        """The rows of a piece whose proposed score reaches the lowest; None if more than most.

        Threads share the rows, each with a matrix product of its own: none waits for another, and
        the scores are compared while they are in the cache.
        """
        found: list[int] = []
        step = self._product_rows(len(queries), piece.stop - piece.start)

        def reached(first: int) -> Candidates:
            rows = tile.vectors[first : min(first + step, piece.stop)]
            scores = queries @ rows.T
            pairs = Candidates.at_least(scores, lowest, first_row=first)
            found.append(len(pairs.rows))
            return pairs if sum(found) <= most else NO_CANDIDATES

        parts = list(self.pool.map(reached, range(piece.start, piece.stop, step)))
        return None if sum(found) > most else parts

    def score_candidates(
        self,
        tile: Tile,
        rows: IntArray,
        queries64: Float64Array,
        queries: IntArray,
        sum_error: Float64Array,
    ) -> Float32Array:
        """Float64 scores of pairs that are sorted by query, rounded to float32."""
        sums, step = np.empty(len(rows)), rescored_rows(queries64.shape[1])
        ends = np.searchsorted(queries, np.arange(len(queries64) + 1)).tolist()
        for query, (start, end) in zip(queries64, pairwise(ends), strict=True):
            for first in range(start, end, step):
                some = slice(first, min(first + step, end))
                gathered = np.take(tile.vectors, rows[some], axis=0).astype(np.float64)
                np.matmul(gathered, query, out=sums[some])
        return round_scores(sums, sum_error, tile.vectors, rows, queries64, queries)

    def release(self) -> None:
        """Hold nothing: there is nothing to give back."""

    def _product_rows(self, queries: int, rows: int) -> int:
        """Rows of one matrix product: as many as fit, a few products for each thread."""
        threads = count_threads()
        fitting = BLOCK_BYTES // (2 * SCORE_BYTES * max(1, queries) * threads)
        return max(1, min(PRODUCT_ROWS, -(-rows // threads), fitting))
