"""Exact search on the processor, with NumPy: tiles one after the other, queries in blocks."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from threadpoolctl import ThreadpoolController

from bench.evaluate.exact.best import Best
from bench.evaluate.exact.block_search import (
    CANDIDATE_BYTES,
    BlockSearch,
    Threads,
    most_candidates,
)
from bench.evaluate.exact.candidates import Asked, Tile
from bench.evaluate.exact.task import SearchTask
from bench.evaluate.exact.vectors import TileArray, Vectors
from retrievers.index.faiss_index import Hits

MOST_QUERIES = 1 << 16  # of a block: candidates count them in 16 bits


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
            yield ProcessorSearch(task, best, Threads(threads, pool.map), ThreadpoolController())


@dataclass(frozen=True)
class ProcessorSearch:
    """The search of one tile after the other, for a block of queries at a time."""

    task: SearchTask
    best: Best
    threads: Threads
    blas: ThreadpoolController

    def read(self, vectors: Vectors) -> Iterator[tuple[int, TileArray]]:
        """Tiles of as many rows as were asked for."""
        return vectors.tiles(self.task.tile_rows)

    def stage(self, start: int, vectors: TileArray) -> Tile:
        """The tile as float32, with its norm."""
        return Tile.of(start, vectors, self.task.tie_rank)

    def merge(self, tile: Tile) -> int:
        """Make the best of the rows so far the best of this tile too, block by block."""
        task, step = self.task, self._block_queries()
        with self.blas.limit(limits=1, user_api="blas"):  # products side by side
            for first in range(0, len(task.queries), step):
                block = slice(first, first + step)
                asked = Asked.of(task.queries[block], task.norms[block], tile)
                BlockSearch(task, self.threads, tile, asked, self.best[block]).run()
        return len(tile.vectors)

    def hits(self) -> Hits:
        """The hits in canonical order."""
        return self.best.hits()

    def _block_queries(self) -> int:
        """Queries whose candidates fill half of a block; their scores fill the other half."""
        candidates = CANDIDATE_BYTES * most_candidates(self.task.k)
        return min(max(1, self.task.block_bytes // (2 * candidates)), MOST_QUERIES)
