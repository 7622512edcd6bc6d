"""The curve of a training: quality of its checkpoints against their steps, from stored results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench.comparing.compare import (
    Choices,
    Entrant,
    whole_panel,
)
from bench.comparing.statistics import Level, Resampling, ScoreMatrix, level_of
from bench.monitor.following import step_of
from bench.monitor.selection import Selection, select
from bench.results.location import Place, files_below
from bench.results.result import RESULT_FILE, Evaluation, Protocol, load_all
from foundation.records import Record
from retrievers.models.recipe import Recipe

MEAN = "mean"


class CurvePoint(Record):
    """A checkpoint on the curve: its level on each collection, and in the mean of several."""

    checkpoint: str
    step: int
    levels: dict[str, Level]


class Curve(Record, kw_only=True):
    """All that is known of the checkpoints of one training.

    Attributes:
        training: name of the folder of checkpoints.
        collections: that each point has a level on; the first line is that of ``headline``.
        headline: what the best is chosen by: ``mean``, or the only collection.
        selection: None with one checkpoint.
        broken: why checkpoints have no point, by name.
        left_out: evaluations that the curve does not show, and why.
    """

    training: str
    measure: str
    collections: tuple[str, ...]
    headline: str
    points: tuple[CurvePoint, ...]
    selection: Selection | None
    broken: dict[str, str]
    left_out: tuple[str, ...]
    resampling: Resampling


@dataclass(frozen=True)
class Aim:
    """The aim of a watch: its collections and measure.

    Attributes:
        training: under whose name the checkpoints have results: ``training/checkpoint-500``.
        weights: of the collections in the mean; they sum to 1.
        protocols: by collection.
        measure: of all collections.
    """

    training: str
    weights: Mapping[str, float]
    protocols: Mapping[str, Protocol]
    measure: str
    resampling: Resampling = Resampling()  # noqa: RUF009 - frozen


def curve_of(
    results: Place, aim: Aim, recipes: Mapping[str, Recipe], broken: Mapping[str, str]
) -> Curve | None:
    """Make the curve of the stored results of a training; None where no checkpoint has all.

    Results of a checkpoint that was deleted since count, too.

    Args:
        results: folder of all results.
        recipes: of the checkpoints that are there, by name; the last one says how all are used.
        broken: why checkpoints could not be evaluated, by name.

    Raises:
        BenchError: results are damaged.
    """
    if not recipes:
        return None
    shown, left_out = _shown(results, aim, recipes)
    complete = {
        name: by_collection
        for name, by_collection in shown.items()
        if set(by_collection) == set(aim.weights)
    }
    left_out += [
        f"{name}: not yet evaluated on {', '.join(sorted(set(aim.weights) - set(by_collection)))}"
        for name, by_collection in shown.items()
        if name not in complete
    ]
    if not complete:
        return None
    entrants = [Entrant(name, by_collection) for name, by_collection in complete.items()]
    choices = Choices(aim.measure, resampling=aim.resampling)
    panels = [whole_panel(name, entrants, choices) for name in aim.weights]
    weights = list(aim.weights.values())
    points = [_point(entrant.name, panels, weights) for entrant in entrants]
    splits = [protocol.split for protocol in aim.protocols.values()]
    return Curve(
        training=aim.training,
        measure=aim.measure,
        collections=tuple(aim.weights),
        headline=MEAN if len(aim.weights) > 1 else next(iter(aim.weights)),
        points=tuple(points),
        selection=select(panels, weights, splits) if len(points) > 1 else None,
        broken={name: why for name, why in broken.items() if name not in shown},
        left_out=tuple(left_out),
        resampling=aim.resampling,
    )


Shown = dict[str, dict[str, Evaluation]]  # by checkpoint and collection


def _shown(results: Place, aim: Aim, recipes: Mapping[str, Recipe]) -> tuple[Shown, list[str]]:
    """Choose the newest results of each checkpoint; say how many are not shown, and why.

    A checkpoint that is there counts as it is now.
    """
    stored = sorted(_of_training(results, aim), key=lambda each: each.result.conditions.time)
    *_, last = recipes.values()
    same = [each for each in stored if _is_used_so(each, aim, last)]
    left_out = []
    if hidden := len(stored) - len(same):
        left_out.append(f"{hidden:,} evaluations with other settings or another protocol")
    files = {_checkpoint(each): _files(each.result.recipe) for each in same}
    files |= {name: _files(recipe) for name, recipe in recipes.items()}
    shown: Shown = {}
    for each in same:
        name = _checkpoint(each)
        if _files(each.result.recipe) == files[name]:
            shown.setdefault(name, {})[each.collection] = each
    return {name: shown[name] for name in sorted(shown, key=step_of)}, left_out


def _of_training(results: Place, aim: Aim) -> list[Evaluation]:
    """Results of the checkpoints of a training on the collections, whatever their settings are."""
    files = files_below(results, RESULT_FILE)
    own = [file for file in files if file.parent.parent.parent.name == aim.training]
    return [
        stored
        for stored in load_all(own)
        if stored.result.model == f"{aim.training}/{_checkpoint(stored)}"
        and stored.collection in aim.weights
        and aim.measure in stored.result.measures
    ]


def _checkpoint(stored: Evaluation) -> str:
    return stored.result.model.rpartition("/")[2]


def _is_used_so(stored: Evaluation, aim: Aim, recipe: Recipe) -> bool:
    """True for a result under the protocol of its collection, with all settings of the recipe."""
    own = stored.result.recipe
    if own is None or stored.result.protocol != aim.protocols[stored.collection]:
        return False
    return _settings(own) == _settings(recipe.for_dataset(stored.collection))


def _settings(recipe: Recipe) -> Recipe:
    """A recipe without what tells the checkpoints of one training apart."""
    return msgspec.structs.replace(
        recipe, model="", files={}, query_files={}, checkpoint="", revision=""
    )


def _files(recipe: Recipe | None) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Hashes of all files that decide a model's vectors."""
    return (recipe.files, recipe.query_files) if recipe else ({}, {})


def _point(name: str, panels: Sequence[ScoreMatrix], weights: Sequence[float]) -> CurvePoint:
    parts = [panel.minus(name) for panel in panels]
    levels = {part.on: level_of([part]) for part in parts}
    if len(panels) > 1:
        levels[MEAN] = level_of(parts, weights)
    return CurvePoint(name, step_of(name), levels)
