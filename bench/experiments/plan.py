"""Plan of an ablation: cells of stages, each keyed by everything that changes it."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.experiments.grid import Ablation, Table
from bench.experiments.rows import AxisPoint, GridRow, rows_of
from bench.experiments.stages import MODEL, ExperimentStage
from foundation.errors import BenchError, did_you_mean

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
        points: values of each axis with the rows that have them.
    """

    ablation: Ablation
    rows: tuple[GridRow, ...]
    points: Mapping[str, tuple[AxisPoint, ...]]
    cells: tuple[GridCell, ...]

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
    rows, points = rows_of(ablation, lambda name, table: stages[name].resolve_settings(table))
    _check_hypotheses(ablation, [row.name for row in rows])
    builder = TaskBuilder(ablation.model, stages, here or {})
    cells = [
        GridCell(row.name, seed, builder.task(row, seed, list(row.settings)))
        for seed in ablation.seeds
        for row in rows
    ]
    return Plan(ablation, rows, points, tuple(cells))


def _check_hypotheses(ablation: Ablation, rows: Sequence[str]) -> None:
    for hypothesis in ablation.hypotheses:
        for name in (hypothesis.row, hypothesis.against):
            if name not in rows:
                raise BenchError(
                    f"a hypothesis is about {name!r}, which is no row",
                    did_you_mean(name, rows, f"there are: {', '.join(rows)}"),
                )


@dataclass(frozen=True)
class TaskBuilder:
    """Makes tasks; holds what all of them have in common."""

    model: str
    stages: Mapping[str, ExperimentStage]
    here: Mapping[str, str]

    def task(self, row: GridRow, seed: int, names: Sequence[str]) -> CellTask:
        """The last of these stages, after the others."""
        *earlier, name = names
        before = self.task(row, seed, earlier) if earlier else None
        settings = self.stages[name].seeded(row.settings[name], seed)
        reads = self.stages[name].reads(settings)
        start = before.key if before else self.model
        key = _key([name, settings, reads, dict(self.here), start])
        return CellTask(name, settings, key, before, "" if before else self.model)


def _key(content: Sequence[object]) -> str:
    encoded = msgspec.json.encode(content, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:KEY_DIGITS]
