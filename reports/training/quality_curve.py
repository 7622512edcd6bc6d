"""The curve of a training as a table: Markdown for people, CSV for everything else."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.monitor.curve import Curve, CurvePoint, Level
from bench.monitor.selection import Rival, Selection
from foundation.printable import first_names
from reports import format as fmt
from reports.markdown import bullets, plain
from reports.table import Column, Table, columns_of, table_of

FIELDS = ("checkpoint", "step", "collection", "measure", "value", "low", "high")
ON_TEST_DATA = {
    "all": "the best by these queries is partly the luckiest; choose with --split dev, and report "
    "another collection or split",
    "half": "the score on the other half is not too high for that reason, but it is of half of the "
    "queries, and no longer honest once it was used to choose",
}


def markdown(curve: Curve) -> str:
    """A row for each checkpoint; then the best one, and how far that can be trusted."""
    parts = [f"## {plain(curve.training)}: {curve.measure}", _table(curve)]
    if curve.selection is not None:
        parts.append(bullets(_verdict(curve, curve.selection)))
    if notes := list(_notes(curve)):
        parts.append(bullets(map(plain, notes)))
    return "\n\n".join([*parts, bullets(_legend(curve))]) + "\n"


def figures(curve: Curve) -> Table[Sequence[Any]]:
    """A row for each checkpoint and collection."""
    rows = [
        (point.checkpoint, point.step, name, curve.measure, on.value, on.low, on.high)
        for point in curve.points
        for name, on in point.levels.items()
    ]
    return table_of(FIELDS, rows)


def _table(curve: Curve) -> str:
    others = [name for name in curve.collections if name != curve.headline]
    columns: list[Column[CurvePoint]] = [
        Column("step", lambda point: _step(curve, point), fmt.written),
        Column("checkpoint", lambda point: point.checkpoint),
        Column(curve.headline, lambda point: point.levels[curve.headline], fmt.level),
        *columns_of(others, lambda point, name: point.levels[name].value, fmt.score),
    ]
    if curve.selection:
        columns += _selection_columns(curve.selection)
    points = [*curve.points, *([curve.baseline] if curve.baseline else [])]
    return Table(points, columns).markdown()


def _step(curve: Curve, point: CurvePoint) -> str:
    return "" if point is curve.baseline else f"{point.step:,}"


def _selection_columns(chosen: Selection) -> list[Column[CurvePoint]]:
    """The best one minus this one."""
    rivals = {rival.name: rival for rival in chosen.rivals}

    def rival(point: CurvePoint) -> Rival | None:
        return None if point.checkpoint == chosen.best else rivals[point.checkpoint]

    def verdict(point: CurvePoint) -> str:
        return other.verdict if (other := rival(point)) else "best"

    return [
        Column("best - this", rival, _difference),
        Column("p (adjusted)", lambda point: (other := rival(point)) and other.p, fmt.p_value),
        Column("", verdict),
    ]


def _difference(rival: Rival | None) -> str:
    if rival is None:
        return ""
    limits = fmt.interval(rival.paired)
    return fmt.signed(rival.paired.difference) + (f" ({limits})" if limits else "")


def _verdict(curve: Curve, chosen: Selection) -> Iterator[str]:
    best = next(point for point in curve.points if point.checkpoint == chosen.best)
    where = "the mean" if curve.headline not in curve.collections else curve.headline
    yield f"best on {plain(where)}: {plain(best.checkpoint)}, step {best.step:,}"
    yield from _trust(chosen)
    if chosen.inseparable:
        yield f"cannot be told apart from it: {plain(first_names(chosen.inseparable))}"
    elif all(rival.verdict == "worse" for rival in chosen.rivals):
        yield "it is better than every other one"
    for rival in chosen.rivals:
        if rival.verdict == "better":
            yield f"{plain(rival.name)} is better"
    if chosen.on_test_data:
        yield f"**test data were used to select**: {ON_TEST_DATA[chosen.method]}"


def _trust(chosen: Selection) -> Iterator[str]:
    own = fmt.level(Level(chosen.score, chosen.low, chosen.high))
    if chosen.method == "half":
        yield (
            f"chosen on {chosen.chosen_on:,} queries; on the other {chosen.reported_on:,}, which "
            f"did not choose it, it has {own}; differences and p are of these"
        )
        return
    if chosen.candidates > 1:
        yield (
            f"its score is the highest of {chosen.candidates:,} on {chosen.reported_on:,} queries, "
            "and too high for that reason: --select half reports one that is not"
        )
    flips = "all flips of signs" if chosen.exact else "flips of signs"
    yield f"p is adjusted for all {chosen.pairs:,} pairs (largest statistic over {flips})"


def _notes(curve: Curve) -> Iterator[str]:
    for name, why in curve.broken.items():
        yield f"{name} could not be evaluated: {why}"
    yield from (f"not shown: {text}" for text in curve.left_out)


def _legend(curve: Curve) -> Iterator[str]:
    yield fmt.intervals_legend(curve.resampling.resamples, curve.resampling.seed)
    yield (
        "intervals of two checkpoints may overlap though they can be told apart: they answer the "
        "same queries"
    )
    yield (
        "the interval of a difference is of that pair alone; p counts all pairs, and this look at "
        "the curve, not the looks before it"
    )
