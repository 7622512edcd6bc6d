"""Pairs of rows compared while the scores and resamples of a collection are at hand.

Of a suite, each pair keeps weighted sums of its resampled differences, not those of every member.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from bench.boards.records import OnQueries, Pair
from bench.comparing.statistics import (
    Difference,
    PairedScores,
    Resampled,
    adjusted,
    difference_in,
    paired,
)
from foundation.arrays import Float64Array

Names = tuple[str, str]
Look = Callable[[str, str, Names, Sequence[str], Float64Array], OnQueries]


@dataclass
class _OnSuite:
    """The differences of one pair on the members of a suite, so far.

    Attributes:
        drawn: sums of bootstrap and flipped differences, each member with its weight.
    """

    weights: list[float] = field(default_factory=list)
    scores: list[Float64Array] = field(default_factory=list)
    drawn: tuple[Float64Array, Float64Array] | None = None

    def add(self, weight: float, part: PairedScores) -> None:
        """One more member."""
        self.weights.append(weight)
        self.scores.append(part.scores)
        more = (weight * part.bootstrap, weight * part.flipped)
        self.drawn = (self.drawn[0] + more[0], self.drawn[1] + more[1]) if self.drawn else more

    def difference(self) -> Difference:
        """Comparison over all members."""
        drawn = Resampled(*(self.drawn or (np.zeros(1), np.zeros(1))))
        return difference_in(self.scores, self.weights, drawn)


class PairWork:
    """Compares pairs, a collection at a time.

    Args:
        pairs: names of rows.
        shares: weight of each collection, by suite; suites that are not whole come to nothing.
        look: at single queries, as `QueryWork.look`; None for not at all.
    """

    def __init__(
        self,
        pairs: Sequence[Names],
        shares: Mapping[str, Mapping[str, float]] | None = None,
        look: Look | None = None,
    ) -> None:
        self._shares, self._look = shares or {}, look
        self._found: dict[Names, dict[str, Difference]] = {pair: {} for pair in pairs}
        self._queries: dict[Names, list[OnQueries]] = {pair: [] for pair in pairs}
        self._sums: dict[tuple[Names, str], _OnSuite] = {}

    def add(
        self,
        column: str,
        measure: str,
        rows: Sequence[str],
        ids: Sequence[str],
        scores: Float64Array,
        drawn: Resampled,
    ) -> None:
        """Compare on one collection.

        Args:
            ids: of the queries, sorted.
            scores: float64 ``(queries, rows)``.
            drawn: resampled means, a column for each of the rows.
        """
        place = {row: number for number, row in enumerate(rows)}
        for pair, by_column in self._found.items():
            if pair[0] in place and pair[1] in place:
                a, b = place[pair[0]], place[pair[1]]
                labels = {"on": column, "measure": measure, "a": pair[0], "b": pair[1]}
                part = PairedScores.of(scores, drawn, a, b, **labels)
                by_column[column] = paired([part])
                if self._look:
                    own = self._look(column, measure, pair, ids, scores[:, [a, b]])
                    self._queries[pair].append(own)
                for suite in (name for name, share in self._shares.items() if column in share):
                    total = self._sums.setdefault((pair, suite), _OnSuite())
                    total.add(self._shares[suite][column], part)

    def pairs(self) -> tuple[Pair, ...]:
        """The pairs, suites first, p of the collections corrected for their number."""
        return tuple(
            Pair(
                *pair,
                (*self._whole(pair), *adjusted(by_column).values()),
                tuple(self._queries[pair]),
            )
            for pair, by_column in self._found.items()
        )

    def _whole(self, pair: Names) -> list[Difference]:
        made = []
        for suite, share in self._shares.items():
            total = self._sums.get((pair, suite))
            measures = {versus.measure for versus in self._on(pair, share)}
            if total and len(total.weights) == len(share) and len(measures) == 1:
                test = total.difference()
                made.append(
                    msgspec.structs.replace(
                        test, on=suite, measure=measures.pop(), a=pair[0], b=pair[1]
                    )
                )
        return made

    def _on(self, pair: Names, columns: Mapping[str, float]) -> list[Difference]:
        return [versus for column, versus in self._found[pair].items() if column in columns]
