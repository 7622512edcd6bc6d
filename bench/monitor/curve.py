"""Learning curve of a training: the quality of its checkpoints by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.comparing.compare import ComparedModel, ComparisonSettings, read_all_scores
from bench.comparing.statistics import MeanScore, Resampling, ScoreMatrix, mean_with_interval
from bench.monitor.following import step_of
from bench.monitor.selection import Selection, select_checkpoint
from bench.results.result import Evaluation
from foundation.records import Record

MEAN = "mean"


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


@dataclass(frozen=True)
class WatchTarget:
    """Collections and measure of a watch.

    Attributes:
        training: name of the training in results, as in ``training/checkpoint-500``.
        weights: weight of each collection in the mean; they sum to 1.
        splits: split of each collection.
        measure: measure on all collections.
        resampling: resampling of queries behind intervals and p-values.
    """

    training: str
    weights: Mapping[str, float]
    splits: Sequence[str]
    measure: str
    resampling: Resampling = Resampling()  # noqa: RUF009 - frozen


def curve_of(
    target: WatchTarget,
    evaluations: Mapping[str, Mapping[str, Evaluation]],
    broken: Mapping[str, str],
) -> Curve | None:
    """Return the curve of the evaluated checkpoints, or None if there are none.

    Args:
        target: collections and measure.
        evaluations: evaluations by name of checkpoint, then by collection.
        broken: reason why a checkpoint could not be evaluated, by name.
    """
    if not evaluations:
        return None
    models = [ComparedModel(name, evaluations[name]) for name in sorted(evaluations, key=step_of)]
    choices = ComparisonSettings(target.measure, resampling=target.resampling)
    panels = [read_all_scores(name, models, choices) for name in target.weights]
    weights = list(target.weights.values())
    points = [_make_point(model.name, panels, weights) for model in models]
    return Curve(
        training=target.training,
        measure=target.measure,
        collections=tuple(target.weights),
        headline=MEAN if len(target.weights) > 1 else next(iter(target.weights)),
        points=tuple(points),
        selection=select_checkpoint(panels, weights, target.splits) if len(points) > 1 else None,
        broken={name: why for name, why in broken.items() if name not in evaluations},
        resampling=target.resampling,
    )


def _make_point(name: str, panels: Sequence[ScoreMatrix], weights: Sequence[float]) -> CurvePoint:
    """Return the point of one checkpoint."""
    parts = [panel.minus(name) for panel in panels]
    levels = {part.on: mean_with_interval([part]) for part in parts}
    if len(panels) > 1:
        levels[MEAN] = mean_with_interval(parts, weights)
    return CurvePoint(name, step_of(name), levels)
