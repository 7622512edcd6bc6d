"""An experiment: its cells and tasks with their content keys, and how they are run.

Finished tasks are skipped, and a failed task leaves a gap. Several processes share the tasks.
"""

import hashlib
import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from traceback import format_exception
from typing import Any, ClassVar

import msgspec

from bench.experiments.grid import AxisResult, Grid, GridRow, TomlTable, make_rows
from foundation.errors import (
    BenchError,
    WorkerError,
    as_picklable_error,
    first_line,
    format_count,
    is_disk_full,
    is_out_of_memory,
)
from foundation.files import FileLock
from foundation.machine import kill_children, utc_now, watch_parent
from foundation.records import Record, find_differing_keys, read_json, write_json

MODEL = "model"  # folder of a finished checkpoint
COMMAND = "command"  # key of a table whose stage is run by another program
KEY_DIGITS = 16


class Cost(Record):
    """Time, tokens and size of one stage of one cell. 0 stands for what was not measured.

    ``parameters`` are the trained ones; of an evaluation, all of the encoder. ``cpu_seconds`` are
    those of all threads and subprocesses.
    """

    seconds: float = 0.0
    tokens: int = 0
    parameters: int = 0
    total_parameters: int = msgspec.field(default=0, name="of_parameters")
    saved_bytes: int = 0
    steps: int = 0
    cpu_seconds: float = 0.0


class ExperimentStage(ABC):
    """Kind of work: pretrain, adapt, finetune, evaluate, or a command. Stages are picklable.

    Attributes:
        imports: modules that a run takes seconds to import, besides those of an evaluation.
    """

    imports: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return the complete settings for a ``table`` of the grid, or raise if it is wrong."""

    @abstractmethod
    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return content hashes of the inputs other than the model, by name."""

    @abstractmethod
    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Run the stage with complete ``settings`` from ``model``, "" if this is the first.

        ``out`` may hold files of an interrupted attempt. A training writes to ``out / MODEL``.
        """

    def with_log(self, name: str) -> "ExperimentStage":
        """Return this stage with a log called ``name``, if it writes one."""
        return self

    def with_seed(self, settings: TomlTable, seed: int) -> TomlTable:
        """Return the ``settings`` of one cell: a training draws everything with ``seed``."""
        return {**settings, "seed": seed}


@dataclass(frozen=True)
class CellTask:
    """Stage of a cell, which ``kind`` runs. Cells share the tasks in which settings agree.

    ``key`` is the hash of settings, inputs, libraries and the previous task ``before``. The first
    task starts from ``model``.
    """

    stage: str
    kind: ExperimentStage
    settings: TomlTable
    key: str
    before: "CellTask | None" = None
    model: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)

    def folder(self, out: Path) -> Path:
        """Return the folder of the task below ``out``."""
        return out / self.stage / self.key

    def starts_from(self, out: Path) -> str:
        """Return the checkpoint of the previous task below ``out``, the initial model, or ""."""
        return str(self.before.folder(out) / MODEL) if self.before else self.model

    def chain(self) -> Iterator["CellTask"]:
        """Yield the previous tasks and this one, in order."""
        if self.before:
            yield from self.before.chain()
        yield self


@dataclass(frozen=True)
class GridCell:
    """A row with a seed. ``task`` is its last task."""

    row: str
    seed: int
    task: CellTask


@dataclass(frozen=True)
class Experiment:
    """Run of a grid: its rows, axes and cells.

    Cells are ordered by seed, so that an interrupted experiment has complete comparisons.
    """

    grid: Grid
    rows: tuple[GridRow, ...]
    axes: tuple[AxisResult, ...]
    cells: tuple[GridCell, ...]
    leaks: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)

    def tasks(self) -> tuple[CellTask, ...]:
        """Return the distinct tasks in the order in which they run."""
        tasks = {task.key: task for cell in self.cells for task in cell.task.chain()}
        return tuple(tasks.values())


def plan_experiment(
    grid: Grid, stages: Mapping[str, ExperimentStage], here: Mapping[str, str] | None = None
) -> Experiment:
    """Resolve all settings of a grid, check them, and compute the keys of all tasks.

    ``here`` has further influences on results.
    """

    def find_stage(name: str, settings: Mapping[str, Any]) -> ExperimentStage:
        """Return the stage that runs ``settings``: ``NAME command`` if they have a command."""
        by_command = stages.get(f"{name} {COMMAND}") if COMMAND in settings else None
        return by_command or stages[name]

    rows, axes = make_rows(
        grid, lambda name, table: find_stage(name, table).resolve_settings(table)
    )

    def plan_task(row: str, settings: Mapping[str, TomlTable], seed: int) -> CellTask:
        """Return the task of the last of these stages, after the tasks of the others."""
        *earlier, name = settings
        others = {each: settings[each] for each in earlier}
        before = plan_task(row, others, seed) if earlier else None
        kind = find_stage(name, settings[name])
        table = kind.with_seed(settings[name], seed)
        inputs, start = kind.hash_inputs(table), before.key if before else grid.model
        content = [name, table, inputs, here or {}, start]
        digest = hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
        key = digest[:KEY_DIGITS]
        kind = kind.with_log(f"{row.replace('/', '-')}, seed {seed}/{name}-{key}")
        return CellTask(name, kind, table, key, before, grid.model, inputs)

    cells = [
        GridCell(row.name, seed, plan_task(row.name, row.settings, seed))
        for seed in grid.seeds
        for row in rows
    ]
    return Experiment(grid, rows, axes, tuple(cells))


DONE_FILE, FAILED_FILE = "done.json", "failed.txt"


class FinishedTask(Record):
    """Record of a finished task. ``commit`` is the code that ran it, see `describe_code`."""

    stage: str
    key: str
    settings: TomlTable
    cost: Cost
    time: str
    commit: str


def read_finished(task: CellTask, out: Path) -> FinishedTask | None:
    """Read the record of ``task`` below ``out``, or return None if it is unfinished."""
    path = task.folder(out) / DONE_FILE
    if not path.is_file():
        return None
    return read_json(path, FinishedTask, f"Delete {path.parent} and type the same command.")


def write_finished(task: CellTask, out: Path, cost: Cost, commit: str) -> FinishedTask:
    """Record that ``task`` is finished, after everything that it writes below ``out``."""
    record = FinishedTask(task.stage, task.key, task.settings, cost, utc_now(), commit)
    write_json(task.folder(out) / DONE_FILE, record)
    (task.folder(out) / FAILED_FILE).unlink(missing_ok=True)
    return record


def write_failure(task: CellTask, out: Path, error: Exception) -> str:
    """Write the ``error`` of ``task`` with its traceback, and return its first line."""
    line = first_line(error)
    if not isinstance(error, BenchError | WorkerError):
        line = f"{type(error).__name__}: {line}"
    trace = "".join(format_exception(error))
    text = f"{line}\n{getattr(error, 'hint', '')}\n\n{trace}"
    (task.folder(out) / FAILED_FILE).write_text(text, encoding="utf-8", errors="replace")
    return line


@dataclass
class ExperimentOutcome:
    """Records of finished tasks, and errors of failed tasks as one line each, by key."""

    finished: dict[str, FinishedTask] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def find_gap(self, cell: GridCell) -> tuple[str, str]:
        """Return the stage at which ``cell`` failed and its error, or two empty strings."""
        for task in cell.task.chain():
            if task.key in self.failed:
                return task.stage, self.failed[task.key]
        return ("", "") if cell.task.key in self.finished else (cell.task.stage, "not done")

    def describe_cell(self, cell: GridCell) -> str:
        """Return how ``cell`` ended, and how long it took."""
        stage, error = self.find_gap(cell)
        if stage:
            return f"FAILED at {stage}: {error}"
        spent = [self.finished[task.key].cost.seconds for task in cell.task.chain()]
        return f"done, {sum(spent):,.0f} s"

    def describe_remaining(self, experiment: Experiment) -> str:
        """Return how many tasks of ``experiment`` are left."""
        unfinished = sum(task.key not in self.finished for task in experiment.tasks())
        if not unfinished:
            return "all are finished"
        return f"{format_count(unfinished, 'task', 'tasks')} left"


def load_outcome(experiment: Experiment, out: Path) -> ExperimentOutcome:
    """Load the records of the tasks of ``experiment`` that are finished below ``out``."""
    kept = {task.key: read_finished(task, out) for task in experiment.tasks()}
    return ExperimentOutcome({key: record for key, record in kept.items() if record})


def run_experiment(
    experiment: Experiment, out: Path, print_line: Callable[[str], None], commit: str = ""
) -> ExperimentOutcome:
    """Run the unfinished tasks. Several processes that run the same experiment share its cells.

    ``print_line`` prints the progress after each cell.
    """
    outcome, count = load_outcome(experiment, out), len(experiment.cells)
    numbered = enumerate(experiment.cells, 1)
    cells = [each for each in numbered if each[1].task.key not in outcome.finished]
    while cells:
        elsewhere, claims = [], []
        for number, cell in cells:
            if claim := _run_cell(cell, out, commit, outcome):
                elsewhere.append((number, cell))
                claims.append(claim)
                continue
            print_line(
                f"cell {number} of {count}: {cell.row}, seed {cell.seed}: "
                f"{outcome.describe_cell(cell)}; {outcome.describe_remaining(experiment)}"
            )
        if len(elsewhere) == len(cells):  # wait until another process has finished a task
            FileLock.acquire(claims[0]).release()
        cells = elsewhere
    return outcome


def _run_cell(cell: GridCell, out: Path, commit: str, outcome: ExperimentOutcome) -> Path | None:
    """Run the tasks of a cell until one fails. Return the claim file of a task run elsewhere."""
    for task in cell.task.chain():
        if task.key in outcome.failed:
            return None
        if task.key in outcome.finished:
            continue
        task.folder(out).mkdir(parents=True, exist_ok=True)
        path = task.folder(out).with_suffix(".claim")
        claim = FileLock.try_acquire(path)
        if claim is None:
            return path
        with claim:
            try:
                record = read_finished(task, out) or write_finished(
                    task, out, run_task(task, out), commit
                )
            except Exception as error:
                if is_disk_full(error):
                    raise
                outcome.failed[task.key] = write_failure(task, out, error)
                return None
            outcome.finished[task.key] = record
    return None


def run_task(task: CellTask, out: Path) -> Cost:
    """Run ``task`` below ``out``, in a new process.

    All processes are forks of one that imports what the first task needs.
    """
    modules = [*PRELOADED, *task.kind.imports]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    cost: Cost = run_in_subprocess(_run_timed, task, out)
    return cost


def _run_timed(task: CellTask, out: Path) -> Cost:
    """Run a task and time it, unless its inputs changed since the start of the experiment."""
    if changed := find_differing_keys(task.inputs, task.kind.hash_inputs(task.settings)):
        problem = f"changed since the experiment began: {', '.join(changed)}"
        raise BenchError(problem, "Type the command again.")
    began, used = time.perf_counter(), sum(os.times()[:4])
    cost = task.kind.run(task.settings, task.starts_from(out), task.folder(out))
    seconds, cpu_seconds = time.perf_counter() - began, sum(os.times()[:4]) - used
    return msgspec.structs.replace(cost, seconds=seconds, cpu_seconds=cpu_seconds)


PRELOADED = ("torch", "transformers", "bench.evaluation.pipeline")
NO_MEMORY_HINT = (
    "Reduce batch_size and raise accumulate by the same factor, set gradient_checkpointing, or "
    "reduce the chunk of the loss: the recipe stays the same."
)


def run_in_subprocess(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a subprocess, and return its result."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context, initializer=watch_parent) as pool:
        try:
            return pool.submit(_call_sendable, work, arguments).result()
        except BrokenProcessPool as error:
            killed = "its process was killed by the system: most likely out of memory"
            raise BenchError(killed, NO_MEMORY_HINT) from error
        except (KeyboardInterrupt, SystemExit):
            for process in set(multiprocessing.active_children()) - others:
                kill_children(process.pid)
                process.kill()
            raise


def _call_sendable(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a function, and replace its error by one that can be pickled."""
    try:
        return work(*arguments)
    except Exception as error:
        if is_out_of_memory(error):
            raise BenchError(f"out of memory: {first_line(error)}", NO_MEMORY_HINT) from error
        raise as_picklable_error(error) from error
