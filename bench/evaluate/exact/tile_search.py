"""Exact search on the processor, with NumPy.

Once a query has k documents, the k-th score is a bar: matrix products show which rows of a tile may
reach it, and late tiles have few. Where there is no bar yet, or too many rows reach it, the k-th
best product of the tile, less its error, is one.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from bench.evaluate.exact.best import Best
from bench.evaluate.exact.bounds import lowest_score, reached_score
from bench.evaluate.exact.candidates import Asked, Pairs, Tile
from bench.evaluate.exact.rescoring import exact_scores
from bench.evaluate.exact.task import SearchTask
from bench.evaluate.exact.vectors import TileArray, Vectors
from bench.evaluate.search import order_keys
from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from retrievers.index.faiss_index import Hits

Map = Callable[..., Iterator[Any]]

SLACK = 64  # candidates beyond 2 k until the bar of the tile itself is asked for
CANDIDATE_BYTES = 48  # of one candidate of one query, until it is merged
SCORE_BYTES = 5  # of one query and row: the float32 score, and whether it is high enough
MERGE_PLACES = 1 << 16  # merged at a time and thread
PRODUCT_ROWS = 1 << 11  # scores of a thousand queries stay in a third-level cache


def most_candidates(k: int) -> int:
    """Most candidates of one query that are scored at a time."""
    return 2 * k + SLACK


def thread_count() -> int:
    """``OMP_NUM_THREADS`` where it is set, as for other libraries; else the processors allowed."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else len(os.sched_getaffinity(0))


class ProcessorEngine:
    """Candidates by NumPy's products, shared among threads."""

    @contextmanager
    def open(self, task: SearchTask) -> Iterator["ProcessorSearch"]:
        """A search with threads of its own."""
        threads = thread_count()
        best = Best.nothing(len(task.queries), task.k)
        with ThreadPoolExecutor(threads) as pool:
            yield ProcessorSearch(task, best, pool.map, threads, ThreadpoolController())


@dataclass(frozen=True)
class ProcessorSearch:
    """The search of a tile: candidates are found, scored and merged. ``each`` is a ``map``."""

    task: SearchTask
    best: Best
    each: Map
    threads: int
    blas: ThreadpoolController

    def read(self, vectors: Vectors) -> Iterator[tuple[int, TileArray]]:
        """Tiles of as many rows as were asked for."""
        return vectors.tiles(self.task.tile_rows)

    def stage(self, start: int, vectors: TileArray) -> Tile:
        """The tile as float32, with its norm."""
        return Tile.of(start, vectors, self.task.tie_rank)

    def hits(self) -> Hits:
        """The hits in canonical order."""
        return self.best.hits()

    def merge(self, tile: Tile) -> int:
        """Make the best of the rows so far the best of this tile too, block by block."""
        task, step = self.task, self._block_queries()
        for first in range(0, len(task.queries), step):
            block = slice(first, first + step)
            asked = Asked.of(task.queries[block], task.norms[block], tile)
            self._merge_block(tile, asked, self.best[block])
        return len(tile.vectors)

    def _block_queries(self) -> int:
        """Queries whose candidates fill half of a block; their scores fill the other half."""
        candidates = CANDIDATE_BYTES * most_candidates(self.task.k)
        return max(1, self.task.block_bytes // (2 * candidates))

    def _merge_block(self, tile: Tile, asked: Asked, best: Best) -> None:
        pairs, crowded = self._reaching(tile, asked, best)
        self._merge(pairs, tile, asked, best)
        if len(crowded):
            self._merge_crowded(crowded, tile, asked, best)

    def _reaching(self, tile: Tile, asked: Asked, best: Best) -> tuple[Pairs, Int64Array]:
        """The rows that may reach the k-th score, and the queries with no bar or too many rows.

        Threads share the rows, each with a matrix product of its own: none waits for another, and
        the scores are compared while they are in the cache.
        """
        bar, most = best.last_score, most_candidates(best.depth)
        count = np.where(np.isneginf(bar), most + 1, 0)
        if (count > most).all():
            return Pairs.none(), np.arange(len(count))
        lowest = asked.lowest(bar)
        step = self._product_rows(len(count), len(tile.vectors))
        spare = SimpleQueue[tuple[Float32Array, BoolArray]]()
        for _ in range(self.threads):
            spare.put((np.empty(len(count) * step, np.float32), np.empty(len(count) * step, "?")))
        counting = Lock()

        def reaching(first: int) -> Pairs:
            rows = tile.vectors[first : first + step]
            shape = len(count), len(rows)
            arrays = spare.get()
            scores = arrays[0][: shape[0] * shape[1]].reshape(shape)
            wanted = arrays[1][: shape[0] * shape[1]].reshape(shape)
            np.matmul(asked.queries, rows.T, out=scores)
            np.greater_equal(scores, lowest[:, None], out=wanted)
            added = wanted.sum(axis=1, dtype=np.int32)  # half the time of count_nonzero
            with counting:
                count[:] += added
                crowded = count > most
            wanted[crowded] = False
            pairs = Pairs.where(wanted, first)
            spare.put(arrays)
            return pairs

        with self.task.clock.phase("search"), self.blas.limit(limits=1, user_api="blas"):
            parts = list(self.each(reaching, range(0, len(tile.vectors), step)))
            reached = Pairs.together([Pairs.none(), *parts]).of(count <= most)
        return reached, np.flatnonzero(count > most)

    def _product_rows(self, queries: int, rows: int) -> int:
        """Rows of one matrix product: as many as fit, a few products for each thread."""
        fitting = self.task.block_bytes // (2 * SCORE_BYTES * queries * self.threads)
        return max(1, min(PRODUCT_ROWS, -(-rows // self.threads), fitting))

    def _merge_crowded(self, crowded: Int64Array, tile: Tile, asked: Asked, best: Best) -> None:
        """Merge the rows of the tile that may be among its own best k, for some queries."""
        rows, bars = len(tile.vectors), best.last_score
        step = max(1, self.task.block_bytes // (2 * SCORE_BYTES * rows))
        space = np.empty((min(step, len(crowded)), rows), np.float32)
        for first in range(0, len(crowded), step):
            some = crowded[first : first + step]
            scores = space[: len(some)]
            with self.task.clock.phase("search"):
                self._multiply(asked.queries[some], tile.vectors, scores)
                bar = bars[some]
                if rows > self.task.k:
                    bar = np.maximum(bar, self._tile_bar(scores, asked.error[some]))
                lowest = lowest_score(bar, asked.error[some])
                wanted = scores >= lowest[:, None]
            for group in self._fitting(np.count_nonzero(wanted, axis=1)):
                pairs = Pairs.where(wanted[group])
                pairs = Pairs(some[group][pairs.queries], pairs.rows)
                self._merge(pairs, tile, asked, best)

    def _multiply(self, queries: Float32Array, vectors: Float32Array, scores: Float32Array) -> None:
        """All inner products, to ``scores`` ``(q, m)``; threads share the rows."""
        step = self._product_rows(len(queries), len(vectors))

        def multiply(first: int) -> None:
            some = slice(first, first + step)
            np.matmul(queries, vectors[some].T, out=scores[:, some])

        with self.blas.limit(limits=1, user_api="blas"):
            list(self.each(multiply, range(0, len(vectors), step)))

    def _tile_bar(self, scores: Float32Array, error: Float64Array) -> Float32Array:
        """A score that k rows of the tile reach; threads share the queries."""
        k = self.task.k

        def kth(line: Float32Array) -> float:
            return float(np.partition(line, len(line) - k)[len(line) - k])

        best = np.fromiter(self.each(kth, scores), np.float32, len(scores))
        return reached_score(best, error)

    def _fitting(self, count: Int64Array) -> Iterator[slice]:
        """Runs of queries whose candidates fit half of a block, or single queries."""
        most, first = self.task.block_bytes // (2 * CANDIDATE_BYTES), 0
        while first < len(count):
            fitting = np.searchsorted(np.cumsum(count[first:]), most, side="right")
            yield slice(first, first := first + max(1, int(fitting)))

    def _merge(self, pairs: Pairs, tile: Tile, asked: Asked, best: Best) -> None:
        """Score candidates in float64 and keep the best k; threads share the queries."""
        step = max(1, MERGE_PLACES // (best.depth + most_candidates(best.depth)))
        firsts = range(0, len(asked.queries), step)
        cuts = np.searchsorted(pairs.queries, [*firsts, len(asked.queries)])

        def merge(number: int) -> None:
            block = slice(firsts[number], firsts[number] + step)
            some = slice(cuts[number], cuts[number + 1])
            rows, queries = pairs.rows[some], pairs.queries[some] - block.start
            scores = exact_scores(tile.vectors, rows, asked.doubles[block], queries)
            keys = order_keys(scores, tile.tie_rank[rows])
            best[block].merge(queries, rows + tile.start, keys)

        with self.task.clock.phase("rescore"):
            list(self.each(merge, np.flatnonzero(np.diff(cuts))))
