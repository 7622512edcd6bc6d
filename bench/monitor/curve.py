"""Learning curve of a training, the quality of its checkpoints by step, and the best of them.

The best of many scores is partly chance, and each comparison with it is one of many tests. p is
therefore corrected for all pairs of checkpoints: if no checkpoints differ, at most 5 % of curves
lead to any claim.
"""

import re
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from bench.comparing.statistics import (
    SAME_MEAN,
    Difference,
    Estimate,
    Resampling,
    ScoreMatrix,
    adjust_p_values,
    mean_with_interval,
    paired_difference,
)
from foundation.records import Record

MEAN = "mean"
NUMBER = re.compile(r"\d+$")


def step_of(name: str) -> int:
    """Return the number at the end of ``name``, or 0 if there is none."""
    match = NUMBER.search(name)
    return int(match[0]) if match else 0


class Selection(Record):
    """Best checkpoint, with its comparisons.

    Attributes:
        best: name of the checkpoint.
        candidates: number of checkpoints.
        queries: number of queries of all collections.
        pairs: number of comparisons that p-values are adjusted for.
        rivals: difference of the best checkpoint from each other one, with adjusted p-value.
        splits: splits of the queries. ``test`` means that test data selected the checkpoint.
    """

    best: str
    candidates: int
    queries: int
    pairs: int
    rivals: tuple[Difference, ...]
    splits: tuple[str, ...]

    @property
    def indistinguishable(self) -> tuple[str, ...]:
        """Checkpoints that do not differ significantly from the best one."""
        return tuple(rival.b for rival in self.rivals if not rival.significant)


def select_checkpoint(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], splits: Sequence[str] = ()
) -> Selection:
    """Select the checkpoint with the best mean (the first of equal ones), and compare the others.

    ``panels`` have the same models in the same columns. ``weights`` sum to 1.
    """
    names = list(panels[0].columns)
    means = np.average([panel.scores.mean(axis=0) for panel in panels], axis=0, weights=weights)
    best = names[int(np.flatnonzero(means >= means.max() - SAME_MEAN)[0])]
    pairs = combinations([best, *(name for name in names if name != best)], 2)
    parts = {pair: [panel.minus(*pair) for panel in panels] for pair in pairs}
    tests = adjust_p_values({pair: paired_difference(parts[pair], weights) for pair in parts})
    rivals = tuple(test for test in tests.values() if test.a == best)
    queries, of_splits = sum(len(panel.scores) for panel in panels), tuple(dict.fromkeys(splits))
    return Selection(best, len(names), queries, len(tests), rivals, of_splits)


class CurvePoint(Record):
    """Checkpoint on the curve. ``levels`` are mean scores by collection and in their ``mean``."""

    checkpoint: str
    step: int
    levels: dict[str, Estimate]

    @classmethod
    def make(
        cls, name: str, panels: Sequence[ScoreMatrix], weights: Sequence[float]
    ) -> "CurvePoint":
        """Make the point of the checkpoint ``name`` from its scores on each collection."""
        parts = [panel.minus(name) for panel in panels]
        levels = {part.on: mean_with_interval([part]) for part in parts}
        if len(panels) > 1:
            levels[MEAN] = mean_with_interval(parts, weights)
        return cls(name, step_of(name), levels)


class Curve(Record, kw_only=True):
    """Learning curve of one training.

    Attributes:
        training: name of the folder of checkpoints.
        measure: measure of all scores.
        collections: collections on which every point has a level.
        headline: criterion of selection: ``mean``, or the only collection.
        points: evaluated checkpoints by step.
        selection: best checkpoint; None if there is only one.
        broken: reason why a checkpoint has no point, by name.
        resampling: resampling of queries behind intervals and p-values.
    """

    training: str
    measure: str
    collections: tuple[str, ...]
    headline: str
    points: tuple[CurvePoint, ...]
    selection: Selection | None
    broken: dict[str, str]
    resampling: Resampling
