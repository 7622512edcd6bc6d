"""A tile of the corpus, the queries that are asked of it, and pairs of both to be scored."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.exact.bounds import dot_error, norm_bounds

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Tile:
    """Some rows of the corpus: vectors ``(m, dim)``, tie ranks ``(m,)``, longest norm."""

    start: int
    vectors: Floats
    tie_rank: Ints
    norm: float

    @classmethod
    def of(cls, start: int, vectors: Floats, tie_rank: Ints) -> "Tile":
        """Rows from ``start`` on; ``tie_rank`` is of the whole corpus."""
        norm = float(norm_bounds(vectors, "document", start).max(initial=0.0))
        ranks = np.asarray(tie_rank[start : start + len(vectors)])
        return cls(start, vectors, ranks, norm)


@dataclass(frozen=True)
class Asked:
    """Some queries ``(q, dim)``, and how far a float32 score of this tile may be off ``(q,)``."""

    queries: Floats
    doubles: Doubles
    error: Doubles

    @classmethod
    def of(cls, queries: Floats, norms: Doubles, tile: Tile) -> "Asked":
        """What is asked of ``tile``; ``norms`` of the queries, ``(q,)``."""
        error = dot_error(queries.shape[1], norms, tile.norm)
        return cls(queries, queries.astype(np.float64), error)

    def lowest(self, bar: Floats) -> Floats:
        """The float32 score below which the exact one cannot reach ``bar``, ``(q,)``."""
        goal = np.nextafter(bar, np.float32(-np.inf)).astype(np.float64)
        return np.nextafter((goal - self.error).astype(np.float32), np.float32(-np.inf))


@dataclass(frozen=True)
class Pairs:
    """Candidates, sorted by query: number of the query in its block, and row of the tile."""

    queries: Ints
    rows: Ints

    @classmethod
    def none(cls) -> "Pairs":
        """Not one."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def where(cls, wanted: Flags, first_row: int = 0) -> "Pairs":
        """The places of a matrix ``(q, m)`` that are true."""
        queries, rows = np.divmod(np.flatnonzero(wanted), wanted.shape[1])
        return cls(queries, rows + first_row)

    @classmethod
    def together(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """All of them, sorted by query again."""
        queries = np.concatenate([part.queries for part in parts])
        order = np.argsort(queries, kind="stable")
        return cls(queries[order], np.concatenate([part.rows for part in parts])[order])

    def of(self, kept: Flags) -> "Pairs":
        """Those of some queries, ``(q,)``."""
        some = kept[self.queries]
        return Pairs(self.queries[some], self.rows[some])
