"""The best places of every query so far."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bench.evaluate.search import scores_of_keys
from foundation.arrays import Float32Array, Int64Array, UInt16Array, UInt64Array
from retrievers.index.faiss_index import Hits

Number = TypeVar("Number", bound=np.generic)

SORTED_PLACES = 1 << 17  # at a time: their keys fit a second-level cache


@dataclass(frozen=True)
class Beside:
    """Places of candidates, sorted by query, beside the k places that their queries have.

    Attributes:
        asked: the queries that have candidates.
        width: most candidates of a query.
        line, column: of each candidate, in a matrix of a line for each of ``asked``.
    """

    asked: Int64Array
    width: int
    line: Int64Array
    column: Int64Array

    @classmethod
    def of(cls, queries: UInt16Array, count: int, k: int) -> "Beside":
        """The places for candidates of some of ``count`` queries with ``k`` places each."""
        own = np.bincount(queries, minlength=count)
        line = (np.cumsum(own > 0) - 1)[queries]
        column = k + np.arange(len(queries)) - (np.cumsum(own) - own)[queries]
        return cls(np.flatnonzero(own), int(own.max(initial=0)), line, column)

    def put(
        self, places: npt.NDArray[Number], values: npt.NDArray[Number], unfilled: Number
    ) -> npt.NDArray[Number]:
        """The k places of the queries that have candidates, and these, ``(asked, k + width)``."""
        k = places.shape[1]
        both = np.full((len(self.asked), k + self.width), unfilled, places.dtype)
        both[:, :k] = places[self.asked]
        both[self.line, self.column] = values
        return both


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

    @property
    def depth(self) -> int:
        """Places of a query."""
        return int(self.keys.shape[1])

    @property
    def last_score(self) -> Float32Array:
        """Score of the k-th place, float32 ``(q,)``; -inf while one is unfilled."""
        return scores_of_keys(self.keys.min(axis=1))

    def merge(self, queries: UInt16Array, rows: Int64Array, keys: UInt64Array) -> None:
        """Keep the best k of these and of candidates, which are sorted by query."""
        beside = Beside.of(queries, *self.keys.shape)
        all_keys = beside.put(self.keys, keys, np.uint64(0))
        all_rows = beside.put(self.rows, rows, np.int64(-1))
        top = np.argpartition(all_keys, beside.width, axis=1)[:, beside.width :]
        self.keys[beside.asked] = np.take_along_axis(all_keys, top, 1)
        self.rows[beside.asked] = np.take_along_axis(all_rows, top, 1)

    def hits(self) -> Hits:
        """The hits in canonical order; places are sorted where they are, some queries at a time."""
        scores = np.empty(self.keys.shape, np.float32)
        step = max(1, SORTED_PLACES // self.depth)
        for first in range(0, len(scores), step):
            some = self[first : first + step]
            best = np.argsort(~some.keys, axis=1)
            some.rows[:] = np.take_along_axis(some.rows, best, axis=1)
            keys = np.take_along_axis(some.keys, best, axis=1)
            scores[first : first + step] = scores_of_keys(keys)
        return Hits(scores, self.rows)
