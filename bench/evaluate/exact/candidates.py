"""A tile of the corpus, the queries that are asked of it, and pairs of both to be scored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.evaluate.exact.bounds import dot_error, double_distance, norm_bounds
from bench.evaluate.exact.vectors import TileArray, as_float32
from foundation.arrays import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    UInt16Array,
)

MERGED_PLACES = 1 << 16  # at a time and thread


@dataclass(frozen=True)
class Tile:
    """Some rows of the corpus: vectors ``(m, dim)``, tie ranks ``(m,)``, longest norm."""

    start: int
    vectors: Float32Array
    tie_rank: Int64Array
    norm: float

    @classmethod
    def of(cls, start: int, vectors: TileArray, tie_rank: Int64Array) -> "Tile":
        """Rows from ``start`` on, as float32; ``tie_rank`` is of the whole corpus."""
        vectors = as_float32(vectors)
        norm = float(norm_bounds(vectors, "document", start).max(initial=0.0))
        ranks = np.asarray(tie_rank[start : start + len(vectors)])
        return cls(start, vectors, ranks, norm)


@dataclass(frozen=True)
class Asked:
    """Some queries ``(q, dim)``, also in float64, and bounds for their scores in a tile ``(q,)``.

    Attributes:
        error: of a float32 score.
        distance: of two float64 scores, summed in different orders.
    """

    queries: Float32Array
    doubles: Float64Array
    error: Float64Array
    distance: Float64Array

    @classmethod
    def of(cls, queries: Float32Array, norms: Float64Array, tile: Tile) -> "Asked":
        """The queries with their bounds on ``tile``; ``norms`` of the queries, ``(q,)``."""
        error = dot_error(queries.shape[1], norms, tile.norm)
        distance = double_distance(queries.shape[1], norms, tile.norm)
        return cls(queries, queries.astype(np.float64), error, distance)


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
