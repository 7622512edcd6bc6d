"""Learning curve of a training: the quality of its checkpoints by step."""

from collections.abc import Sequence

from bench.comparing.compare import ComparedModel, ComparisonSettings, read_all_scores
from bench.comparing.statistics import MeanScore, Resampling, ScoreMatrix, mean_with_interval
from bench.monitor.following import Watcher, step_of
from bench.monitor.selection import Selection, select_checkpoint
from foundation.records import Record

MEAN = "mean"
DEFAULT = Resampling()


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


def curve_of(watcher: Watcher, resampling: Resampling = DEFAULT) -> Curve | None:
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
