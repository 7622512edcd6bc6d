"""Rows and cells of an experiment, with a content key for each stage of a cell."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.experiments.grid import Axis, Grid, Table, format_label
from foundation.errors import BenchError, did_you_mean
from foundation.records import Record, find_differing_keys


class Cost(Record):
    """Time, tokens and size of one stage of one cell.

    Attributes:
        seconds: wall-clock time.
        tokens: tokens read in training, or encoded; 0 if they were not counted.
        parameters: trained parameters; of an evaluation, all parameters of the encoder.
        total_parameters: all parameters of the trained network; 0 if they were not counted.
        saved_bytes: size of the weights that the training saved; 0 if it was not measured.
        steps: optimizer steps of a training; 0 if they were not counted.
        cpu_seconds: CPU time of all threads and subprocesses; 0 if it was not measured.
    """

    seconds: float = 0.0
    tokens: int = 0
    parameters: int = 0
    total_parameters: int = msgspec.field(default=0, name="of_parameters")
    saved_bytes: int = 0
    steps: int = 0
    cpu_seconds: float = 0.0


class ExperimentStage(ABC):
    """A kind of work: pretrain, adapt, finetune, evaluate, or a command of the user.

    Stages are picklable, because they run in a subprocess.
    """

    @abstractmethod
    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """Return the complete settings of the stage, with all defaults.

        Args:
            table: table of the grid, or complete settings.

        Raises:
            BenchError: an unknown field, a wrong value, or a collection or checkpoint that does not
                exist.
        """

    @abstractmethod
    def hash_inputs(self, settings: Table) -> dict[str, str]:
        """Return content hashes and rules of the stage's inputs other than its model, by name.

        Args:
            settings: complete settings.
        """

    @abstractmethod
    def run(self, settings: Table, model: str, out: Path) -> Cost:
        """Run the stage. The caller measures the time.

        Args:
            settings: complete settings of one cell.
            model: card or checkpoint of the previous stage; "" if this is the first.
            out: folder of this task, which may hold files of an interrupted attempt. A training
                writes its checkpoint to ``out / MODEL``, an evaluation its results to ``out``.
        """

    def with_seed(self, settings: Table, seed: int) -> Table:
        """Return the ``settings`` of one cell: a training draws everything with ``seed``."""
        return {**settings, "seed": seed}


MODEL = "model"  # folder of a finished checkpoint
COMMAND = "command"  # key of a table whose stage is run by another program


def find_stage(
    stages: Mapping[str, ExperimentStage], name: str, settings: Mapping[str, Any]
) -> ExperimentStage:
    """Return the stage that runs ``settings``.

    Args:
        stages: stages by name; ``NAME command`` runs the commands of the stage ``NAME``.
        name: name of the stage in the grid.
        settings: table of the stage, or complete settings.
    """
    by_command = stages.get(f"{name} {COMMAND}") if COMMAND in settings else None
    return by_command or stages[name]


REFERENCE = "reference"
SHARED = ("on", "measures", "depth")  # fields of [evaluate] that rows must share to be compared
Resolve = Callable[[str, Mapping[str, Any]], Table]


@dataclass(frozen=True)
class GridRow:
    """One recipe of a grid.

    Attributes:
        name: ``AXIS=LABEL``, or `REFERENCE`.
        settings: complete settings by stage.
        against: name of the row that it differs from in one field; "" for the reference.
        change: the field, its value in ``against`` and its value in this row.
    """

    name: str
    settings: Mapping[str, Table]
    against: str = ""
    change: str = ""


class AxisResult(Record, kw_only=True):
    """The rows along one axis.

    Attributes:
        title: name of the axis in tables.
        field: stage and dotted path of the field.
        points: name of the row for each label of a value, with the compared row first if no value
            is its own.
    """

    title: str
    field: str
    points: dict[str, str]


def make_rows(grid: Grid, resolve: Resolve) -> tuple[tuple[GridRow, ...], tuple[AxisResult, ...]]:
    """Make all rows of a grid, the reference first, and the rows that belong to each axis.

    Args:
        grid: the grid.
        resolve: function of a stage's name and table that returns complete settings.

    Raises:
        BenchError: an unknown field, settings that contradict each other, or two equal rows.
    """
    stages = grid.stages()
    settings = {name: _resolve_stage(resolve, name, table, "") for name, table in stages.items()}
    rows = {REFERENCE: GridRow(REFERENCE, settings)}
    axes: list[AxisResult] = []
    for axis in grid.axes:
        against = _find_compared_row(axis, rows)
        points = {
            axis.label(number): _add_row(rows, against, axis, number, resolve)
            for number in range(len(axis.values))
        }
        if set(points.values()) == {against.name}:
            raise BenchError(f"the axis {axis.title} does not change {against.name}")
        if against.name not in points.values():
            points = {_label_of_compared(axis, against): against.name, **points}
        axes.append(AxisResult(title=axis.title, field=axis.field, points=points))
    return tuple(rows.values()), tuple(axes)


def _find_compared_row(axis: Axis, rows: Mapping[str, GridRow]) -> GridRow:
    """Return the row that the rows of an axis are compared with."""
    name = axis.against or REFERENCE
    if name not in rows:
        raise BenchError(
            f"the axis {axis.title} is against {name!r}, which is not an earlier row",
            did_you_mean(name, rows, f"there are: {', '.join(rows)}"),
        )
    return rows[name]


def _label_of_compared(axis: Axis, against: GridRow) -> str:
    """Return the label of the compared row: a number or text, else its name."""
    value = get_field(against.settings, axis.field)
    is_plain = isinstance(value, str | int | float) and value != "" and not axis.labels
    return format_label(value) if is_plain else against.name


def _add_row(
    rows: dict[str, GridRow], against: GridRow, axis: Axis, number: int, resolve: Resolve
) -> str:
    """Add the row of one value unless it exists, and return its name."""
    label = axis.label(number)
    name = f"{axis.title}={label}"
    settings = change_field(against, axis.field, axis.values[number], resolve, name)
    if settings == against.settings:
        return against.name
    for other in rows.values():
        if settings == other.settings:
            raise BenchError(
                f"{name} is the same recipe as {other.name}",
                "remove one of them, because every row is trained with every seed",
            )
    if axis.field in settings:  # a whole stage
        before, after = against.name, label
    else:
        before = format_label(get_field(against.settings, axis.field))
        after = label if axis.labels else format_label(get_field(settings, axis.field))
    change = f"{axis.field}: {before} -> {after}"
    rows[name] = GridRow(name, settings, against.name, change)
    return name


def change_field(
    against: GridRow, field: str, value: Any, resolve: Resolve, name: str
) -> dict[str, Table]:
    """Return the settings of a row with one field changed. No other field may differ.

    Args:
        against: row that is changed.
        field: stage and dotted path, or a training stage, whose whole table is ``value``.
        value: new value.
        resolve: function of a stage's name and table that returns complete settings.
        name: name of the new row, for messages.

    Raises:
        BenchError: an unknown field, or a value that changes other fields, too.
    """
    stage, _, path = field.partition(".")
    replaces_stage = isinstance(value, Mapping) and stage != "evaluate" and not path
    if stage not in against.settings or not (path or replaces_stage):
        known = [f"{name}." for name in against.settings]
        raise BenchError(
            f"{name}: the field {field} names no stage of this grid",
            did_you_mean(f"{stage}.", known, f"there are: {', '.join(known)}"),
        )
    fixed = SHARED if stage == "evaluate" else ("seed",)
    if {path, *(value if replaces_stage else ())} & {*fixed}:
        raise BenchError(f"{name}: {field} is the same for all rows", "change seeds or [evaluate]")
    if replaces_stage:
        return {**against.settings, stage: _resolve_stage(resolve, stage, value, name)}
    changed = set_field(against.settings[stage], path, value, f"{name}: {stage}")
    resolved = _resolve_stage(resolve, stage, changed, name)
    different = find_differing_keys(against.settings[stage], resolved)
    others = [each for each in different if not _is_within(each, path)]
    if others:
        raise BenchError(
            f"{name} also changes {', '.join(others)}, and a row may change one field",
            "set the other field for the reference, or use an axis against another row",
        )
    return {**against.settings, stage: resolved}


def _resolve_stage(resolve: Resolve, stage: str, table: Mapping[str, Any], name: str) -> Table:
    """Resolve the settings of a stage, and name the row and the stage in its errors."""
    try:
        return resolve(stage, table)
    except BenchError as error:
        reason = str(error).removeprefix(f"[{stage}]: ")
        where = f"{name}: [{stage}]: " if name else f"[{stage}]: "
        raise BenchError(where + reason, error.hint) from error


def set_field(table: Mapping[str, Any], path: str, value: Any, source: str) -> Table:
    """Return a copy of the complete settings ``table`` with ``value`` at the dotted ``path``.

    ``source`` names the table in messages.

    Raises:
        BenchError: the field does not exist.
    """
    key, _, rest = path.partition(".")
    if key not in table:
        raise BenchError(
            f"{source} has no field {key!r}",
            did_you_mean(key, table, f"there are: {', '.join(table)}"),
        )
    if not rest:
        return {**table, key: value}
    if not isinstance(table[key], Mapping):
        raise BenchError(
            f"{source}.{key} is {format_label(table[key])}, which has no field {rest!r}"
        )
    return {**table, key: set_field(table[key], rest, value, f"{source}.{key}")}


def get_field(table: Mapping[str, Any], path: str) -> Any:
    """Return the value at the dotted ``path`` of ``table``, which must exist."""
    key, _, rest = path.partition(".")
    return get_field(table[key], rest) if rest else table[key]


def _is_within(path: str, field: str) -> bool:
    """Return True if a dotted path is a field or lies below it."""
    return f"{path}.".startswith(f"{field}.")


KEY_DIGITS = 16


@dataclass(frozen=True)
class CellTask:
    """One stage of one cell. Cells share the tasks in which their settings agree.

    Attributes:
        stage: name of the stage.
        settings: complete settings.
        key: hash of the settings, the inputs, the libraries and the previous task.
        before: previous task; None for the first.
        model: name of the initial model, if there is no previous task.
        inputs: hashes of the inputs, which are part of the key.
    """

    stage: str
    settings: Table
    key: str
    before: "CellTask | None" = None
    model: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)

    def folder(self, out: Path) -> Path:
        """Return the folder of the task below ``out``."""
        return out / self.stage / self.key

    def starts_from(self, out: Path) -> str:
        """Return the checkpoint of the previous task below ``out``, the initial model, or "".

        An evaluation leaves no model and is always the last task.
        """
        return str(self.before.folder(out) / MODEL) if self.before else self.model

    def chain(self) -> Iterator["CellTask"]:
        """Yield the previous tasks and this one, in order."""
        if self.before:
            yield from self.before.chain()
        yield self


@dataclass(frozen=True)
class GridCell:
    """A row with a seed.

    Attributes:
        row: name of the row.
        seed: seed of its training.
        task: its last task.
    """

    row: str
    seed: int
    task: CellTask


@dataclass(frozen=True)
class Experiment:
    """A run of a grid: all rows and cells.

    Cells are ordered by seed, so that an interrupted experiment has complete comparisons.

    Attributes:
        grid: the grid.
        stages: stages by name; a row may use only some of them.
        rows: recipes, the reference first.
        axes: axes with their rows.
        cells: rows with seeds.
        anchors: evaluations of finished models, whose names take the place of the row's.
        leaks, differing, weights: see `bench.experiments.report_record.Report`.
    """

    grid: Grid
    stages: Mapping[str, ExperimentStage]
    rows: tuple[GridRow, ...]
    axes: tuple[AxisResult, ...]
    cells: tuple[GridCell, ...]
    anchors: tuple[GridCell, ...] = ()
    leaks: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)

    def tasks(self) -> tuple[CellTask, ...]:
        """Return the distinct tasks in the order in which they run."""
        cells = (*self.cells, *self.anchors)
        tasks = {task.key: task for cell in cells for task in cell.task.chain()}
        return tuple(tasks.values())


Here = Mapping[str, str]


def plan_experiment(
    grid: Grid,
    stages: Mapping[str, ExperimentStage],
    here: Here | None = None,
    anchors: Mapping[str, str] | None = None,
) -> Experiment:
    """Resolve all settings of a grid, check them, and compute the keys of all tasks.

    Args:
        grid: the grid.
        stages: stages by name.
        here: further influences on results, such as library versions and the device.
        anchors: fingerprint of each anchor, by its name.

    Raises:
        BenchError: invalid settings, see `make_rows`.
    """
    rows, axes = make_rows(
        grid, lambda name, table: find_stage(stages, name, table).resolve_settings(table)
    )

    def task(row: GridRow, seed: int, names: Sequence[str], model: str, here: Here) -> CellTask:
        """Return the task of the last of these stages, after the tasks of the others."""
        *earlier, name = names
        before = task(row, seed, earlier, model, here) if earlier else None
        stage = find_stage(stages, name, row.settings[name])
        settings = stage.with_seed(row.settings[name], seed)
        start, inputs = before.key if before else model, stage.hash_inputs(settings)
        key = _hash_content([name, settings, inputs, dict(here), start])
        return CellTask(name, settings, key, before, "" if before else model, inputs)

    cells = [
        GridCell(row.name, seed, task(row, seed, list(row.settings), grid.model, here or {}))
        for seed in grid.seeds
        for row in rows
    ]
    # Anchors share collections, measures and depth only.
    evaluate = rows[0].settings["evaluate"]
    shared = {field: evaluate[field] for field in SHARED if field in evaluate}
    compared = []
    for name, fingerprint in (anchors or {}).items():
        row = GridRow(name, {"evaluate": stages["evaluate"].resolve_settings(shared)})
        used = {**(here or {}), "model": fingerprint}
        compared.append(GridCell(name, 0, task(row, 0, ["evaluate"], name, used)))
    return Experiment(grid, stages, rows, axes, tuple(cells), tuple(compared))


def _hash_content(content: Sequence[object]) -> str:
    """Return the first digits of the SHA-256 of some content as JSON."""
    encoded = msgspec.json.encode(content, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:KEY_DIGITS]
