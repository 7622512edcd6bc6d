"""Learning curve of a training, the quality of its checkpoints by step, and the best of them.

The best of many scores is partly chance, and each comparison with it is one of many tests. The test
therefore covers all pairs of checkpoints: if no checkpoints differ, at most 5 % of curves lead to
any claim.
"""

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from bench.comparing.statistics import (
    SAME_MEAN,
    Difference,
    MeanScore,
    Resampling,
    ScoreMatrix,
    mean_with_interval,
    paired_difference,
)
from foundation.arrays import Float64Array
from foundation.records import Record

MEAN = "mean"
NUMBER = re.compile(r"\d+$")


def step_of(name: str) -> int:
    """Return the number at the end of ``name``, or 0 if there is none."""
    match = NUMBER.search(name)
    return int(match[0]) if match else 0


class Selection(Record, kw_only=True):
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
    def on_test_data(self) -> bool:
        """True if queries of a test split selected the checkpoint."""
        return "test" in self.splits

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
    best = int(np.flatnonzero(means >= means.max() - SAME_MEAN)[0])
    adjusted = adjust_all_pairs(panels, weights)[best]
    rivals = []
    for name, p in zip(names, adjusted, strict=True):
        if name != names[best]:
            parts = [panel.minus(names[best], name) for panel in panels]
            alone = paired_difference(parts, weights)
            # p alone may be exact and thus larger than p of the random flips
            rivals.append(msgspec.structs.replace(alone, p_adjusted=max(float(p), alone.p)))
    return Selection(
        best=names[best],
        candidates=len(names),
        queries=sum(len(panel.scores) for panel in panels),
        pairs=len(names) * (len(names) - 1) // 2,
        rivals=tuple(rivals),
        splits=tuple(dict.fromkeys(splits)),
    )


def adjust_all_pairs(panels: Sequence[ScoreMatrix], weights: Sequence[float]) -> Float64Array:
    """Return p of the difference of each pair, adjusted for all pairs, float64 ``(m, m)``.

    The statistic of a pair is its difference of means divided by the root of its sum of squares,
    which orders flips as the paired t does and is not changed by flips. A query gets one sign for
    all pairs, so that flipped curves keep their correlation. p is the share of flips whose largest
    statistic over all pairs reaches the statistic of the pair (Westfall and Young, 1993,
    single-step maxT). If pairs do not differ, any of them has p at most 5 % in at most 5 % of
    curves, whatever the other pairs do.

    Args:
        panels: score matrix ``(queries, m)`` per collection.
        weights: weight of each collection; they sum to 1.
    """
    weighted = zip(weights, panels, strict=True)
    scores = np.concatenate([w / len(panel.scores) * panel.scores for w, panel in weighted])
    flipped = np.average([panel.resampled.flipped for panel in panels], axis=0, weights=weights)
    count = scores.shape[1]
    observed, largest = np.zeros((count, count)), np.zeros(len(flipped))
    for column in range(count):
        differences = scores[:, [column]] - scores
        scale = np.sqrt((differences**2).sum(axis=0))
        scale[scale == 0] = np.inf  # a pair that never differs
        observed[column] = (np.abs(differences.sum(axis=0)) - SAME_MEAN) / scale
        ratios = np.abs(flipped[:, [column]] - flipped) / scale
        np.maximum(largest, ratios.max(axis=1), out=largest)
    below = np.searchsorted(np.sort(largest), observed)
    p: Float64Array = (1 + len(largest) - below) / (1 + len(largest))
    return p


class CurvePoint(Record):
    """Checkpoint on the curve. ``levels`` are mean scores by collection and in their ``mean``."""

    checkpoint: str
    step: int
    levels: dict[str, MeanScore]

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
