"""Exact search on the processor: NumPy's matrix products, FAISS where there is no bar yet."""

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
from bench.evaluate.exact.candidates import Asked, Pairs, Tile
from bench.evaluate.exact.rescoring import exact_scores
from bench.evaluate.exact.task import Task
from bench.evaluate.exact.vectors import TileArray
from bench.evaluate.search import order_keys
from foundation.arrays import BoolArray, Float32Array, Int64Array
from retrievers.index.faiss_index import Hits
from retrievers.index.library import import_faiss

Map = Callable[..., Iterator[Any]]
Knn = Callable[[Float32Array, Float32Array, int], tuple[Float32Array, Int64Array]]

SLACK = 64  # candidates beyond k: more of them, fewer second looks at a tile
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
    """Candidates by NumPy and FAISS, shared among threads.

    Raises:
        BenchError: FAISS is not installed.
    """

    def __init__(self) -> None:
        self._faiss = import_faiss()

    @contextmanager
    def open(self, task: Task) -> Iterator["ProcessorSearch"]:
        """A search with threads of its own."""
        threads = thread_count()
        best = Best.nothing(len(task.queries), task.k)
        with ThreadPoolExecutor(threads) as pool:
            blas = ThreadpoolController()
            yield ProcessorSearch(task, best, self._knn, pool.map, threads, blas)

    def _knn(
        self, queries: Float32Array, tile: Float32Array, k: int
    ) -> tuple[Float32Array, Int64Array]:
        """The k nearest of a tile by inner product in float32, best first."""
        inner = self._faiss.METRIC_INNER_PRODUCT
        scores, rows = self._faiss.knn(queries, tile, k, metric=inner)
        return scores, rows


@dataclass(frozen=True)
class ProcessorSearch:
    """How candidates are found in a tile, scored and merged. ``each`` is a ``map``."""

    task: Task
    best: Best
    knn: Knn
    each: Map
    threads: int
    blas: ThreadpoolController

    @property
    def tile_rows(self) -> int:
        """Those that were asked for."""
        return self.task.tile_rows

    def stage(self, start: int, vectors: TileArray) -> Tile:
        """The tile as float32, with its norm."""
        return Tile.of(start, vectors, self.task.tie_rank)

    def hits(self) -> Hits:
        """In canonical order."""
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
        found, crowded = self._reaching(tile, asked, best)
        self._merge(found, tile, asked, best)
        if len(crowded):
            self._merge_proposals(crowded, tile, asked, best)

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
            found = np.count_nonzero(wanted, axis=1)
            with counting:
                count[:] += found
                crowded = count > most
            wanted[crowded] = False
            pairs = Pairs.where(wanted, first)
            spare.put(arrays)
            return pairs

        with self.task.clock.phase("search"), self.blas.limit(limits=1, user_api="blas"):
            parts = list(self.each(reaching, range(0, len(tile.vectors), step)))
            found = Pairs.together([Pairs.none(), *parts]).of(count <= most)
        return found, np.flatnonzero(count > most)

    def _product_rows(self, queries: int, rows: int) -> int:
        """Rows of one matrix product: as many as fit, a few products for each thread."""
        fitting = self.task.block_bytes // (2 * SCORE_BYTES * queries * self.threads)
        return max(1, min(PRODUCT_ROWS, -(-rows // self.threads), fitting))

    def _merge_proposals(self, crowded: Int64Array, tile: Tile, asked: Asked, best: Best) -> None:
        """Merge the nearest rows of the tile for some queries, then what they may have missed."""
        with self.task.clock.phase("search"):
            count = min(best.depth + SLACK, len(tile.vectors))
            scores, rows = self.knn(asked.queries[crowded], tile.vectors, count)
            upper = (scores + asked.error[crowded, None]).astype(np.float32)
            line, column = np.nonzero(upper >= best.last_score[crowded, None])
            found = Pairs(crowded[line], rows[line, column])
        self._merge(found, tile, asked, best)
        if count < len(tile.vectors):
            # What was not proposed scores at most the last proposal, plus the error of both.
            unsure = np.flatnonzero(upper[:, -1] >= best.last_score[crowded])
            self._merge_missed(crowded[unsure], rows[unsure], tile, asked, best)

    def _merge_missed(
        self, unsure: Int64Array, proposed: Int64Array, tile: Tile, asked: Asked, best: Best
    ) -> None:
        """Merge every other row of the tile that may reach the k-th score, query by query."""
        step = max(1, self.task.block_bytes // (2 * SCORE_BYTES * len(tile.vectors)))
        lowest = asked.lowest(best.last_score)
        for first in range(0, len(unsure), step):
            some = unsure[first : first + step]
            with self.task.clock.phase("search"):
                wanted = asked.queries[some] @ tile.vectors.T >= lowest[some, None]
                np.put_along_axis(wanted, proposed[first : first + step], False, axis=1)
            for number, line in zip(some, wanted, strict=True):
                rows = np.flatnonzero(line)
                self._merge(Pairs(np.full(len(rows), number), rows), tile, asked, best)

    def _merge(self, found: Pairs, tile: Tile, asked: Asked, best: Best) -> None:
        """Score candidates in float64 and keep the best k; threads share the queries."""
        step = max(1, MERGE_PLACES // (best.depth + most_candidates(best.depth)))
        firsts = range(0, len(asked.queries), step)
        cuts = np.searchsorted(found.queries, [*firsts, len(asked.queries)])

        def merge(number: int) -> None:
            block = slice(firsts[number], firsts[number] + step)
            some = slice(cuts[number], cuts[number + 1])
            rows, queries = found.rows[some], found.queries[some] - block.start
            scores = exact_scores(tile.vectors, rows, asked.doubles[block], queries)
            keys = order_keys(scores, tile.tie_rank[rows])
            best[block].merge(queries, rows + tile.start, keys)

        with self.task.clock.phase("rescore"):
            list(self.each(merge, np.flatnonzero(np.diff(cuts))))
