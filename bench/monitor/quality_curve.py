"""The curve of a training: quality of its checkpoints against their steps, from a ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.comparing.panels import (
    Choices,
    Entrant,
    Entry,
    Panel,
    protocol_differences,
    whole_panel,
)
from bench.comparing.statistics import Resampling
from bench.monitor.ledger import Broken, Evaluated, Line, has_result
from bench.monitor.selection import Method, Selection, compared, parts_of, select
from bench.monitor.simultaneous import Part
from bench.results.load import load
from bench.results.location import place_of
from foundation.errors import BenchError
from foundation.records import Record

MEAN = "mean"


class Level(Record):
    """A mean over queries and its 95 % interval; None where nothing varies."""

    value: float
    low: float | None
    high: float | None


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
        baseline: name and levels of a stored model; None for none.
        selection: None with one checkpoint and no baseline.
        broken: why checkpoints have no point, by name.
        left_out: evaluations of the ledger that the curve does not show, and why.
    """

    training: str
    measure: str
    collections: tuple[str, ...]
    headline: str
    points: tuple[CurvePoint, ...]
    baseline: CurvePoint | None
    selection: Selection | None
    broken: dict[str, str]
    left_out: tuple[str, ...]
    resampling: Resampling


@dataclass(frozen=True)
class Aim:
    """The aim of a watch: its collections, measure and baseline.

    Attributes:
        weights: of the collections in the mean; they sum to 1.
        measure: of all collections.
        baseline: name and results of a stored model.
    """

    training: str
    weights: Mapping[str, float]
    measure: str
    method: Method = "all"
    baseline: tuple[str, Mapping[str, Entry]] | None = None
    resampling: Resampling = Resampling()  # noqa: RUF009 - frozen


def curve_of(lines: Sequence[Line], aim: Aim) -> Curve | None:
    """The curve of what a ledger holds; None where no checkpoint has a result on everything.

    Raises:
        BenchError: results are damaged, or the baseline's have another protocol.
    """
    latest, left_out = _latest(lines, aim)
    complete = {
        name: by_collection
        for name, by_collection in latest.items()
        if set(by_collection) == set(aim.weights)
    }
    left_out += [
        f"{name}: not yet evaluated on {', '.join(sorted(set(aim.weights) - set(by_collection)))}"
        for name, by_collection in latest.items()
        if name not in complete
    ]
    if not complete:
        return None
    entrants = _entrants(complete, aim)
    choices = Choices(aim.measure, resampling=aim.resampling)
    panels = [whole_panel(name, entrants, choices) for name in aim.weights]
    weights = list(aim.weights.values())
    parts = parts_of(panels, weights, aim.resampling)
    steps = {
        name: max(line.step for line in by_collection.values())
        for name, by_collection in complete.items()
    }
    points = [
        _point(entrant.name, steps.get(entrant.name, 0), panels, parts) for entrant in entrants
    ]
    barred = [aim.baseline[0]] if aim.baseline else []
    return Curve(
        training=aim.training,
        measure=aim.measure,
        collections=tuple(aim.weights),
        headline=MEAN if len(aim.weights) > 1 else next(iter(aim.weights)),
        points=tuple(point for point in points if point.checkpoint not in barred),
        baseline=next((point for point in points if point.checkpoint in barred), None),
        selection=select(panels, weights, aim.resampling, aim.method, barred, _splits(complete))
        if len(points) > 1
        else None,
        broken=_broken(lines, latest),
        left_out=tuple(left_out),
        resampling=aim.resampling,
    )


Latest = dict[str, dict[str, Evaluated]]  # by checkpoint and collection


def _latest(lines: Sequence[Line], aim: Aim) -> tuple[Latest, list[str]]:
    """The last line of each checkpoint and collection, as the newest of all was evaluated."""
    wanted = [
        line
        for line in lines
        if isinstance(line, Evaluated)
        and line.collection in aim.weights
        and line.measure == aim.measure
    ]
    if not wanted:
        return {}, []
    settings = wanted[-1].settings
    protocols = {line.collection: line.protocol for line in wanted}
    same = [
        line
        for line in wanted
        if line.settings == settings and line.protocol == protocols[line.collection]
    ]
    there = [line for line in same if has_result(line)]
    left_out = [
        f"{count:,} evaluations {why}"
        for count, why in (
            (len(wanted) - len(same), "with other settings or another protocol"),
            (len(same) - len(there), "whose results were deleted"),
        )
        if count
    ]
    newest = {line.checkpoint: line.files_sha256 for line in there}
    latest: Latest = {}
    for evaluation in sorted(there, key=lambda line: line.step):
        if evaluation.files_sha256 == newest[evaluation.checkpoint]:
            latest.setdefault(evaluation.checkpoint, {})[evaluation.collection] = evaluation
    return latest, left_out


def _entrants(complete: Latest, aim: Aim) -> list[Entrant]:
    entrants = [
        Entrant(name, {key: _entry(line) for key, line in by_collection.items()})
        for name, by_collection in complete.items()
    ]
    if aim.baseline is None:
        return entrants
    name, entries = aim.baseline
    if name in complete:
        raise BenchError(
            f"the baseline and a checkpoint are both called {name}",
            "name the baseline by its folder of results",
        )
    for key in aim.weights:
        mine = entrants[0].entries[key].protocol
        if key not in entries or protocol_differences(mine, entries[key].protocol):
            raise BenchError(
                f"the baseline {name} has no result on {key} under the protocol of the checkpoints",
                f"python -m bench run {key} --model {name}",
            )
    return [*entrants, Entrant(name, entries)]


def _entry(line: Evaluated) -> Entry:
    return Entry.of(load(place_of(line.result)))


def _point(name: str, step: int, panels: Sequence[Panel], parts: Sequence[Part]) -> CurvePoint:
    column = panels[0].columns[name]
    alone = {
        panel.collection: _level([Part(1.0, part.scores, part.resampled)], column)
        for panel, part in zip(panels, parts, strict=True)
    }
    if len(parts) > 1:
        alone[MEAN] = _level(parts, column)
    return CurvePoint(name, step, alone)


def _level(parts: Sequence[Part], column: int) -> Level:
    level = compared(parts, column)
    return Level(level.difference, level.low, level.high)


def _splits(complete: Latest) -> list[str]:
    return [
        line.protocol.split
        for by_collection in complete.values()
        for line in by_collection.values()
    ]


def _broken(lines: Sequence[Line], latest: Latest) -> dict[str, str]:
    told = {line.checkpoint: line.why for line in lines if isinstance(line, Broken)}
    return {name: why for name, why in told.items() if name not in latest}
