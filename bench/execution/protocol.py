"""The interface of execution engines, and how rankings of parts become one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bench.evaluate.search import canonical
from foundation.arrays import Float32Array, Int64Array
from retrievers.index.faiss_index import Hits

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Encoded:
    """Outcome of encoding shards.

    Attributes:
        shards: names of those that are in the store now, whoever encoded them.
        texts: that were encoded for this answer.
        seconds, counts: as of `retrievers.encoders.clock.Clock`, added up over workers.
    """

    shards: frozenset[str]
    texts: int
    seconds: Mapping[str, float]
    counts: Mapping[str, int]


class ExecutionEngine(Protocol):
    """Encodes the shards of one corpus and searches its tiles, for one model."""

    def encode(self, shards: Sequence[str], advance: Advance) -> Encoded:
        """Write shards into the store.

        Args:
            shards: names, as of the store's plan for the corpus.
            advance: called with numbers of texts that are encoded.

        Returns:
            What was done. A shard that somebody else is at work on may be missing from it.

        Raises:
            BenchError: the encoder fails.
            OSError: no space is left.
        """
        ...

    def tiles(self, rows: int) -> list[range]:
        """Parts in which a corpus of so many rows should be searched; one where nothing is won."""
        ...

    def search(
        self, tiles: Sequence[range], queries: Float32Array, k: int, advance: Advance
    ) -> Hits:
        """The best k documents of the tiles for each query, in canonical order.

        The ranking is the same for any tiles that cover the same rows.

        Args:
            tiles: disjoint ranges of rows of the corpus.
            queries: float32 ``(q, dim)``.
            k: depth; places that cannot be filled have row -1.
            advance: called with numbers of rows that are searched.

        Raises:
            BenchError: a vector of these rows is not stored.
        """
        ...


class TreeMerge:
    """Rankings of parts, merged two of one size at a time: about log2 of them are held."""

    def __init__(self, tie_rank: Int64Array, k: int) -> None:
        self._tie_rank, self._k = tie_rank, k
        self._held: list[tuple[int, Hits]] = []  # with how many parts each is of

    def add(self, hits: Hits) -> None:
        """Take in the ranking of another part, whose rows are those of the whole corpus."""
        parts = 1
        while self._held and self._held[-1][0] == parts:
            hits = self._merged(self._held.pop()[1], hits)
            parts *= 2
        self._held.append((parts, hits))

    def hits(self, queries: int) -> Hits:
        """The best k of all parts for each of so many queries."""
        merged = Hits(np.empty((queries, 0), np.float32), np.empty((queries, 0), np.int64))
        for _, hits in reversed(self._held):
            merged = self._merged(merged, hits)
        return self._merged(merged, merged) if not self._held else merged

    def _merged(self, first: Hits, second: Hits) -> Hits:
        both = Hits(
            np.concatenate([first.scores, second.scores], axis=1),
            np.concatenate([first.rows, second.rows], axis=1),
        )
        return canonical(both, self._tie_rank, self._k)
