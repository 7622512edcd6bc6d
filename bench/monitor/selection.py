"""Selection of the best of many checkpoints.

The highest of many scores is high by chance too, and each comparison with it is one of many. Two
ways out. ``all``: a max-statistic test over every pair of checkpoints, so that at most 5 % of
curves without any difference give any claim. ``half``: choose on half of the queries, report on
the other half, whose scores know nothing of the choice.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np

from bench.comparing.panels import Panel, stream_of
from bench.comparing.statistics import (
    ALPHA,
    SAME_MEAN,
    Differences,
    Paired,
    Resampling,
    paired,
    resample,
)
from bench.monitor.simultaneous import Part, max_statistic, means_of
from foundation.errors import BenchError
from foundation.records import Record

Method = Literal["all", "half"]
Verdict = Literal["worse", "better", "cannot tell"]


class Rival(Record, kw_only=True):
    """Another checkpoint beside the best one.

    Attributes:
        paired: best minus this one; its own p is of this pair alone.
        p: adjusted for all pairs that were looked at.
    """

    name: str
    paired: Paired
    p: float

    @property
    def verdict(self) -> Verdict:
        """The rival against the best checkpoint, at 5 % over all pairs."""
        if self.p > ALPHA:
            return "cannot tell"
        return "worse" if self.paired.difference > 0 else "better"


class Selection(Record, kw_only=True):
    """The best checkpoint and how far that can be trusted.

    Attributes:
        method: see the module.
        candidates: how many could be chosen.
        chosen_on: queries that chose it.
        reported_on: queries that ``score``, its interval and ``rivals`` are of.
        score: of the mean; with ``all`` it is the highest of many, and too high.
        pairs: comparisons that p is adjusted for.
        exact: whether p is over all flips of signs.
        splits: of the queries; ``test`` says that test data chose.
    """

    method: Method
    best: str
    candidates: int
    chosen_on: int
    reported_on: int
    score: float
    low: float | None
    high: float | None
    pairs: int
    exact: bool
    rivals: tuple[Rival, ...]
    splits: tuple[str, ...]

    @property
    def on_test_data(self) -> bool:
        """True where queries of a test split chose the checkpoint."""
        return "test" in self.splits

    @property
    def inseparable(self) -> tuple[str, ...]:
        """Checkpoints that cannot be told apart from the best one."""
        return tuple(rival.name for rival in self.rivals if rival.verdict == "cannot tell")


def parts_of(
    panels: Sequence[Panel], weights: Sequence[float], resampling: Resampling
) -> list[Part]:
    """Scores of all checkpoints on each collection, with resamples that all of them share."""
    return [
        Part(
            weight,
            panel.scores,
            panel.resampled or resample(panel.scores, resampling, stream_of(panel.collection)),
        )
        for panel, weight in zip(panels, weights, strict=True)
    ]


def select(
    panels: Sequence[Panel],
    weights: Sequence[float],
    resampling: Resampling,
    method: Method = "all",
    barred: Sequence[str] = (),
    splits: Sequence[str] = (),
) -> Selection:
    """Choose the checkpoint with the best mean, the first of equal ones, and compare the others.

    Args:
        panels: of the collections, with the same models in the same columns.
        weights: of the collections in the mean; they sum to 1.
        barred: models that are compared and cannot be chosen, such as a baseline.
        splits: of the queries of the collections.

    Raises:
        BenchError: a collection has no two halves.
    """
    names = list(panels[0].columns)
    whole = parts_of(panels, weights, resampling)
    halves = _halves(panels, whole, resampling) if method == "half" else (whole, whole)
    choosing, reporting = halves
    candidates = [place for place, name in enumerate(names) if name not in barred]
    best = _best(choosing, candidates)
    pairs = list(combinations(range(len(names)), 2))
    if method == "half":
        pairs = [pair for pair in pairs if best in pair]
    rivals, exact = _rivals(reporting, names, best, pairs)
    level = compared(reporting, best)
    return Selection(
        method=method,
        best=names[best],
        candidates=len(candidates),
        chosen_on=sum(len(part.scores) for part in choosing),
        reported_on=sum(len(part.scores) for part in reporting),
        score=level.difference,
        low=level.low,
        high=level.high,
        pairs=len(pairs),
        exact=exact,
        rivals=rivals,
        splits=tuple(dict.fromkeys(splits)),
    )


def _rivals(
    parts: Sequence[Part], names: Sequence[str], best: int, pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[Rival, ...], bool]:
    """All others beside the best one, and whether p is over all flips of signs."""
    adjusted, exact = max_statistic(parts, pairs)
    p_of = dict(zip(pairs, adjusted, strict=True))
    others = [place for place in range(len(names)) if place != best]
    rivals = [
        Rival(
            name=names[place],
            paired=compared(parts, best, place),
            p=p_of[min(best, place), max(best, place)],
        )
        for place in others
    ]
    return tuple(rivals), exact


def _best(parts: Sequence[Part], allowed: Sequence[int]) -> int:
    means = means_of(parts)
    highest = max(means[place] for place in allowed)
    return next(place for place in allowed if means[place] >= highest - SAME_MEAN)


def _halves(
    panels: Sequence[Panel], parts: Sequence[Part], resampling: Resampling
) -> tuple[list[Part], list[Part]]:
    """Two halves of the queries of each collection, the same ones at every look."""
    choosing: list[Part] = []
    reporting: list[Part] = []
    for panel, part in zip(panels, parts, strict=True):
        stream = stream_of(panel.collection)
        order = np.random.default_rng([resampling.seed, stream, 1]).permutation(len(part.scores))
        cut = len(order) // 2
        if cut == 0:
            raise BenchError(
                f"{panel.collection} has one query, which has no halves", "use --select all"
            )
        for rows, into in ((order[:cut], choosing), (order[cut:], reporting)):
            scores = part.scores[np.sort(rows)]
            into.append(Part(part.weight, scores, resample(scores, resampling, stream)))
    return choosing, reporting


def compared(parts: Sequence[Part], a: int, b: int | None = None) -> Paired:
    """First checkpoint minus second; without one its own mean, as a difference from nothing."""
    return paired(
        [Differences.of(part.scores, part.resampled, a, b) for part in parts],
        [part.weight for part in parts],
    )
