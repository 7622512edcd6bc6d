"""A tile of the corpus, the queries that are asked of it, and pairs of both to be scored."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.evaluate.exact.bounds import dot_error, lowest_score, norm_bounds
from bench.evaluate.exact.vectors import TileArray, as_float32
from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array


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
    """Some queries ``(q, dim)``, and how far a float32 score of this tile may be off ``(q,)``."""

    queries: Float32Array
    doubles: Float64Array
    error: Float64Array

    @classmethod
    def of(cls, queries: Float32Array, norms: Float64Array, tile: Tile) -> "Asked":
        """The queries with their errors on ``tile``; ``norms`` of the queries, ``(q,)``."""
        error = dot_error(queries.shape[1], norms, tile.norm)
        return cls(queries, queries.astype(np.float64), error)

    def lowest(self, bar: Float32Array) -> Float32Array:
        """The float32 score below which the exact one cannot reach ``bar``, ``(q,)``."""
        return lowest_score(bar, self.error)


@dataclass(frozen=True)
class Pairs:
    """Candidates, sorted by query: number of the query in its block, and row of the tile."""

    queries: Int64Array
    rows: Int64Array

    @classmethod
    def none(cls) -> "Pairs":
        """Not one."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def where(cls, wanted: BoolArray, first_row: int = 0) -> "Pairs":
        """The places of a matrix ``(q, m)`` that are true."""
        queries, rows = np.divmod(np.flatnonzero(wanted), wanted.shape[1])
        return cls(queries, rows + first_row)

    @classmethod
    def together(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """All of them, sorted by query again."""
        queries = np.concatenate([part.queries for part in parts])
        order = np.argsort(queries, kind="stable")
        return cls(queries[order], np.concatenate([part.rows for part in parts])[order])

    def of(self, kept: BoolArray) -> "Pairs":
        """Those of some queries, ``(q,)``."""
        some = kept[self.queries]
        return Pairs(self.queries[some], self.rows[some])
