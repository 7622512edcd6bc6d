"""The search of a tile for some queries: candidates are proposed in float32, few are scored.

A piece of the tile is as large as all that was searched before. Matrix products show which of its
rows may reach the bar, and those raise the bar for the next piece. What is still above the bar at
the end of the tile is scored in float64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np

from bench.evaluate.exact.bar import Bar
from bench.evaluate.exact.best import Best
from bench.evaluate.exact.candidates import Asked, Pairs, Tile
from bench.evaluate.exact.rescoring import exact_scores_by_query
from bench.evaluate.exact.task import SearchTask
from bench.evaluate.search import order_keys
from foundation.arrays import BoolArray, Float32Array

SLACK = 64  # candidates beyond 2 k
CANDIDATE_BYTES = 64  # of one candidate of one query, until it is merged
SCORE_BYTES = 5  # of one query and row: the float32 score, and whether it is high enough
PRODUCT_ROWS = 1 << 11  # scores of a thousand queries stay in a third-level cache
FIRST_ROWS = 16  # for each place of a ranking: the first bar is the best of so many
FIRST_BYTES = 16  # of one query and row of these: scores three times, and whether it is wanted


def most_candidates(k: int) -> int:
    """Most candidates of one query that are proposed at a time, on average of all queries."""
    return 2 * k + SLACK


@dataclass(frozen=True)
class Threads:
    """Threads that share work: their number, and a ``map``."""

    count: int
    each: Callable[..., Iterator[Any]]


class BlockSearch:
    """The search of a tile for a block of queries, whose best it changes."""

    def __init__(
        self, task: SearchTask, threads: Threads, tile: Tile, asked: Asked, best: Best
    ) -> None:
        self._task, self._threads = task, threads
        self._tile, self._asked, self._best = tile, asked, best
        self._most = len(asked.queries) * most_candidates(task.k)
        self._bar, self._pending = Bar.of(best, asked.error), list[Pairs]()

    def run(self) -> None:
        """Make the best so far the best of the tile, too."""
        before, rows = self._tile.start, len(self._tile.vectors)
        least = most_candidates(self._task.k)  # of so many rows none can be too many candidates
        done, size = 0 if before else self._search_first(), rows
        while done < rows:
            size = min(size, max(least, before + done))
            piece = slice(done, min(done + size, rows))
            pairs = self._reaching(piece)
            if pairs is None:
                size = max(least, (piece.stop - done) // 2)
                continue
            self._raise_bar(pairs)
            self._hold(pairs)
            done, size = piece.stop, 2 * size
        self._rescore()

    def _search_first(self) -> int:
        """Search the first rows, where no bar has let anything pass; how many, or 0 in vain.

        Threads share the queries, and pick the best of all their scores.
        """
        rows = self._tile.vectors[: FIRST_ROWS * self._task.k]
        threads, count = self._threads.count, len(self._asked.queries)
        fitting = self._task.block_bytes // (2 * FIRST_BYTES * len(rows) * threads)
        step = max(1, min(-(-count // threads), fitting))
        room = _Room(self._most)

        def picked(first: int) -> Pairs:
            bar = self._bar[first : first + step]
            scores = np.matmul(self._asked.queries[first : first + step], rows.T)
            both = np.concatenate([bar.scores, scores], axis=1)
            bar.scores[:] = np.partition(both, len(rows), axis=1)[:, len(rows) :]
            wanted = scores >= bar.lowest()[:, None]
            if not room.take(wanted):
                return Pairs.none()
            pairs = Pairs.where(wanted, scores, 0)
            return Pairs(pairs.queries + np.uint16(first), pairs.rows, pairs.scores)

        with self._task.clock.phase("search"):
            parts = list(self._threads.each(picked, range(0, count, step)))
            if room.left < 0:
                self._bar = Bar.of(self._best, self._asked.error)
                return 0
            self._hold(Pairs.together(parts))
            return len(rows)

    def _reaching(self, piece: slice) -> Pairs | None:
        """The rows of a piece that may be above the bar; None where they are too many.

        Threads share the rows, each with a matrix product of its own: none waits for another, and
        the scores are compared while they are in the cache.
        """
        lowest, room = self._bar.lowest()[:, None], _Room(self._most)
        count = len(lowest)
        step = self._product_rows(piece.stop - piece.start)
        spare = SimpleQueue[tuple[Float32Array, BoolArray]]()
        for _ in range(self._threads.count):
            spare.put((np.empty(count * step, np.float32), np.empty(count * step, "?")))

        def reaching(first: int) -> Pairs:
            if room.left < 0:
                return Pairs.none()
            rows = self._tile.vectors[first : min(first + step, piece.stop)]
            arrays = spare.get()
            size = count * len(rows)
            scores: Float32Array = arrays[0][:size].reshape(count, len(rows))
            wanted: BoolArray = arrays[1][:size].reshape(count, len(rows))
            np.matmul(self._asked.queries, rows.T, out=scores)
            np.greater_equal(scores, lowest, out=wanted)
            taken = room.take(wanted)
            pairs = Pairs.where(wanted, scores, first) if taken else Pairs.none()
            spare.put(arrays)
            return pairs

        with self._task.clock.phase("search"):
            parts = list(self._threads.each(reaching, range(piece.start, piece.stop, step)))
            return None if room.left < 0 else Pairs.together(parts)

    def _product_rows(self, rows: int) -> int:
        """Rows of one matrix product: as many as fit, a few products for each thread."""
        bytes_of_row = 2 * SCORE_BYTES * len(self._asked.queries) * self._threads.count
        fitting = self._task.block_bytes // bytes_of_row
        return max(1, min(PRODUCT_ROWS, -(-rows // self._threads.count), fitting))

    def _raise_bar(self, pairs: Pairs) -> None:
        """Raise the bar by candidates that it does not have; threads share the queries."""

        def merge(some: tuple[slice, Pairs]) -> None:
            self._bar[some[0]].merge(some[1])

        with self._task.clock.phase("search"):
            runs = pairs.by_query(len(self._asked.queries), self._task.k)
            list(self._threads.each(merge, runs))

    def _hold(self, pairs: Pairs) -> None:
        """Keep candidates for later; score them where too many are above the bar."""
        self._pending.append(pairs)
        if sum(map(len, self._pending)) > 2 * self._most:
            self._drop_low()
            if sum(map(len, self._pending)) > self._most:
                self._rescore()
                self._bar = Bar.of(self._best, self._asked.error)

    def _drop_low(self) -> None:
        """Keep the candidates that may still be above the bar."""
        lowest = self._bar.lowest()
        self._pending = [pairs.reaching(lowest) for pairs in self._pending]

    def _rescore(self) -> None:
        """Score candidates in float64 and keep the best k; threads share the queries."""
        tile, asked = self._tile, self._asked

        def merge(some: tuple[slice, Pairs]) -> None:
            block, pairs = some
            doubles, distance = asked.doubles[block], asked.distance[block]
            scores = exact_scores_by_query(
                tile.vectors, pairs.rows, doubles, pairs.queries, distance
            )
            keys = order_keys(scores, tile.tie_rank[pairs.rows])
            self._best[block].merge(pairs.queries, pairs.rows + np.int64(tile.start), keys)

        with self._task.clock.phase("rescore"):
            self._drop_low()
            runs = Pairs.together(self._pending).by_query(len(asked.queries), self._task.k)
            list(self._threads.each(merge, runs))
            self._pending = []


class _Room:
    """Room for candidates, of which threads take; less than nothing where it was not enough."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._taking = Lock()

    def take(self, wanted: BoolArray) -> bool:
        """True where there is room for all that are wanted, too."""
        with self._taking:
            self.left -= int(np.count_nonzero(wanted))
            return self.left >= 0
