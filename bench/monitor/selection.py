"""Selection of the best of many checkpoints.

The highest of many scores is high by chance too, and each comparison with it is one of many. Two
ways out. ``all``: a max-statistic test over every pair of checkpoints, so that at most 5 % of
curves without any difference give any claim. ``half``: choose on half of the queries, report on
the other half, whose scores know nothing of the choice.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Literal

import msgspec
import numpy as np

from bench.comparing.statistics import (
    SAME_MEAN,
    SAME_SCORE,
    Difference,
    ScoreMatrix,
    paired,
    stream_of,
)
from foundation.arrays import Float64Array, Int64Array
from foundation.errors import BenchError
from foundation.records import Record

Method = Literal["all", "half"]
Pair = tuple[int, int]
BLOCK_PAIRS = 64  # whose flips are held at once: 5 MB for 9,999 resamples


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
        rivals: the best one minus each of the others, with p adjusted for all pairs.
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
    rivals: tuple[Difference, ...]
    splits: tuple[str, ...]

    @property
    def on_test_data(self) -> bool:
        """True where queries of a test split chose the checkpoint."""
        return "test" in self.splits

    @property
    def inseparable(self) -> tuple[str, ...]:
        """Checkpoints that cannot be told apart from the best one."""
        return tuple(rival.b for rival in self.rivals if not rival.significant)


def select(
    panels: Sequence[ScoreMatrix],
    weights: Sequence[float],
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
    choosing, reporting = _halves(panels) if method == "half" else (panels, panels)
    candidates = [place for place, name in enumerate(names) if name not in barred]
    best = _best(means_of(choosing, weights), candidates)
    pairs = list(combinations(range(len(names)), 2))
    if method == "half":
        pairs = [pair for pair in pairs if best in pair]
    rivals, exact = _rivals(reporting, weights, best, pairs)
    level = compared(reporting, weights, names[best])
    return Selection(
        method=method,
        best=names[best],
        candidates=len(candidates),
        chosen_on=sum(len(panel.scores) for panel in choosing),
        reported_on=sum(len(panel.scores) for panel in reporting),
        score=level.difference,
        low=level.low,
        high=level.high,
        pairs=len(pairs),
        exact=exact,
        rivals=rivals,
        splits=tuple(dict.fromkeys(splits)),
    )


def _rivals(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], best: int, pairs: Sequence[Pair]
) -> tuple[tuple[Difference, ...], bool]:
    """The best one minus all others, and whether p is over all flips of signs."""
    adjusted, exact = max_statistic(panels, weights, pairs)
    p_of = dict(zip(pairs, adjusted, strict=True))
    names = list(panels[0].columns)
    rivals = [
        msgspec.structs.replace(
            compared(panels, weights, names[best], name),
            p_adjusted=p_of[min(best, place), max(best, place)],
        )
        for place, name in enumerate(names)
        if place != best
    ]
    return tuple(rivals), exact


def _best(means: Float64Array, allowed: Sequence[int]) -> int:
    highest = max(means[place] for place in allowed)
    return next(place for place in allowed if means[place] >= highest - SAME_MEAN)


def _halves(panels: Sequence[ScoreMatrix]) -> tuple[list[ScoreMatrix], list[ScoreMatrix]]:
    """Two halves of the queries of each collection, the same ones at every look."""
    choosing: list[ScoreMatrix] = []
    reporting: list[ScoreMatrix] = []
    for panel in panels:
        seeds = [panel.resampling.seed, stream_of(panel.collection), 1]
        order = np.random.default_rng(seeds).permutation(len(panel.scores))
        cut = len(order) // 2
        if cut == 0:
            raise BenchError(
                f"{panel.collection} has one query, which has no halves", "use --select all"
            )
        for rows, into in ((order[:cut], choosing), (order[cut:], reporting)):
            into.append(replace(panel, scores=panel.scores[np.sort(rows)], queries=()))
    return choosing, reporting


def compared(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], a: str, b: str = ""
) -> Difference:
    """First checkpoint minus second; without one its own mean, as a difference from nothing."""
    return paired([panel.minus(a, b) for panel in panels], weights)


def means_of(panels: Sequence[ScoreMatrix], weights: Sequence[float]) -> Float64Array:
    """Mean of each checkpoint, float64 ``(m,)``."""
    means = [w * panel.scores.mean(axis=0) for w, panel in zip(weights, panels, strict=True)]
    total: Float64Array = np.sum(means, axis=0)
    return total


def max_statistic(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], pairs: Sequence[Pair]
) -> tuple[list[float], bool]:
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
    shares = [p.scores * (w / len(p.scores)) for w, p in zip(weights, panels, strict=True)]
    scale = np.sqrt(sum(_squares(share, first, second) for share in shares))
    flips, exact = _flips(panels, weights, shares)
    largest = np.zeros(len(flips))
    for some in _blocks(len(pairs)):
        ratios = _ratios(flips[:, first[some]] - flips[:, second[some]], scale[some])
        np.maximum(largest, ratios.max(axis=1), out=largest)
    means = means_of(panels, weights)
    seen = _ratios(means[first] - means[second], scale) - _ratios(SAME_MEAN, scale)
    below = np.searchsorted(np.sort(largest), seen, side="left")
    as_far = len(largest) - below
    p = as_far / len(largest) if exact else (1 + as_far) / (1 + len(largest))
    return p.tolist(), exact


def _blocks(pairs: int) -> Iterator[slice]:
    for start in range(0, pairs, BLOCK_PAIRS):
        yield slice(start, start + BLOCK_PAIRS)


def _squares(shares: Float64Array, first: Int64Array, second: Int64Array) -> Float64Array:
    """Sum of squared differences of each pair."""
    sums = [
        ((shares[:, first[some]] - shares[:, second[some]]) ** 2).sum(axis=0)
        for some in _blocks(len(first))
    ]
    return np.concatenate(sums)


def _ratios(differences: Float64Array | float, scale: Float64Array) -> Float64Array:
    """Absolute differences over their scale; 0 for pairs that differ nowhere."""
    size = np.abs(differences)
    return np.divide(size, scale, out=np.zeros(np.broadcast(size, scale).shape), where=scale > 0)


def _flips(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], shares: Sequence[Float64Array]
) -> tuple[Float64Array, bool]:
    """Means under flips of signs, up to what all checkpoints share; and whether these are all.

    Queries on which all checkpoints are equal cancel, so that few others have few flips.
    """
    changed = [np.ptp(panel.scores, axis=1) > SAME_SCORE for panel in panels]
    kept = np.concatenate([share[rows] for share, rows in zip(shares, changed, strict=True)])
    if len(kept) > math.log2(panels[0].resampling.resamples):
        drawn = [w * panel.resampled.flipped for w, panel in zip(weights, panels, strict=True)]
        return np.sum(drawn, axis=0), False
    signs = np.array(list(product((1.0, -1.0), repeat=len(kept))))
    return signs.reshape(2 ** len(kept), len(kept)) @ kept, True
