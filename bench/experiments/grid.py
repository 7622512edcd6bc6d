"""A grid is a strict TOML file: a reference, and the fields that its rows change.

::

    name = "masks"
    seeds = [0, 1, 2]
    pretrain = { preset = "retromae-small", on = ["stdlib-code"] } # and fields of the preset
    finetune = { preset = "dpr-small", on = ["beir/nfcorpus"] }
    evaluate = { on = ["beir/nfcorpus"] }

    [[axes]]
    field = "pretrain.objective.decoder_mask"
    values = [0.15, 0.5, 0.9] # each value that differs from the reference is a row

Any stage may be absent. Without ``pretrain``, set ``model`` to the model that is fine-tuned or
evaluated. ``base`` is a pre-training before the rows' own, from which every row and seed continues.
With ``base_per_seed = true`` each seed has a base of its own. ``adapt`` trains on the collections
of its ``on`` one after the other; its ``method`` is a name, or a table such as
``{ name = "das", measured = 1000 }``.

``pretrain`` and ``finetune`` may have a ``command`` instead of a preset: another program trains the
checkpoint (see `bench.experiments.command_stage.CommandSettings`). An axis whose ``field`` is a
training stage has whole tables as values.

Factors are crossed: every combination of their levels is a cell, and the first level of each is the
reference::

    [factors]
    objective = ["mlm", "retromae"] # pretrain.objective, the only field of this name
    finetune.optimizer.lr = [1e-5, 2e-5]
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from foundation.errors import BenchError, did_you_mean
from foundation.records import Name, Record, TomlFiles, convert_table, find_differing_keys

STAGES = ("base", "pretrain", "adapt", "finetune", "evaluate")
REFERENCE = "reference"
TRAINING = STAGES[:-1]
SHARED = ("on", "measures", "depth")  # fields of [evaluate] that rows must share to be compared
SHARED_FIELDS = tuple(f"evaluate.{name}" for name in SHARED)
MOST_CELLS = 256  # of the factors of a grid, for each seed

TomlTable = dict[str, Any]
Seed = Annotated[int, msgspec.Meta(ge=0)]
Resolve = Callable[[str, Mapping[str, Any]], TomlTable]


class Axis(Record, kw_only=True):
    """One field and its values.

    Attributes:
        field: stage and dotted path, such as ``pretrain.objective.decoder_mask``.
        values: values of the field. A table replaces the whole table of the field.
        name: title in tables; "" for the last part of ``field``.
        labels: names of the values in tables; empty to print the values.
        against: row that these rows are compared with and differ from in ``field``; "" for the
            reference. A row is called ``AXIS=LABEL``.
    """

    field: str
    values: Annotated[tuple[Any, ...], msgspec.Meta(min_length=1)]
    name: str = ""
    labels: tuple[str, ...] = ()
    against: str = ""

    def __post_init__(self) -> None:
        if self.labels and len(self.labels) != len(self.values):
            raise ValueError(f"{len(self.labels)} labels for {len(self.values)} values")
        if len(self.points) < len(self.values):
            raise ValueError(f"{self.title} has one of {', '.join(self.points)} twice")

    @property
    def title(self) -> str:
        """Name of the axis in tables."""
        return self.name or self.field.rpartition(".")[2]

    @property
    def points(self) -> TomlTable:
        """Values by label."""
        labels = self.labels or map(format_label, self.values)
        return dict(zip(labels, self.values, strict=True))


class Grid(Record, kw_only=True):
    """A complete grid.

    Attributes:
        name: folder of the report.
        title: title of the report.
        model: card, folder or Hub id that is adapted, fine-tuned or evaluated; "" if ``base`` or
            ``pretrain`` trains it, or if a grid without training states it as ``evaluate.model``.
        seeds: seeds that every row is trained with.
        base_per_seed: train a ``base`` for each seed; False to train one for all seeds.
        base, pretrain, adapt, finetune, evaluate: settings of the reference. Leave out a stage to
            skip it.
        factors: fields that are crossed, each with its levels: a dotted name, or the last part of
            it where one field has it.
        axes: fields that rows change one at a time, each with its values.
    """

    name: Name
    title: str = ""
    model: str = ""
    seeds: Annotated[tuple[Seed, ...], msgspec.Meta(min_length=1)] = (0,)
    base_per_seed: bool = False
    base: TomlTable | None = None
    pretrain: TomlTable | None = None
    adapt: TomlTable | None = None
    finetune: TomlTable | None = None
    evaluate: TomlTable
    factors: TomlTable = {}
    axes: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds has the same seed twice")
        is_trained = any(getattr(self, stage) is not None for stage in TRAINING)
        if is_trained and bool(self.model) == bool(self.base or self.pretrain):
            raise ValueError("set either model or [pretrain]")
        if (is_trained or self.model) and "model" in self.evaluate:
            known = "trained by the grid" if is_trained else f"{self.model}, at the top of the file"
            raise ValueError(f"[evaluate] has a model, but the evaluated one is {known}")
        if any("seed" in table for table in self.stages().values()):
            raise ValueError("a stage has a seed: use seeds, at the top of the file, instead")
        if len({axis.title for axis in self.axes}) < len(self.axes):
            raise ValueError("two axes have the same title: set the name of one")
        if not self.axes and not self.factors:
            raise ValueError("set [factors] or [[axes]]")

    def stages(self) -> dict[str, TomlTable]:
        """Return the settings of the reference by stage, in order, without absent stages.

        If nothing is trained, ``evaluate`` has the model.
        """
        tables = {stage: getattr(self, stage) for stage in TRAINING}
        found = {stage: table for stage, table in tables.items() if table is not None}
        model = {} if found else {"model": self.model or None}
        return {**found, "evaluate": model | self.evaluate}


FILES = TomlFiles("grid", Path(__file__).parent / "grids", Grid)


def load_grid(name_or_path: str, seeds: Sequence[int] = ()) -> Grid:
    """Load a grid from a ``.toml`` file, or a shipped one by its name, with its or other seeds."""
    grid = FILES.load(name_or_path)
    return FILES.changed(grid, {"seeds": seeds}, name_or_path) if seeds else grid


def format_label(value: Any) -> str:
    """Format a field's ``value``: a TOML table by its name, a list with commas."""
    if isinstance(value, Mapping):
        named = value.get("name")
        return str(named) if named else msgspec.json.encode(value).decode()
    if isinstance(value, list | tuple):
        return ", ".join(format_label(each) for each in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


@dataclass(frozen=True)
class GridRow:
    """One recipe: complete settings by stage, and the change from the row it is compared with."""

    name: str
    settings: Mapping[str, TomlTable]
    against: str = ""
    change: str = ""


class AxisResult(Record, kw_only=True):
    """Rows along one axis, or the cells of all ``factors``.

    ``points`` has the name of the row for each label, the compared row first if no value is its
    own. Cells are ordered by their levels, those of the last factor changing fastest.
    """

    title: str
    field: str
    points: dict[str, str]
    factors: tuple[Axis, ...] = ()


def make_rows(grid: Grid, resolve: Resolve) -> tuple[tuple[GridRow, ...], tuple[AxisResult, ...]]:
    """Make all rows of a grid, the reference first, and the rows that belong to each axis.

    ``resolve`` returns complete settings for the name and the table of a stage.
    """
    stages = grid.stages()
    settings = {name: _resolve_stage(resolve, name, table, "") for name, table in stages.items()}
    reference, factors = GridRow(REFERENCE, settings), read_factors(grid, settings)
    for factor in factors:
        reference = _change_row(reference, factor, next(iter(factor.points)), resolve)
    rows = {REFERENCE: GridRow(REFERENCE, reference.settings)}
    axes = [_add_cells(rows, factors, resolve)] if factors else []
    for axis in grid.axes:
        compared = axis.against or REFERENCE
        if compared not in rows:
            raise BenchError(
                f"the axis {axis.title} is against {compared!r}, which is not an earlier row",
                did_you_mean(compared, rows, f"Use one of {', '.join(rows)}."),
            )
        against, points = rows[compared], {}
        for label in axis.points:
            row = _change_row(against, axis, label, resolve)
            is_new = row.settings != against.settings
            if is_new:
                _add_row(rows, row)
            points[label] = row.name if is_new else compared
        if set(points.values()) == {compared}:
            raise BenchError(f"the axis {axis.title} does not change {compared}")
        if compared not in points.values():
            points = {_label_of_compared(axis, against): compared, **points}
        axes.append(AxisResult(title=axis.title, field=axis.field, points=points))
    return tuple(rows.values()), tuple(axes)


def read_factors(grid: Grid, settings: Mapping[str, TomlTable]) -> tuple[Axis, ...]:
    """Return the factors of a ``grid`` with their fields in the ``settings`` of its reference."""
    fields = [name for name, _ in _walk(settings)]
    factors = [
        _read_factor(grid, name, levels, fields)
        for name, levels in _walk(grid.factors)
        if not isinstance(levels, Mapping)
    ]
    for one, other in itertools.permutations(factors, 2):
        if f"{one.field}.".startswith(f"{other.field}."):
            raise BenchError(
                f"the factors {other.title} and {one.title} both change {one.field}",
                "Remove one of them.",
            )
    if (cells := math.prod(len(factor.points) for factor in factors)) > MOST_CELLS:
        raise BenchError(
            f"[factors] gives {cells:,} cells, and a grid has at most {MOST_CELLS}",
            "Remove a factor or some levels.",
        )
    return tuple(factors)


def _read_factor(grid: Grid, name: str, levels: Any, fields: Sequence[str]) -> Axis:
    """Return the factor that is called ``name``, the end of one of ``fields``."""
    if not isinstance(levels, list) or len(levels) < 2:
        raise BenchError(
            f"the factor {name} has no levels to compare: {format_label(levels)}",
            f"Give a list of two or more, such as {name} = [LEVEL, LEVEL].",
        )
    found = [each for each in fields if f".{each}".endswith(f".{name}")]
    if len(found) > 1:
        found = [each for each in found if each not in SHARED_FIELDS]
    if len(found) != 1:
        problem = f"is one of {', '.join(found)}" if found else "is not a field of this grid"
        ends = [each.rpartition(".")[2] for each in fields]
        hint = f"Write {' or '.join(found)}." if found else did_you_mean(name, [*fields, *ends])
        raise BenchError(f"the factor {name} {problem}", hint)
    stage, _, path = found[0].partition(".")
    fixed: Any = grid.stages()[stage]
    for key in path.split("."):
        fixed = fixed.get(key) if isinstance(fixed, Mapping) else None
    required = path == "on" and fixed == levels[0]
    if path and fixed is not None and not required:
        raise BenchError(
            f"the factor {name} is also set in [{stage}]: {format_label(fixed)}",
            f"Remove it there: the reference has the first level, {format_label(levels[0])}.",
        )
    return convert_table({"field": found[0], "values": levels, "name": name}, Axis, "[factors]")


def _add_cells(rows: dict[str, GridRow], factors: Sequence[Axis], resolve: Resolve) -> AxisResult:
    """Add a row for each combination of levels but the first, the reference."""
    titles, points = [factor.title for factor in factors], {}
    for labels in itertools.product(*(factor.points for factor in factors)):
        row, changes = rows[REFERENCE], []
        for factor, label in zip(factors, labels, strict=True):
            if label != next(iter(factor.points)):
                row = _change_row(row, factor, label, resolve)
                changes.append(row.change)
        if changes:
            name = ", ".join(map("=".join, zip(titles, labels, strict=True)))
            _add_row(rows, GridRow(name, row.settings, REFERENCE, "; ".join(changes)))
        points[", ".join(labels)] = name if changes else REFERENCE
    return AxisResult(
        title=" x ".join(titles),
        field=", ".join(factor.field for factor in factors),
        points=points,
        factors=tuple(factors),
    )


def _add_row(rows: dict[str, GridRow], row: GridRow) -> None:
    """Add a row, whose recipe must be new."""
    for other in rows.values():
        if row.settings == other.settings:
            raise BenchError(
                f"{row.name} is the same recipe as {other.name}",
                "Remove one of them, because every row is trained with every seed.",
            )
    rows[row.name] = row


def _label_of_compared(axis: Axis, against: GridRow) -> str:
    value = get_field(against.settings, axis.field)
    is_plain = isinstance(value, str | int | float) and value != "" and not axis.labels
    return format_label(value) if is_plain else against.name


def _change_row(against: GridRow, axis: Axis, label: str, resolve: Resolve) -> GridRow:
    """Return the row of one value: ``against`` with one field changed, and no other."""
    name, value = f"{axis.title}={label}", axis.points[label]
    stage, _, path = axis.field.partition(".")
    is_stage = not path and stage != "evaluate" and isinstance(value, Mapping)
    if stage not in against.settings or not (path or is_stage):
        known = [f"{each}." for each in against.settings]
        raise BenchError(
            f"{name}: the field {axis.field} names no stage of this grid",
            did_you_mean(f"{stage}.", known, f"Use one of {', '.join(known)}."),
        )
    fixed = SHARED if stage == "evaluate" else ("seed",)
    if not {path, *(value if is_stage else ())}.isdisjoint(fixed):
        problem = f"{name}: {axis.field} is the same for all rows"
        raise BenchError(problem, "Change seeds or [evaluate].")
    old = against.settings[stage]
    table = value if is_stage else set_field(old, path, value, f"{name}: {stage}")
    new = _resolve_stage(resolve, stage, table, name)
    if is_stage:
        before, after = against.name, label
    else:
        changed = find_differing_keys(old, new)
        others = [each for each in changed if not f"{each}.".startswith(f"{path}.")]
        if others:
            raise BenchError(
                f"{name} also changes {', '.join(others)}, and a row may change one field",
                "Set the other field for the reference, or use an axis against another row.",
            )
        before = format_label(get_field(old, path))
        after = label if axis.labels else format_label(get_field(new, path))
    change = f"{axis.field}: {before} -> {after}"
    return GridRow(name, {**against.settings, stage: new}, against.name, change)


def _resolve_stage(resolve: Resolve, stage: str, table: Mapping[str, Any], name: str) -> TomlTable:
    """Resolve the settings of a stage, and name the row and the stage in its errors."""
    try:
        return resolve(stage, table)
    except BenchError as error:
        reason = str(error).removeprefix(f"[{stage}]: ")
        where = f"{name}: [{stage}]: " if name else f"[{stage}]: "
        raise BenchError(where + reason, error.hint) from error


def set_field(table: Mapping[str, Any], path: str, value: Any, source: str) -> TomlTable:
    """Return a copy of ``table`` with ``value`` at the dotted ``path``; ``source`` names it."""
    key, _, rest = path.partition(".")
    if key not in table:
        hint = did_you_mean(key, table, f"Use one of {', '.join(table)}.")
        raise BenchError(f"{source} has no field {key!r}", hint)
    if not rest:
        is_name = (
            isinstance(value, str) and isinstance(table[key], Mapping) and "name" in table[key]
        )
        return {**table, key: {"name": value} if is_name else value}
    if not isinstance(table[key], Mapping):
        found = format_label(table[key])
        raise BenchError(f"{source}.{key} is {found}, which has no field {rest!r}")
    return {**table, key: set_field(table[key], rest, value, f"{source}.{key}")}


def _walk(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and value of each field of ``table``, and of the tables in it."""
    for key, value in table.items():
        yield f"{above}{key}", value
        if isinstance(value, Mapping):
            yield from _walk(value, f"{above}{key}.")


def get_field(table: Mapping[str, Any], path: str) -> Any:
    """Return the value at the dotted ``path`` of ``table``, which must exist."""
    key, _, rest = path.partition(".")
    return get_field(table[key], rest) if rest else table[key]
