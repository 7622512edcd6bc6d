"""Two rows query by query: their scores as a cloud of points, and the queries that changed most.

A pair of rows may share 10,000 queries, and a site may have a hundred pairs: points that lie
closer than can be seen are one dot, which is counted and names a few of its queries.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from textwrap import shorten

import msgspec
import numpy as np

from bench.boards.records import Dot, OnQueries
from bench.comparing.changed import Changes, most_changed
from bench.comparing.statistics import Difference
from bench.evaluate.runs import Run
from bench.results.location import Place
from bench.results.result import Evaluation, Protocol
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array

GRID = 32  # dots from score 0 to 1
NAMED = 3  # queries of a dot
LIGHT = 8_000_000  # bytes of a run file that is read though nobody asked for the pair
RUNS = 4  # kept at a time: neighbours share one
NO_RUN = Run.from_rows([], [], [])
WIDTH = 300  # characters of a document

Names = tuple[str, str]
OpenDataset = Callable[[Protocol], Dataset | str]


def dots(ids: Sequence[str], a: Float64Array, b: Float64Array) -> tuple[Dot, ...]:
    """Points of a scatter plot, those of one cell of the grid as one.

    Args:
        ids: of the queries.
        a, b: float64 ``(queries,)``.
    """
    cells = np.rint(np.stack([a, b]) * GRID).astype(np.int64)
    code = cells[0] * (cells.max(initial=0) + 1) + cells[1]
    _, place, counts = np.unique(code, return_inverse=True, return_counts=True)
    means = [np.bincount(place, scores) / counts for scores in (a, b)]
    order = np.argsort(place, kind="stable").tolist()
    ends = counts.cumsum().tolist()
    return tuple(
        Dot(x, y, count, tuple(ids[number] for number in order[end - count : end][:NAMED]))
        for x, y, count, end in zip(
            means[0].tolist(), means[1].tolist(), counts.tolist(), ends, strict=True
        )
    )


@dataclass
class QueryWork:
    """Looks at the queries of pairs, a collection after the other.

    Attributes:
        by_row: result by name of column, by name of row.
        asked: pairs whose rankings are read however large they are.
        opened: the collection of a protocol; or why it is not at hand.
        count: queries that changed most, each way; 0 for none.
        texts: of the queries that dots name, by column, as far as collections are at hand.
    """

    by_row: Mapping[str, Mapping[str, Evaluation]]
    asked: Collection[Names]
    opened: OpenDataset
    count: int
    texts: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open = lru_cache(maxsize=1)(self.opened)
        self._run = lru_cache(maxsize=RUNS)(lambda row, column: self.by_row[row][column].run)

    def looks(
        self, columns: Iterable[str], pairs: Mapping[Names, Sequence[Difference]]
    ) -> dict[Names, list[OnQueries]]:
        """The queries of every column under each pair that was compared there."""
        found: dict[Names, list[OnQueries]] = {pair: [] for pair in pairs}
        for column in columns:
            for pair, tests in pairs.items():
                measures = [test.measure for test in tests if test.on == column]
                found[pair] += [self.look(column, measure, pair) for measure in measures]
        return found

    def look(self, column: str, measure: str, pair: Names) -> OnQueries:
        """The queries of one collection under two rows."""
        values = [self.by_row[row][column].scores.by_query(measure) for row in pair]
        ids = sorted(values[0])
        points = dots(ids, *(np.array([side[query] for query in ids]) for side in values))
        dataset = self._open(self.by_row[pair[0]][column].result.protocol)
        if not isinstance(dataset, str):
            self._remember(column, dataset, points)
        left_out = self._left_out(pair, column)
        changes = None
        if self.count:
            a, b = (self._side(row, column, left_out) for row in pair)
            changes = _shortened(most_changed(pair, (a, b), measure, self.count, dataset))
        return OnQueries(place=column, dots=points, changes=changes, without_rankings=left_out)

    def _side(self, row: str, column: str, left_out: str) -> Evaluation:
        """One side of a pair, without its ranking where that is left out."""
        done = self.by_row[row][column]
        run = NO_RUN if left_out else self._run(row, column)
        return Evaluation(done.result, done.scores, run)

    def _remember(self, column: str, dataset: Dataset, points: Sequence[Dot]) -> None:
        known = self.texts.setdefault(column, {})
        new = {query for dot in points for query in dot.queries}.difference(known)
        if new:
            pairs = zip(dataset.queries.ids, dataset.queries.texts, strict=True)
            known.update((query, text) for query, text in pairs if query in new)

    def _left_out(self, pair: Names, column: str) -> str:
        """Why the rankings are not shown; "" where they are."""
        files = [self.by_row[row][column].run_file for row in pair]
        if not all(file.is_file() for file in files):
            return "a result came without its ranking"
        if pair not in self.asked and not all(_is_light(file) for file in files):
            return "the rankings are large or far away: --pair shows them"
        return ""


def _is_light(file: Place) -> bool:
    return isinstance(file, Path) and file.stat().st_size <= LIGHT


def _shortened(changes: Changes) -> Changes:
    """The changes with the beginnings of documents only: a site holds those of many pairs."""

    def short(text: str) -> str:
        return shorten(text, WIDTH, placeholder=" …")

    replaced = msgspec.structs.replace
    queries = [
        replaced(query, judged=tuple(replaced(one, text=short(one.text)) for one in query.judged))
        for query in changes.queries
    ]
    return replaced(changes, queries=tuple(queries))
