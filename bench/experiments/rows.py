"""The rows of an ablation: the reference, and rows that differ from another in one field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.experiments.grid import Ablation, Axis, Table, label_of
from foundation.errors import BenchError, did_you_mean
from foundation.records import differing_fields

REFERENCE = "reference"
# What rows must share to be compared.
FIXED = {
    "pretrain": ("seed",),
    "adapt": ("seed",),
    "finetune": ("seed",),
    "evaluate": ("on", "measures", "depth"),
}
ResolveSettings = Callable[[str, Mapping[str, Any]], Table]


@dataclass(frozen=True)
class GridRow:
    """One recipe.

    Attributes:
        name: ``AXIS=LABEL``, or `REFERENCE`.
        against: name of the row that it changes one field of; "" for the reference.
        settings: complete settings by stage.
        change: the field, with its value there and its value here.
    """

    name: str
    settings: Mapping[str, Table]
    against: str = ""
    change: str = ""


@dataclass(frozen=True)
class AxisPoint:
    """A value on an axis, and the row that has it."""

    label: str
    row: str


def rows_of(
    ablation: Ablation, resolve_settings: ResolveSettings
) -> tuple[tuple[GridRow, ...], dict[str, tuple[AxisPoint, ...]]]:
    """All rows, the reference first, and which of them each axis shows.

    Args:
        resolve_settings: makes complete settings of a stage from those in the file, or from
            complete ones with a changed field.

    Raises:
        BenchError: an unknown field (with what was meant), settings that do not fit together, a
            field that is changed twice, or rows that are the same.
    """
    stages = ablation.stages()
    reference = GridRow(
        REFERENCE,
        {name: _resolved(resolve_settings, name, table, "") for name, table in stages.items()},
    )
    rows = {REFERENCE: reference}
    points: dict[str, tuple[AxisPoint, ...]] = {}
    changed: dict[tuple[str, str], str] = {}
    for axis in ablation.axes:
        against = _against(axis, rows)
        twice = changed.setdefault((against.name, axis.field), axis.title)
        if twice != axis.title:
            raise BenchError(
                f"the axes {twice} and {axis.title} both change {axis.field} of {against.name}",
                "put their values into one axis",
            )
        points[axis.title] = tuple(
            _add(rows, against, axis, number, resolve_settings)
            for number in range(len(axis.values))
        )
        if all(point.row == against.name for point in points[axis.title]):
            raise BenchError(f"the axis {axis.title} changes nothing of {against.name}")
    return tuple(rows.values()), points


def _against(axis: Axis, rows: Mapping[str, GridRow]) -> GridRow:
    name = axis.against or REFERENCE
    if name not in rows:
        raise BenchError(
            f"the axis {axis.title} is against {name!r}, which is no row before it",
            did_you_mean(name, rows, f"there are: {', '.join(rows)}"),
        )
    return rows[name]


def _add(
    rows: dict[str, GridRow],
    against: GridRow,
    axis: Axis,
    number: int,
    resolve_settings: ResolveSettings,
) -> AxisPoint:
    label = axis.label(number)
    name = f"{axis.title}={label}"
    settings = changed_settings(against, axis.field, axis.values[number], resolve_settings, name)
    if settings == against.settings:
        return AxisPoint(label, against.name)
    for other in rows.values():
        if settings == other.settings:
            raise BenchError(
                f"{name} is the same recipe as {other.name}",
                "leave one of them out: every row is trained with every seed",
            )
    before = label_of(value_at(against.settings, axis.field))
    after = label if axis.labels else label_of(value_at(settings, axis.field))
    change = f"{axis.field}: {before} -> {after}"
    rows[name] = GridRow(name, settings, against.name, change)
    return AxisPoint(label, name)


def changed_settings(
    against: GridRow, field: str, value: Any, resolve_settings: ResolveSettings, name: str
) -> dict[str, Table]:
    """Settings of a row with one field changed; nothing else may differ.

    Raises:
        BenchError: no such field, or a value that brings other changes with it.
    """
    stage, _, path = field.partition(".")
    if stage not in against.settings or not path:
        known = [f"{name}." for name in against.settings]
        raise BenchError(
            f"{name}: the field {field} names no stage of this ablation",
            did_you_mean(f"{stage}.", known, f"there are: {', '.join(known)}"),
        )
    if path in FIXED.get(stage, ()):
        raise BenchError(f"{name}: {field} is the same for all rows", "see seeds and [evaluate]")
    changed = with_field(against.settings[stage], path, value, f"{name}: {stage}")
    resolved = _resolved(resolve_settings, stage, changed, name)
    different = differing_fields(against.settings[stage], resolved)
    others = [each for each in different if not _below(each, path)]
    if others:
        raise BenchError(
            f"{name} changes {', '.join(others)} too: a row changes one field",
            "set the other field for the reference, or use an axis against another row",
        )
    return {**against.settings, stage: resolved}


def _resolved(
    resolve_settings: ResolveSettings, stage: str, table: Mapping[str, Any], name: str
) -> Table:
    try:
        return resolve_settings(stage, table)
    except BenchError as error:
        where = f"{name}: {stage}" if name else f"[{stage}]"
        raise BenchError(f"{where}: {error}", error.hint) from error


def with_field(table: Mapping[str, Any], path: str, value: Any, where: str) -> Table:
    """A copy of complete settings with another value at a dotted path.

    Raises:
        BenchError: there is no such field.
    """
    key, _, rest = path.partition(".")
    if key not in table:
        raise BenchError(
            f"{where} has no field {key!r}",
            did_you_mean(key, table, f"there are: {', '.join(table)}"),
        )
    if not rest:
        return {**table, key: value}
    if not isinstance(table[key], Mapping):
        raise BenchError(f"{where}.{key} is {label_of(table[key])}, which has no field {rest!r}")
    return {**table, key: with_field(table[key], rest, value, f"{where}.{key}")}


def value_at(table: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path that is there."""
    key, _, rest = path.partition(".")
    return value_at(table[key], rest) if rest else table[key]


def _below(path: str, field: str) -> bool:
    return f"{path}.".startswith(f"{field}.")
