"""Exact search on the processor with NumPy: tiles one after the other, queries in blocks.

A piece of a tile is as large as all that was searched before. Matrix products show which of its
rows may reach the bar, a score that k documents reach and below which no other is among the best
k; those raise the bar for the next piece. What is still above the bar at the end of the tile is
scored in float64.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from bench.evaluate.exact.task import (
    SearchTask,
    TileArray,
    Vectors,
    as_float32,
    dot_error,
    double_distance,
    exact_scores_by_query,
    lowest_score,
    most_candidates,
    norm_bounds,
    reached_score,
)
from bench.evaluate.search import order_keys, scores_of_keys
from foundation.arrays import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    UInt16Array,
    UInt64Array,
)
from retrievers.index.faiss_index import Hits

MOST_QUERIES = 1 << 16  # of a block: candidates count them in 16 bits
CANDIDATE_BYTES = 64  # of one candidate of one query, until it is merged
SCORE_BYTES = 5  # of one query and row: the float32 score, and whether it is high enough
PRODUCT_ROWS = 1 << 11  # scores of a thousand queries stay in a third-level cache
FIRST_ROWS = 16  # for each place of a ranking: the first bar is the best of so many
FIRST_BYTES = 16  # of one query and row of these: scores three times, and whether it is wanted
MERGED_PLACES = 1 << 16  # at a time and thread
SORTED_PLACES = 1 << 17  # at a time: their keys fit a second-level cache


def thread_count() -> int:
    """``OMP_NUM_THREADS`` where it is set, as for other libraries; else the processors allowed."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Tile:
    """Some rows of the corpus: vectors ``(m, dim)``, tie ranks ``(m,)``, longest norm."""

    start: int
    vectors: Float32Array
    tie_rank: Int64Array
    norm: float


@dataclass(frozen=True)
class Pairs:
    """Candidates, sorted by query; each array is ``(n,)``.

    Attributes:
        queries: number of the query in its block.
        rows: of the tile.
        scores: as float32 proposes them.
    """

    queries: UInt16Array
    rows: Int32Array
    scores: Float32Array

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def none(cls) -> "Pairs":
        """No candidates."""
        return cls(np.empty(0, np.uint16), np.empty(0, np.int32), np.empty(0, np.float32))

    @classmethod
    def where(cls, wanted: BoolArray, scores: Float32Array, first_row: int) -> "Pairs":
        """The places of a matrix of scores ``(q, m)`` that are wanted; its rows begin here."""
        places = np.flatnonzero(wanted)
        width, numbers = np.int32(scores.shape[1]), places.astype(np.int32)  # divided faster
        queries = numbers // width
        rows = numbers - (queries * width - np.int32(first_row))
        return cls(queries.astype(np.uint16), rows, scores.reshape(-1)[places])

    @classmethod
    def together(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """All of them, sorted by query again."""
        parts = parts or [cls.none()]
        if len(parts) == 1:
            return parts[0]
        queries = np.concatenate([part.queries for part in parts])
        order = np.argsort(queries, kind="stable")
        rows = np.concatenate([part.rows for part in parts])
        scores = np.concatenate([part.scores for part in parts])
        return cls(queries[order], rows[order], scores[order])

    def reaching(self, lowest: Float32Array) -> "Pairs":
        """Those whose proposed score is not below the lowest of their query, ``(q,)``."""
        some = np.flatnonzero(self.scores >= lowest[self.queries])  # faster than a mask
        return Pairs(self.queries[some], self.rows[some], self.scores[some])

    def by_query(self, queries: int, depth: int) -> Iterator[tuple[slice, "Pairs"]]:
        """Runs of queries, and their candidates, numbered by query within the run.

        Beside ``depth`` places of each query they fit a cache, or the query is alone.
        """
        if not len(self):
            return
        count = np.bincount(self.queries, minlength=queries)
        ends = np.concatenate([[0], np.cumsum(count)])
        for run in _runs(count, depth):
            some = slice(ends[run.start], ends[run.stop])
            numbers = self.queries[some] - np.uint16(run.start)
            yield run, Pairs(numbers, self.rows[some], self.scores[some])


def _runs(count: Int64Array, depth: int) -> Iterator[slice]:
    """Runs of queries with at most ``MERGED_PLACES`` places, as many as the widest has for each."""
    first = width = 0
    for query, own in enumerate(count.tolist()):
        width = max(width, own)
        if query > first and (query + 1 - first) * (depth + width) > MERGED_PLACES:
            yield slice(first, query)
            first, width = query, own
    yield slice(first, len(count))


def _beside(queries: UInt16Array, *columns: tuple[Any, Any, Any]) -> tuple[Int64Array, int, Any]:
    """Candidates, sorted by query, beside the k places that their queries have.

    Args:
        queries: of the candidates.
        columns: places of all queries ``(q, k)``, values of the candidates, what is unfilled.

    Returns:
        The queries that have candidates, the most candidates of one, and for each column the places
        and the candidates of these queries, ``(asked, k + most)``.
    """
    count, k = columns[0][0].shape
    own = np.bincount(queries, minlength=count)
    asked, most = np.flatnonzero(own), int(own.max(initial=0))
    line = (np.cumsum(own > 0) - 1)[queries]
    column = k + np.arange(len(queries)) - (np.cumsum(own) - own)[queries]
    both = []
    for places, values, unfilled in columns:
        matrix = np.full((len(asked), k + most), unfilled, places.dtype)
        matrix[:, :k] = places[asked]
        matrix[line, column] = values
        both.append(matrix)
    return asked, most, both


@dataclass(frozen=True)
class Best:
    """The best k places so far, unsorted: keys ``(q, k)``, 0 where unfilled; rows ``(q, k)``.

    A slice is a view: what is merged into it is merged into the whole.
    """

    keys: UInt64Array
    rows: Int64Array

    @classmethod
    def nothing(cls, count: int, k: int) -> "Best":
        """Before the first document: ``count`` queries, all ``k`` places unfilled."""
        return cls(np.zeros((count, k), np.uint64), np.full((count, k), -1, np.int64))

    def __getitem__(self, queries: slice) -> "Best":
        return Best(self.keys[queries], self.rows[queries])

    def merge(self, queries: UInt16Array, rows: Int64Array, keys: UInt64Array) -> None:
        """Keep the best k of these and of candidates, which are sorted by query."""
        columns = (self.keys, keys, 0), (self.rows, rows, -1)
        asked, most, (all_keys, all_rows) = _beside(queries, *columns)
        top = np.argpartition(all_keys, most, axis=1)[:, most:]
        self.keys[asked] = np.take_along_axis(all_keys, top, 1)
        self.rows[asked] = np.take_along_axis(all_rows, top, 1)

    def hits(self) -> Hits:
        """The hits in canonical order; places are sorted where they are, some queries at a time."""
        scores = np.empty(self.keys.shape, np.float32)
        step = max(1, SORTED_PLACES // self.keys.shape[1])
        for first in range(0, len(scores), step):
            some = self[first : first + step]
            best = np.argsort(~some.keys, axis=1)
            some.rows[:] = np.take_along_axis(some.rows, best, axis=1)
            keys = np.take_along_axis(some.keys, best, axis=1)
            scores[first : first + step] = scores_of_keys(keys)
        return Hits(scores, self.rows)


@dataclass(frozen=True)
class Bar:
    """The best k scores of each query that some documents have, proposed or exact, ``(q, k)``.

    A slice is a view: what is merged into it is merged into the whole.

    Attributes:
        scores: of k different documents; -inf where there are not yet k.
        exact: the k-th exact one, ``(q,)``.
        error: of a proposed score, ``(q,)``.
    """

    scores: Float32Array
    exact: Float32Array
    error: Float64Array

    @classmethod
    def of(cls, best: Best, error: Float64Array) -> "Bar":
        """The bar while all scores are exact."""
        return cls(scores_of_keys(best.keys), scores_of_keys(best.keys.min(axis=1)), error)

    def __getitem__(self, queries: slice) -> "Bar":
        return Bar(self.scores[queries], self.exact[queries], self.error[queries])

    def merge(self, pairs: Pairs) -> None:
        """Raise the bar by scores of other documents than those it has."""
        column = self.scores, pairs.scores, -np.inf
        asked, most, (scores,) = _beside(pairs.queries, column)
        self.scores[asked] = np.partition(scores, most, axis=1)[:, most:]

    def lowest(self) -> Float32Array:
        """The proposed score below which a document is not among the best k, ``(q,)``."""
        reached = reached_score(self.scores.min(axis=1), self.error)
        return lowest_score(np.maximum(self.exact, reached), self.error)


class BlockSearch:
    """The search of a tile for a block of queries, whose best it changes.

    Attributes:
        queries: float32 ``(q, dim)``.
        doubles: the same in float64.
        error: most that a float32 score is off, ``(q,)``.
        distance: most between two float64 scores that are summed in different orders, ``(q,)``.
    """

    def __init__(
        self, task: SearchTask, pool: ThreadPoolExecutor, tile: Tile, block: slice, best: Best
    ) -> None:
        self._task, self._pool, self._tile, self._threads = task, pool, tile, thread_count()
        self._best = best[block]
        self.queries, norms = task.queries[block], task.norms[block]
        self.doubles = self.queries.astype(np.float64)
        self.error = dot_error(self.queries.shape[1], norms, tile.norm)
        self.distance = double_distance(self.queries.shape[1], norms, tile.norm)
        self._most = len(self.queries) * most_candidates(task.k)
        self._bar, self._pending = Bar.of(self._best, self.error), list[Pairs]()

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
        threads, count = self._threads, len(self.queries)
        fitting = self._task.block_bytes // (2 * FIRST_BYTES * len(rows) * threads)
        step = max(1, min(-(-count // threads), fitting))
        room = _Room(self._most)

        def picked(first: int) -> Pairs:
            bar = self._bar[first : first + step]
            scores = np.matmul(self.queries[first : first + step], rows.T)
            both = np.concatenate([bar.scores, scores], axis=1)
            bar.scores[:] = np.partition(both, len(rows), axis=1)[:, len(rows) :]
            wanted = scores >= bar.lowest()[:, None]
            if not room.take(wanted):
                return Pairs.none()
            pairs = Pairs.where(wanted, scores, 0)
            return Pairs(pairs.queries + np.uint16(first), pairs.rows, pairs.scores)

        with self._task.clock.phase("search"):
            parts = list(self._pool.map(picked, range(0, count, step)))
            if room.left < 0:
                self._bar = Bar.of(self._best, self.error)
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
        for _ in range(self._threads):
            spare.put((np.empty(count * step, np.float32), np.empty(count * step, "?")))

        def reaching(first: int) -> Pairs:
            if room.left < 0:
                return Pairs.none()
            rows = self._tile.vectors[first : min(first + step, piece.stop)]
            arrays = spare.get()
            size = count * len(rows)
            scores: Float32Array = arrays[0][:size].reshape(count, len(rows))
            wanted: BoolArray = arrays[1][:size].reshape(count, len(rows))
            np.matmul(self.queries, rows.T, out=scores)
            np.greater_equal(scores, lowest, out=wanted)
            taken = room.take(wanted)
            pairs = Pairs.where(wanted, scores, first) if taken else Pairs.none()
            spare.put(arrays)
            return pairs

        with self._task.clock.phase("search"):
            parts = list(self._pool.map(reaching, range(piece.start, piece.stop, step)))
            return None if room.left < 0 else Pairs.together(parts)

    def _product_rows(self, rows: int) -> int:
        """Rows of one matrix product: as many as fit, a few products for each thread."""
        bytes_of_row = 2 * SCORE_BYTES * len(self.queries) * self._threads
        fitting = self._task.block_bytes // bytes_of_row
        return max(1, min(PRODUCT_ROWS, -(-rows // self._threads), fitting))

    def _raise_bar(self, pairs: Pairs) -> None:
        """Raise the bar by candidates that it does not have; threads share the queries."""

        def merge(some: tuple[slice, Pairs]) -> None:
            self._bar[some[0]].merge(some[1])

        with self._task.clock.phase("search"):
            runs = pairs.by_query(len(self.queries), self._task.k)
            list(self._pool.map(merge, runs))

    def _hold(self, pairs: Pairs) -> None:
        """Keep candidates for later; score them where too many are above the bar."""
        self._pending.append(pairs)
        if sum(map(len, self._pending)) > 2 * self._most:
            self._drop_low()
            if sum(map(len, self._pending)) > self._most:
                self._rescore()
                self._bar = Bar.of(self._best, self.error)

    def _drop_low(self) -> None:
        """Keep the candidates that may still be above the bar."""
        lowest = self._bar.lowest()
        self._pending = [pairs.reaching(lowest) for pairs in self._pending]

    def _rescore(self) -> None:
        """Score candidates in float64 and keep the best k; threads share the queries."""
        tile = self._tile

        def merge(some: tuple[slice, Pairs]) -> None:
            block, pairs = some
            doubles, distance = self.doubles[block], self.distance[block]
            scores = exact_scores_by_query(
                tile.vectors, pairs.rows, doubles, pairs.queries, distance
            )
            keys = order_keys(scores, tile.tie_rank[pairs.rows])
            self._best[block].merge(pairs.queries, pairs.rows + np.int64(tile.start), keys)

        with self._task.clock.phase("rescore"):
            self._drop_low()
            runs = Pairs.together(self._pending).by_query(len(self.queries), self._task.k)
            list(self._pool.map(merge, runs))
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


class NumpyEngine:
    """Candidates by NumPy's products, shared among threads."""

    @contextmanager
    def open(self, task: SearchTask) -> Iterator["NumpySearch"]:
        """A search with threads of its own."""
        best = Best.nothing(len(task.queries), task.k)
        with ThreadPoolExecutor(thread_count()) as pool:
            yield NumpySearch(task, best, pool, ThreadpoolController())


@dataclass(frozen=True)
class NumpySearch:
    """The search of one tile after the other, for a block of queries at a time."""

    task: SearchTask
    best: Best
    pool: ThreadPoolExecutor
    blas: ThreadpoolController

    def read(self, vectors: Vectors) -> Iterator[tuple[int, TileArray]]:
        """Tiles of as many rows as were asked for."""
        return vectors.tiles(self.task.tile_rows)

    def stage(self, start: int, vectors: TileArray) -> Tile:
        """The tile as float32, with its norm."""
        vectors = as_float32(vectors)
        norm = float(norm_bounds(vectors, "document", start).max(initial=0.0))
        ranks = np.asarray(self.task.tie_rank[start : start + len(vectors)])
        return Tile(start, vectors, ranks, norm)

    def merge(self, tile: Tile) -> int:
        """Make the best of the rows so far the best of this tile too, block by block."""
        # The candidates of a block fill half of it; their scores fill the other half.
        fitting = self.task.block_bytes // (2 * CANDIDATE_BYTES * most_candidates(self.task.k))
        step = min(max(1, fitting), MOST_QUERIES)
        with self.blas.limit(limits=1, user_api="blas"):  # products side by side
            for first in range(0, len(self.task.queries), step):
                block = slice(first, first + step)
                BlockSearch(self.task, self.pool, tile, block, self.best).run()
        return len(tile.vectors)

    def hits(self) -> Hits:
        """The hits in canonical order."""
        return self.best.hits()
