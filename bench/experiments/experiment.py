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
from foundation.records import Record, differing_fields


class Cost(Record):
    """Time, tokens and size of the work of a stage.

    Attributes:
        seconds: wall clock.
        tokens: that were read in training, or encoded; 0 if they were not counted.
        parameters: that were trained; for an evaluation, those of the encoder.
        total_parameters: that the trained network has in all; 0 if they were not counted.
        saved_bytes: of the weights that the training wrote; the same.
    """

    seconds: float = 0.0
    tokens: int = 0
    parameters: int = 0
    total_parameters: int = msgspec.field(default=0, name="of_parameters")
    saved_bytes: int = 0


class ExperimentStage(ABC):
    """Pretrain, adapt, finetune or evaluate; picklable, because it works in a process apart."""

    @abstractmethod
    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """Complete settings, from what the file says or from complete ones.

        Raises:
            BenchError: an unknown field or value, or a collection
                or checkpoint that is not there.
        """

    @abstractmethod
    def hash_inputs(self, settings: Table) -> dict[str, str]:
        """Content hashes and rules of what it reads besides the model, by name."""

    @abstractmethod
    def run(self, settings: Table, model: str, out: Path) -> Cost:
        """Do the work of the stage; the time it takes is measured by who asks for it.

        Args:
            model: card or checkpoint of the stage before; "" if this is the first.
            out: folder of its own. What a killed attempt left there may be used. A training
                leaves its checkpoint in ``out / MODEL``, an evaluation its results in ``out``.
        """

    def with_seed(self, settings: Table, seed: int) -> Table:
        """Settings of one cell: of a training, the seed is of all that it draws."""
        return {**settings, "seed": seed}

    def key_settings(self, settings: Table) -> Table:
        """Settings as a part of keys: fields that have left stay, so that old cells are found."""
        return settings


MODEL = "model"  # folder of a finished checkpoint


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


class AxisResult(Record, kw_only=True):
    """One field and the rows that it is changed in.

    Attributes:
        against: the row that those rows change the field of.
        points: labels of the values, and the rows that have them.
    """

    title: str
    field: str
    against: str
    points: dict[str, str]


def make_rows(
    grid: Grid, resolve_settings: ResolveSettings
) -> tuple[tuple[GridRow, ...], tuple[AxisResult, ...]]:
    """All rows, the reference first, and which of them each axis shows.

    Args:
        resolve_settings: makes complete settings of a stage from those in the file, or from
            complete ones with a changed field.

    Raises:
        BenchError: an unknown field (with what was meant), settings that do not fit together, or
            rows that are the same.
    """
    stages = grid.stages()
    reference = GridRow(
        REFERENCE,
        {name: _resolve_stage(resolve_settings, name, table, "") for name, table in stages.items()},
    )
    rows = {REFERENCE: reference}
    axes: list[AxisResult] = []
    for axis in grid.axes:
        against = _find_compared_row(axis, rows)
        points = {
            axis.label(number): _add_row(rows, against, axis, number, resolve_settings)
            for number in range(len(axis.values))
        }
        if set(points.values()) == {against.name}:
            raise BenchError(f"the axis {axis.title} changes nothing of {against.name}")
        axes.append(
            AxisResult(title=axis.title, field=axis.field, against=against.name, points=points)
        )
    return tuple(rows.values()), tuple(axes)


def _find_compared_row(axis: Axis, rows: Mapping[str, GridRow]) -> GridRow:
    name = axis.against or REFERENCE
    if name not in rows:
        raise BenchError(
            f"the axis {axis.title} is against {name!r}, which is no row before it",
            did_you_mean(name, rows, f"there are: {', '.join(rows)}"),
        )
    return rows[name]


def _add_row(
    rows: dict[str, GridRow],
    against: GridRow,
    axis: Axis,
    number: int,
    resolve_settings: ResolveSettings,
) -> str:
    """Add the row with a value if it is missing, and return its name."""
    label = axis.label(number)
    name = f"{axis.title}={label}"
    settings = change_field(against, axis.field, axis.values[number], resolve_settings, name)
    if settings == against.settings:
        return against.name
    for other in rows.values():
        if settings == other.settings:
            raise BenchError(
                f"{name} is the same recipe as {other.name}",
                "leave one of them out: every row is trained with every seed",
            )
    before = format_label(get_field(against.settings, axis.field))
    after = label if axis.labels else format_label(get_field(settings, axis.field))
    change = f"{axis.field}: {before} -> {after}"
    rows[name] = GridRow(name, settings, against.name, change)
    return name


def change_field(
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
    changed = set_field(against.settings[stage], path, value, f"{name}: {stage}")
    resolved = _resolve_stage(resolve_settings, stage, changed, name)
    different = differing_fields(against.settings[stage], resolved)
    others = [each for each in different if not _is_within(each, path)]
    if others:
        raise BenchError(
            f"{name} changes {', '.join(others)} too: a row changes one field",
            "set the other field for the reference, or use an axis against another row",
        )
    return {**against.settings, stage: resolved}


def _resolve_stage(
    resolve_settings: ResolveSettings, stage: str, table: Mapping[str, Any], name: str
) -> Table:
    try:
        return resolve_settings(stage, table)
    except BenchError as error:
        where = f"{name}: {stage}" if name else f"[{stage}]"
        raise BenchError(f"{where}: {error}", error.hint) from error


def set_field(table: Mapping[str, Any], path: str, value: Any, where: str) -> Table:
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
        raise BenchError(
            f"{where}.{key} is {format_label(table[key])}, which has no field {rest!r}"
        )
    return {**table, key: set_field(table[key], rest, value, f"{where}.{key}")}


def get_field(table: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path that is there."""
    key, _, rest = path.partition(".")
    return get_field(table[key], rest) if rest else table[key]


def _is_within(path: str, field: str) -> bool:
    return f"{path}.".startswith(f"{field}.")


KEY_DIGITS = 16


@dataclass(frozen=True)
class CellTask:
    """One stage of one cell. Cells whose settings agree so far share it.

    Attributes:
        key: hash of its settings, of what it reads, of the libraries, and of the task before.
        model: name of the model that it starts from, where no task is before it.
    """

    stage: str
    settings: Table
    key: str
    before: "CellTask | None" = None
    model: str = ""

    def folder(self, out: Path) -> Path:
        """Where it is kept."""
        return out / self.stage / self.key

    def starts_from(self, out: Path) -> str:
        """Checkpoint of the task before, or the named model; "" for neither.

        A stage that leaves no model (an evaluation) is never before another.
        """
        return str(self.before.folder(out) / MODEL) if self.before else self.model

    def chain(self) -> Iterator["CellTask"]:
        """The tasks before it and itself, first to last."""
        if self.before:
            yield from self.before.chain()
        yield self


@dataclass(frozen=True)
class GridCell:
    """A row with a seed; ``task`` is its last stage."""

    row: str
    seed: int
    task: CellTask


@dataclass(frozen=True)
class Experiment:
    """All cells, in the order in which they are worked: seed by seed, so that an interrupted
    ablation has complete comparisons.

    Attributes:
        stages: by name, those of a row and maybe others.
        axes: their values with the rows that have them.
        leaks, differing, weights: see `bench.experiments.report_record.Report`.
    """

    grid: Grid
    stages: Mapping[str, ExperimentStage]
    rows: tuple[GridRow, ...]
    axes: tuple[AxisResult, ...]
    cells: tuple[GridCell, ...]
    leaks: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)

    def tasks(self) -> tuple[CellTask, ...]:
        """Distinct tasks in the order of their work."""
        tasks = {task.key: task for cell in self.cells for task in cell.task.chain()}
        return tuple(tasks.values())


def plan_experiment(
    grid: Grid, stages: Mapping[str, ExperimentStage], here: Mapping[str, str] | None = None
) -> Experiment:
    """Read the whole ablation and check it.

    Args:
        stages: by name.
        here: what else changes figures, such as versions of libraries and the device.

    Raises:
        BenchError: a hypothesis about a row that is not there.
        BenchError: see `rows_of`.
    """
    rows, axes = make_rows(grid, lambda name, table: stages[name].resolve_settings(table))
    _check_hypotheses(grid, [row.name for row in rows])

    def task(row: GridRow, seed: int, names: Sequence[str]) -> CellTask:
        """The last of these stages, after the others."""
        *earlier, name = names
        before = task(row, seed, earlier) if earlier else None
        settings = stages[name].with_seed(row.settings[name], seed)
        start = before.key if before else grid.model
        stage = stages[name]
        key = _hash_content(
            [
                name,
                stage.key_settings(settings),
                stage.hash_inputs(settings),
                dict(here or {}),
                start,
            ]
        )
        return CellTask(name, settings, key, before, "" if before else grid.model)

    cells = [
        GridCell(row.name, seed, task(row, seed, list(row.settings)))
        for seed in grid.seeds
        for row in rows
    ]
    return Experiment(grid, stages, rows, axes, tuple(cells))


def _check_hypotheses(grid: Grid, rows: Sequence[str]) -> None:
    for hypothesis in grid.hypotheses:
        for name in (hypothesis.row, hypothesis.against):
            if name not in rows:
                raise BenchError(
                    f"a hypothesis is about {name!r}, which is no row",
                    did_you_mean(name, rows, f"there are: {', '.join(rows)}"),
                )


def _hash_content(content: Sequence[object]) -> str:
    encoded = msgspec.json.encode(content, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:KEY_DIGITS]
