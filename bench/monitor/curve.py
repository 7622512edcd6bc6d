"""Learning curve of a training, the quality of its checkpoints by step, and the best of them.

The best of many scores is partly chance, and each comparison with it is one of many tests. A
max-statistic test therefore covers all pairs of checkpoints: if no checkpoints differ, at most 5 %
of curves lead to any claim.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product

import msgspec
import numpy as np

from bench.comparing.pairs import ComparedModel, ComparisonSettings, read_all_scores
from bench.comparing.statistics import (
    SAME_MEAN,
    SAME_SCORE,
    Difference,
    MeanScore,
    Resampling,
    ScoreMatrix,
    mean_with_interval,
    paired_difference,
)
from bench.monitor.following import Watcher, step_of
from foundation.arrays import Float64Array, Int64Array
from foundation.records import Record

Pair = tuple[int, int]
BLOCK_PAIRS = 64  # pairs flipped at once: 5 MB for 9,999 resamples
MEAN = "mean"
DEFAULT_RESAMPLING = Resampling()


class Selection(Record, kw_only=True):
    """Best checkpoint, with its comparisons.

    Attributes:
        best: name of the checkpoint.
        candidates: number of checkpoints.
        queries: number of queries of all collections.
        pairs: number of comparisons that p-values are adjusted for.
        exact: whether p-values cover all sign flips, not a sample of them.
        rivals: difference of the best checkpoint from each other one, with adjusted p-value.
        splits: splits of the queries. ``test`` means that test data selected the checkpoint.
    """

    best: str
    candidates: int
    queries: int
    pairs: int
    exact: bool
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

    Args:
        panels: score matrix per collection, with the same models in the same columns.
        weights: weight of each collection in the mean; they sum to 1.
        splits: splits of the queries.
    """
    names = list(panels[0].columns)
    means = weighted_means(panels, weights)
    best = int(np.flatnonzero(means >= means.max() - SAME_MEAN)[0])
    pairs = list(combinations(range(len(names)), 2))
    rivals, exact = _compare_with_best(panels, weights, best, pairs)
    return Selection(
        best=names[best],
        candidates=len(names),
        queries=sum(len(panel.scores) for panel in panels),
        pairs=len(pairs),
        exact=exact,
        rivals=rivals,
        splits=tuple(dict.fromkeys(splits)),
    )


def _compare_with_best(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], best: int, pairs: Sequence[Pair]
) -> tuple[tuple[Difference, ...], bool]:
    """Return the differences from the best checkpoint, and whether p-values are exact."""
    adjusted, exact = max_statistic(panels, weights, pairs)
    p_of = dict(zip(pairs, adjusted, strict=True))
    names = list(panels[0].columns)
    rivals = [
        msgspec.structs.replace(
            paired_difference([panel.minus(names[best], name) for panel in panels], weights),
            p_adjusted=p_of[min(best, place), max(best, place)],
        )
        for place, name in enumerate(names)
        if place != best
    ]
    return tuple(rivals), exact


def weighted_means(panels: Sequence[ScoreMatrix], weights: Sequence[float]) -> Float64Array:
    """Return the mean of each checkpoint, float64 ``(m,)``.

    Args:
        panels: score matrix ``(queries, m)`` per collection.
        weights: weight of each collection; they sum to 1.
    """
    means = [w * panel.scores.mean(axis=0) for w, panel in zip(weights, panels, strict=True)]
    total: Float64Array = np.sum(means, axis=0)
    return total


def max_statistic(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], pairs: Sequence[Pair]
) -> tuple[list[float], bool]:
    """Return the adjusted p-value of each pair, and whether it covers all sign flips.

    The statistic of a pair is its difference of means divided by the root of its sum of squares,
    which orders flips as the paired t does and is not changed by flips. A query gets one sign for
    all pairs, so that flipped curves keep their correlation. p is the share of flips whose largest
    statistic over all pairs reaches the statistic of the pair (Westfall and Young, 1993,
    single-step maxT). If pairs do not differ, any of them has p at most 5 % in at most 5 % of
    curves, whatever the other pairs do.

    Args:
        panels: score matrix ``(queries, m)`` per collection.
        weights: weight of each collection; they sum to 1.
        pairs: two different columns each.
    """
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    shares = [p.scores * (w / len(p.scores)) for w, p in zip(weights, panels, strict=True)]
    scale = np.sqrt(sum(_sum_squares(share, first, second) for share in shares))
    flips, exact = _flip_signs(panels, weights, shares)
    largest = np.zeros(len(flips))
    for some in _pair_blocks(len(pairs)):
        ratios = _scaled(flips[:, first[some]] - flips[:, second[some]], scale[some])
        np.maximum(largest, ratios.max(axis=1), out=largest)
    means = weighted_means(panels, weights)
    observed = _scaled(means[first] - means[second], scale) - _scaled(SAME_MEAN, scale)
    below = np.searchsorted(np.sort(largest), observed, side="left")
    as_far = len(largest) - below
    p = as_far / len(largest) if exact else (1 + as_far) / (1 + len(largest))
    return p.tolist(), exact


def _pair_blocks(pairs: int) -> Iterator[slice]:
    """Yield slices of at most ``BLOCK_PAIRS`` pairs."""
    for start in range(0, pairs, BLOCK_PAIRS):
        yield slice(start, start + BLOCK_PAIRS)


def _sum_squares(shares: Float64Array, first: Int64Array, second: Int64Array) -> Float64Array:
    """Return the sum of squared differences of each pair, float64 ``(pairs,)``."""
    sums = [
        ((shares[:, first[some]] - shares[:, second[some]]) ** 2).sum(axis=0)
        for some in _pair_blocks(len(first))
    ]
    return np.concatenate(sums)


def _scaled(differences: Float64Array | float, scale: Float64Array) -> Float64Array:
    """Return absolute differences divided by their scale, or 0 for pairs that never differ."""
    size = np.abs(differences)
    return np.divide(size, scale, out=np.zeros(np.broadcast(size, scale).shape), where=scale > 0)


def _flip_signs(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], shares: Sequence[Float64Array]
) -> tuple[Float64Array, bool]:
    """Return means under sign flips, float64 ``(flips, m)``, and whether these are all flips.

    Queries on which all checkpoints are equal cancel out, so few other queries have few flips.
    """
    changed = [np.ptp(panel.scores, axis=1) > SAME_SCORE for panel in panels]
    kept = np.concatenate([share[rows] for share, rows in zip(shares, changed, strict=True)])
    if len(kept) > math.log2(panels[0].resampling.resamples):
        drawn = [w * panel.resampled.flipped for w, panel in zip(weights, panels, strict=True)]
        return np.sum(drawn, axis=0), False
    signs = np.array(list(product((1.0, -1.0), repeat=len(kept))))
    return signs.reshape(2 ** len(kept), len(kept)) @ kept, True


class CurvePoint(Record):
    """Checkpoint on the curve.

    Attributes:
        checkpoint: name of its folder.
        step: training step.
        levels: mean score with its interval, by collection, and ``mean`` over several collections.
    """

    checkpoint: str
    step: int
    levels: dict[str, MeanScore]


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


def curve_of(watcher: Watcher, resampling: Resampling = DEFAULT_RESAMPLING) -> Curve | None:
    """Return the curve of the checkpoints evaluated so far, or None if there are none.

    Args:
        watcher: evaluator of the checkpoints.
        resampling: resampling of queries behind intervals and p-values.
    """
    evaluations = watcher.evaluations
    if not evaluations:
        return None
    models = [ComparedModel(name, evaluations[name]) for name in sorted(evaluations, key=step_of)]
    choices = ComparisonSettings(watcher.measure, resampling=resampling)
    panels = [read_all_scores(name, models, choices) for name in watcher.weights]
    weights = list(watcher.weights.values())
    points = [_make_point(model.name, panels, weights) for model in models]
    splits = [each.dataset.facts.split for each in watcher.opened]
    return Curve(
        training=watcher.training,
        measure=watcher.measure,
        collections=tuple(watcher.weights),
        headline=MEAN if len(panels) > 1 else panels[0].collection,
        points=tuple(points),
        selection=select_checkpoint(panels, weights, splits) if len(points) > 1 else None,
        broken={name: why for name, why in watcher.left_out.items() if name not in evaluations},
        resampling=resampling,
    )


def _make_point(name: str, panels: Sequence[ScoreMatrix], weights: Sequence[float]) -> CurvePoint:
    """Return the point of one checkpoint."""
    parts = [panel.minus(name) for panel in panels]
    levels = {part.on: mean_with_interval([part]) for part in parts}
    if len(panels) > 1:
        levels[MEAN] = mean_with_interval(parts, weights)
    return CurvePoint(name, step_of(name), levels)
