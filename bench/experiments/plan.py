"""Plan of an ablation: rows, and cells of stages, each keyed by everything that changes it."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.experiments.grid import Ablation, Axis, Table, label_of
from foundation.errors import BenchError, did_you_mean
from foundation.records import Record, differing_fields


class Cost(Record):
    """Time, tokens and size of the work of a stage.

    Attributes:
        seconds: wall clock.
        tokens: that were read in training, or encoded; 0 if they were not counted.
        parameters: that were trained; for an evaluation, those of the encoder.
        total_parameters: of the trained network; 0 if they were not counted.
        saved_bytes: of the weights that the training wrote; the same.
    """

    seconds: float = 0.0
    tokens: int = 0
    parameters: int = 0
    total_parameters: int = msgspec.field(default=0, name="of_parameters")  # as stored
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
    def reads(self, settings: Table) -> dict[str, str]:
        """Content hashes and rules of what it reads besides the model, by name."""

    @abstractmethod
    def work(self, settings: Table, model: str, out: Path) -> Cost:
        """Do the work of the stage; the time it takes is measured by who asks for it.

        Args:
            model: card or checkpoint of the stage before; "" if this is the first.
            out: folder of its own. What a killed attempt left there may be used. A training
                leaves its checkpoint in ``out / MODEL``, an evaluation its results in ``out``.
        """

    def seeded(self, settings: Table, seed: int) -> Table:
        """Settings of one cell: of a training, the seed is of all that it draws."""
        return {**settings, "seed": seed}

    def keyed(self, settings: Table) -> Table:
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


class AxisFound(Record, kw_only=True):
    """One field and the rows that it is changed in.

    Attributes:
        against: the row that those rows change the field of.
        points: labels of the values, and the rows that have them.
    """

    title: str
    field: str
    against: str
    points: dict[str, str]


def rows_of(
    ablation: Ablation, resolve_settings: ResolveSettings
) -> tuple[tuple[GridRow, ...], tuple[AxisFound, ...]]:
    """All rows, the reference first, and which of them each axis shows.

    Args:
        resolve_settings: makes complete settings of a stage from those in the file, or from
            complete ones with a changed field.

    Raises:
        BenchError: an unknown field (with what was meant), settings that do not fit together, or
            rows that are the same.
    """
    stages = ablation.stages()
    reference = GridRow(
        REFERENCE,
        {name: _resolved(resolve_settings, name, table, "") for name, table in stages.items()},
    )
    rows = {REFERENCE: reference}
    axes: list[AxisFound] = []
    for axis in ablation.axes:
        against = _against(axis, rows)
        points = {
            axis.label(number): _add(rows, against, axis, number, resolve_settings)
            for number in range(len(axis.values))
        }
        if set(points.values()) == {against.name}:
            raise BenchError(f"the axis {axis.title} changes nothing of {against.name}")
        axes.append(
            AxisFound(title=axis.title, field=axis.field, against=against.name, points=points)
        )
    return tuple(rows.values()), tuple(axes)


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
) -> str:
    """Add the row with a value if it is missing, and return its name."""
    label = axis.label(number)
    name = f"{axis.title}={label}"
    settings = changed_settings(against, axis.field, axis.values[number], resolve_settings, name)
    if settings == against.settings:
        return against.name
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
    return name


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
class Plan:
    """All cells, in the order in which they are worked: seed by seed, so that an interrupted
    ablation has complete comparisons.

    Attributes:
        stages: by name, those of a row and maybe others.
        axes: their values with the rows that have them.
        leaks, differing, weights: see `bench.experiments.report_record.Report`.
    """

    ablation: Ablation
    stages: Mapping[str, ExperimentStage]
    rows: tuple[GridRow, ...]
    axes: tuple[AxisFound, ...]
    cells: tuple[GridCell, ...]
    leaks: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)

    def tasks(self) -> tuple[CellTask, ...]:
        """Distinct tasks in the order of their work."""
        tasks = {task.key: task for cell in self.cells for task in cell.task.chain()}
        return tuple(tasks.values())


def plan_of(
    ablation: Ablation, stages: Mapping[str, ExperimentStage], here: Mapping[str, str] | None = None
) -> Plan:
    """Read the whole ablation and check it.

    Args:
        stages: by name.
        here: what else changes figures, such as versions of libraries and the device.

    Raises:
        BenchError: a hypothesis about a row that is not there.
        BenchError: see `rows_of`.
    """
    rows, axes = rows_of(ablation, lambda name, table: stages[name].resolve_settings(table))
    _check_hypotheses(ablation, [row.name for row in rows])

    def task(row: GridRow, seed: int, names: Sequence[str]) -> CellTask:
        """The last of these stages, after the others."""
        *earlier, name = names
        before = task(row, seed, earlier) if earlier else None
        settings = stages[name].seeded(row.settings[name], seed)
        start = before.key if before else ablation.model
        stage = stages[name]
        key = _key([name, stage.keyed(settings), stage.reads(settings), dict(here or {}), start])
        return CellTask(name, settings, key, before, "" if before else ablation.model)

    cells = [
        GridCell(row.name, seed, task(row, seed, list(row.settings)))
        for seed in ablation.seeds
        for row in rows
    ]
    return Plan(ablation, stages, rows, axes, tuple(cells))


def _check_hypotheses(ablation: Ablation, rows: Sequence[str]) -> None:
    for hypothesis in ablation.hypotheses:
        for name in (hypothesis.row, hypothesis.against):
            if name not in rows:
                raise BenchError(
                    f"a hypothesis is about {name!r}, which is no row",
                    did_you_mean(name, rows, f"there are: {', '.join(rows)}"),
                )


def _key(content: Sequence[object]) -> str:
    encoded = msgspec.json.encode(content, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:KEY_DIGITS]
