"""The curve of a training: quality of its checkpoints against their steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.comparing.compare import ComparedModel, ComparisonSettings, read_complete_matrix
from bench.comparing.statistics import MeanScore, Resampling, ScoreMatrix, mean_with_interval
from bench.monitor.following import step_of
from bench.monitor.selection import Selection, select_checkpoint
from bench.results.result import Evaluation
from foundation.records import Record

MEAN = "mean"


class CurvePoint(Record):
    """A checkpoint on the curve: its level on each collection, and in the mean of several."""

    checkpoint: str
    step: int
    levels: dict[str, MeanScore]


class Curve(Record, kw_only=True):
    """All that is known of the checkpoints of one training.

    Attributes:
        training: name of the folder of checkpoints.
        collections: that each point has a level on; the first line is that of ``headline``.
        headline: what the best is chosen by: ``mean``, or the only collection.
        selection: None with one checkpoint.
        broken: why checkpoints have no point, by name.
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
    """The aim of a watch: its collections and measure.

    Attributes:
        training: under whose name the checkpoints have results: ``training/checkpoint-500``.
        weights: of the collections in the mean; they sum to 1.
        splits: of their queries.
        measure: of all collections.
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
    """Make the curve of checkpoints; None if there are none.

    Args:
        evaluations: on every collection, by name of checkpoint.
        broken: why checkpoints could not be evaluated, by name.
    """
    if not evaluations:
        return None
    models = [ComparedModel(name, evaluations[name]) for name in sorted(evaluations, key=step_of)]
    choices = ComparisonSettings(target.measure, resampling=target.resampling)
    panels = [read_complete_matrix(name, models, choices) for name in target.weights]
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
    parts = [panel.minus(name) for panel in panels]
    levels = {part.on: mean_with_interval([part]) for part in parts}
    if len(panels) > 1:
        levels[MEAN] = mean_with_interval(parts, weights)
    return CurvePoint(name, step_of(name), levels)
