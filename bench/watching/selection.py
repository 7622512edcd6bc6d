"""Which checkpoint is best, when the best of many was looked for?

The highest of many scores is high by chance too, and each comparison with it is one of many. Two
ways out. ``all``: a max-statistic test over every pair of checkpoints, so that at most 5 % of
curves without any difference give any claim. ``half``: choose on half of the queries, report on
the other half, whose scores know nothing of the choice.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from bench.decisions.panels import Panel, stream_of
from bench.decisions.statistics import (
    ALPHA,
    SAME_MEAN,
    SAME_SCORE,
    Differences,
    Floats,
    Paired,
    Resampled,
    Resampling,
    paired,
    resample,
)

Method = Literal["all", "half"]
Pair = tuple[int, int]
Ints = npt.NDArray[np.int64]
BLOCK_PAIRS = 64  # whose flips are held at once: 5 MB for 9,999 resamples


@dataclass(frozen=True)
class Part:
    """All checkpoints on one collection.

    Attributes:
        weight: of the collection in the mean.
        scores: float64 ``(queries, m)``, a column for each checkpoint.
    """

    weight: float
    scores: Floats
    resampled: Resampled

    @property
    def shares(self) -> Floats:
        """What each query adds to the mean of each checkpoint, float64 ``(queries, m)``."""
        return self.scores * (self.weight / len(self.scores))


class Rival(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Another checkpoint beside the best one.

    Attributes:
        paired: best minus this one; its own p is of this pair alone.
        p: adjusted for all pairs that were looked at.
    """

    name: str
    paired: Paired
    p: float

    @property
    def worse(self) -> bool:
        """Whether the best one is better, at 5 % over all that was looked at."""
        return self.p <= ALPHA and self.paired.difference > 0


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The best checkpoint and how far that can be trusted.

    Attributes:
        method: see the module.
        chosen_on: queries that chose it.
        reported_on: queries that ``score``, its interval and ``rivals`` are of.
        score: of the mean; with ``all`` it is the highest of many, and too high.
        pairs: comparisons that p is adjusted for.
        exact: whether p is over all flips of signs.
        splits: of the queries; ``test`` says that test data chose.
    """

    method: Method
    best: str
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
        """Whether queries of a test split chose the checkpoint."""
        return "test" in self.splits

    @property
    def inseparable(self) -> tuple[str, ...]:
        """Checkpoints that cannot be told apart from the best one."""
        return tuple(one.name for one in self.rivals if not one.worse)


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
    """
    names = list(panels[0].columns)
    whole = parts_of(panels, weights, resampling)
    choosing, reporting = whole, whole
    if method == "half":
        choosing, reporting = _halves(panels, whole, resampling)
    best = _best(choosing, [place for place, name in enumerate(names) if name not in barred])
    pairs = list(combinations(range(len(names)), 2))
    if method == "half":
        pairs = [pair for pair in pairs if best in pair]
    adjusted, exact = max_statistic(reporting, pairs) if pairs else ([], False)
    by_pair = dict(zip(pairs, adjusted, strict=True))
    level = level_of(reporting, best)
    return Selection(
        method=method,
        best=names[best],
        chosen_on=sum(len(part.scores) for part in choosing),
        reported_on=sum(len(part.scores) for part in reporting),
        score=level.difference,
        low=level.low,
        high=level.high,
        pairs=len(pairs),
        exact=exact,
        rivals=tuple(
            Rival(
                name=name,
                paired=compared(reporting, best, place),
                p=by_pair[min(best, place), max(best, place)],
            )
            for place, name in enumerate(names)
            if place != best
        ),
        splits=tuple(dict.fromkeys(splits)),
    )


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
        for rows, into in ((order[:cut], choosing), (order[cut:], reporting)):
            scores = part.scores[np.sort(rows)]
            into.append(Part(part.weight, scores, resample(scores, resampling, stream)))
    return choosing, reporting


def means_of(parts: Sequence[Part]) -> Floats:
    """Mean of each checkpoint, float64 ``(m,)``."""
    total: Floats = np.sum([part.weight * part.scores.mean(axis=0) for part in parts], axis=0)
    return total


def level_of(parts: Sequence[Part], column: int) -> Paired:
    """The mean of one checkpoint with its interval: its difference from nothing."""
    return paired(
        [
            Differences(
                part.scores[:, column],
                part.resampled.bootstrap[:, column],
                part.resampled.flipped[:, column],
            )
            for part in parts
        ],
        [part.weight for part in parts],
    )


def compared(parts: Sequence[Part], a: int, b: int) -> Paired:
    """First checkpoint minus second."""
    return paired(
        [
            Differences(
                part.scores[:, a] - part.scores[:, b],
                part.resampled.bootstrap[:, a] - part.resampled.bootstrap[:, b],
                part.resampled.flipped[:, a] - part.resampled.flipped[:, b],
            )
            for part in parts
        ],
        [part.weight for part in parts],
    )


def max_statistic(parts: Sequence[Part], pairs: Sequence[Pair]) -> tuple[list[float], bool]:
    """p of each pair, adjusted for all of them, and whether it is over all flips of signs.

    The statistic of a pair is its difference of means over the root of its sum of squares, which
    orders flips as the t of paired differences does, and which no flip of signs changes. A query
    gets one sign for all pairs, so that flipped curves keep their correlation. p is the share of
    flips whose largest statistic over all pairs is at least that of the pair (Westfall and Young,
    1993, single-step maxT): where pairs do not differ, any of them gets p at most 5 % in at most
    5 % of curves, whatever the other pairs do.

    Args:
        pairs: columns; the first is not the second.
    """
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    shares = [part.shares for part in parts]
    scale = np.sqrt(sum(_squares(one, first, second) for one in shares))
    flips, exact = _flips(parts, shares)
    largest = np.zeros(len(flips))
    for some in _blocks(len(pairs)):
        ratios = _ratios(flips[:, first[some]] - flips[:, second[some]], scale[some])
        np.maximum(largest, ratios.max(axis=1), out=largest)
    means = means_of(parts)
    seen = _ratios(means[first] - means[second], scale) - _ratios(SAME_MEAN, scale)
    below = np.searchsorted(np.sort(largest), seen, side="left")
    as_far = len(largest) - below
    p = as_far / len(largest) if exact else (1 + as_far) / (1 + len(largest))
    return p.tolist(), exact


def _blocks(pairs: int) -> Iterator[slice]:
    for start in range(0, pairs, BLOCK_PAIRS):
        yield slice(start, start + BLOCK_PAIRS)


def _squares(shares: Floats, first: Ints, second: Ints) -> Floats:
    """Sum of squared differences of each pair."""
    found = [
        ((shares[:, first[some]] - shares[:, second[some]]) ** 2).sum(axis=0)
        for some in _blocks(len(first))
    ]
    return np.concatenate(found)


def _ratios(differences: Floats | float, scale: Floats) -> Floats:
    """Absolute differences over their scale; 0 for pairs that differ nowhere."""
    size = np.abs(differences)
    return np.divide(size, scale, out=np.zeros(np.broadcast(size, scale).shape), where=scale > 0)


def _flips(parts: Sequence[Part], shares: Sequence[Floats]) -> tuple[Floats, bool]:
    """Means under flips of signs, up to what all checkpoints share; and whether these are all.

    Queries on which all checkpoints are equal cancel, so that few others have few flips.
    """
    kept = np.concatenate(
        [
            one[np.ptp(part.scores, axis=1) > SAME_SCORE]
            for one, part in zip(shares, parts, strict=True)
        ]
    )
    if len(kept) <= math.log2(len(parts[0].resampled.flipped)):
        signs = np.array(list(product((1.0, -1.0), repeat=len(kept))))
        return signs.reshape(-1, len(kept)) @ kept, True
    return np.sum([part.weight * part.resampled.flipped for part in parts], axis=0), False
