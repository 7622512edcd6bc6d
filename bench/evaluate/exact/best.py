"""The best places of every query so far."""

from dataclasses import dataclass

import numpy as np

from bench.evaluate.search import scores_of_keys
from foundation.arrays import Float32Array, Int64Array, UInt64Array
from retrievers.index.faiss_index import Hits

SORTED_PLACES = 1 << 17  # at a time: their keys fit a second-level cache


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

    def merge(self, queries: Int64Array, rows: Int64Array, keys: UInt64Array) -> None:
        """Keep the best k of these and of candidates, which are sorted by query."""
        count = np.bincount(queries, minlength=len(self.keys))
        asked, width = np.flatnonzero(count), int(count.max(initial=0))
        line = (np.cumsum(count > 0) - 1)[queries]
        column = self.depth + np.arange(len(line)) - (np.cumsum(count) - count)[queries]
        shape = len(asked), self.depth + width
        all_keys, all_rows = np.zeros(shape, np.uint64), np.full(shape, -1, np.int64)
        all_keys[:, : self.depth], all_rows[:, : self.depth] = self.keys[asked], self.rows[asked]
        all_keys[line, column], all_rows[line, column] = keys, rows
        top = np.argpartition(all_keys, width, axis=1)[:, width:]
        self.keys[asked] = np.take_along_axis(all_keys, top, 1)
        self.rows[asked] = np.take_along_axis(all_rows, top, 1)

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
