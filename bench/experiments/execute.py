"""Execution of an experiment: finished tasks are skipped, and a failed task leaves a gap."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from traceback import format_exception
from typing import Any

import msgspec
import psutil

from bench.evaluation.result_record import Conditions
from bench.experiments.experiment import (
    CellTask,
    Cost,
    Experiment,
    ExperimentStage,
    GridCell,
    find_stage,
)
from bench.experiments.grid import Table
from foundation.errors import (
    BenchError,
    WorkerError,
    as_picklable_error,
    first_line,
    is_disk_full,
    is_out_of_memory,
)
from foundation.files import FileLock
from foundation.machine import utc_now
from foundation.records import Record, find_differing_keys, read_json, write_json

DONE_FILE, FAILED_FILE = "done.json", "failed.txt"
MODIFIED = " modified"


class FinishedTask(Record, kw_only=True):
    """The record of a finished task.

    Attributes:
        stage: name of the stage.
        key: key of the task.
        settings: complete settings.
        cost: time, tokens and size.
        time: end of the task, ISO 8601 in UTC.
        commit: code that ran the task, see `describe_code`; "" if it is unknown.
    """

    stage: str
    key: str
    settings: Table
    cost: Cost
    time: str
    commit: str


def describe_code(conditions: Conditions) -> str:
    """Return the git commit of the code, marked if it was modified, or the installed version.

    Args:
        conditions: conditions of this process.
    """
    code = conditions.commit or f"version {conditions.bench}"
    return code + (MODIFIED if conditions.dirty else "")


def read_finished(task: CellTask, out: Path) -> FinishedTask | None:
    """Read the record of ``task`` below ``out``, or return None if it is unfinished.

    Raises:
        BenchError: the record is damaged.
    """
    path = task.folder(out) / DONE_FILE
    if not path.is_file():
        return None
    return read_json(path, FinishedTask, f"delete {path.parent} and type the same command")


def write_finished(task: CellTask, out: Path, cost: Cost, commit: str) -> FinishedTask:
    """Record that ``task`` is finished, after everything that it writes below ``out``.

    Args:
        task: the finished task.
        out: folder of all tasks.
        cost: its time, tokens and size.
        commit: code that ran the task, see `describe_code`.
    """
    record = FinishedTask(
        stage=task.stage,
        key=task.key,
        settings=task.settings,
        cost=cost,
        time=utc_now(),
        commit=commit,
    )
    write_json(task.folder(out) / DONE_FILE, record)
    (task.folder(out) / FAILED_FILE).unlink(missing_ok=True)
    return record


def write_failure(task: CellTask, out: Path, error: Exception) -> str:
    """Write the ``error`` of ``task`` with its traceback below ``out``, and return it as one line.

    The task is tried again when the same command is run again.
    """
    line = first_line(error)
    if not isinstance(error, BenchError | WorkerError):
        line = f"{type(error).__name__}: {line}"
    trace = "".join(format_exception(error))
    text = f"{line}\n{getattr(error, 'hint', '')}\n\n{trace}"
    (task.folder(out) / FAILED_FILE).write_text(text, encoding="utf-8", errors="replace")
    return line


RunTask = Callable[[ExperimentStage, CellTask, Path], Cost]
PrintLine = Callable[[str], None]


@dataclass
class ExperimentOutcome:
    """Finished and failed tasks of an experiment.

    Attributes:
        finished: records of finished tasks by key.
        failed: errors of failed tasks by key, as one line each.
    """

    finished: dict[str, FinishedTask] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def find_gap(self, cell: GridCell) -> tuple[str, str]:
        """Return the stage at which ``cell`` failed and its error, or two empty strings."""
        for task in cell.task.chain():
            if task.key in self.failed:
                return task.stage, self.failed[task.key]
        return ("", "") if cell.task.key in self.finished else (cell.task.stage, "not done")

    def describe_remaining(self, experiment: Experiment) -> str:
        """Describe how many tasks of ``experiment`` are left."""
        unfinished = sum(task.key not in self.finished for task in experiment.tasks())
        return f"{unfinished} tasks left" if unfinished else "all are finished"


def load_outcome(experiment: Experiment, out: Path) -> ExperimentOutcome:
    """Load the records of the tasks of ``experiment`` that are finished below ``out``."""
    kept = {task.key: read_finished(task, out) for task in experiment.tasks()}
    return ExperimentOutcome({key: record for key, record in kept.items() if record})


def count_cells(experiment: Experiment, out: Path) -> str:
    """Return the size of an ``experiment`` and its number of tasks left below ``out``, as text."""
    rows, seeds = len(experiment.rows), len(experiment.grid.seeds)
    cells = f"{len(experiment.cells)} cells: {rows} rows, {seeds} seeds"
    return f"{cells}; {load_outcome(experiment, out).describe_remaining(experiment)}"


def run_experiment(
    experiment: Experiment, out: Path, run: RunTask, print_line: PrintLine, commit: str = ""
) -> ExperimentOutcome:
    """Run the unfinished tasks. Several processes that run the same experiment share its cells.

    Args:
        experiment: cells in the order in which they run.
        out: folder of all tasks.
        run: function that runs one task, in this process or in a subprocess.
        print_line: function that prints the progress after each cell.
        commit: code that runs the tasks, for the records, see `describe_code`.

    Raises:
        Exception: error of ``run`` if the disk is full, because all other cells would fail, too.
    """
    outcome = load_outcome(experiment, out)
    every = (*experiment.cells, *experiment.anchors)
    cells = list(enumerate(every, 1))
    cells = [pair for pair in cells if pair[1].task.key not in outcome.finished]
    while cells:
        elsewhere, claims = [], []
        for number, cell in cells:
            if claim := _run_cell(cell, experiment, out, run, commit, outcome):
                elsewhere.append((number, cell))
                claims.append(claim)
                continue
            kind = "anchor" if cell in experiment.anchors else f"seed {cell.seed}"
            name = f"cell {number} of {len(every)}: {cell.row}, {kind}"
            ending = f"{_describe_cell(cell, outcome)}; {outcome.describe_remaining(experiment)}"
            print_line(f"{name}: {ending}")
        if len(elsewhere) == len(cells):
            FileLock.acquire(claims[0]).release()
        cells = elsewhere
    return outcome


def _run_cell(
    cell: GridCell,
    experiment: Experiment,
    out: Path,
    run: RunTask,
    commit: str,
    outcome: ExperimentOutcome,
) -> Path | None:
    """Run the tasks of a cell in order until one fails.

    Return the claim file of a task that another process is running, or None. Errors are recorded
    for this cell.
    """
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
                stage = find_stage(experiment.stages, task.stage, task.settings)
                record = read_finished(task, out) or write_finished(
                    task, out, run(stage, task, out), commit
                )
            except Exception as error:
                if is_disk_full(error):
                    raise
                outcome.failed[task.key] = write_failure(task, out, error)
                return None
            outcome.finished[task.key] = record
    return None


def _describe_cell(cell: GridCell, outcome: ExperimentOutcome) -> str:
    """Describe how a cell ended, and how long it took."""
    stage, error = outcome.find_gap(cell)
    if stage:
        return f"FAILED at {stage}: {error}"
    spent = [outcome.finished[task.key].cost.seconds for task in cell.task.chain()]
    return f"done, {sum(spent):,.0f} s"


def run_timed(
    stage: ExperimentStage, settings: Table, model: str, out: Path, inputs: Mapping[str, str]
) -> Cost:
    """Run a ``stage`` with ``settings``, from ``model``, in the folder ``out``, and time it.

    Raises:
        BenchError: data or code differ from ``inputs``, the hashes at the start of the experiment.
    """
    if changed := find_differing_keys(inputs, stage.hash_inputs(settings)):
        raise BenchError(
            f"changed since the experiment began: {', '.join(changed)}", "type the command again"
        )
    began, used = time.perf_counter(), sum(os.times()[:4])
    cost = stage.run(settings, model, out)
    return msgspec.structs.replace(
        cost, seconds=time.perf_counter() - began, cpu_seconds=sum(os.times()[:4]) - used
    )


def run_task(stage: ExperimentStage, task: CellTask, out: Path) -> Cost:
    """Run ``task`` with its ``stage`` below ``out``, in a new process."""
    start, folder = task.starts_from(out), task.folder(out)
    cost: Cost = run_in_subprocess(run_timed, stage, task.settings, start, folder, task.inputs)
    return cost


PRELOADED = ("torch", "transformers", "bench.evaluation.pipeline")
NO_MEMORY_HINT = (
    "reduce batch_size and raise accumulate by the same factor, set gradient_checkpointing, or "
    "reduce the chunk of the loss: the recipe stays the same"
)


def run_in_subprocess(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a subprocess and return its result.

    Args:
        work: function of a module, with picklable arguments and result.
        arguments: positional arguments of ``work``.

    Raises:
        BenchError: bad input, lack of memory or disk space, or a killed subprocess.
        WorkerError: any other failure.
    """
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with ProcessPoolExecutor(1, context, initializer=_watch_parent) as pool:
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


def _watch_parent() -> None:
    """Start a thread that ends this process together with its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the parent process to end, then end this process and its children immediately."""
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
        kill_children()
        os._exit(1)


def kill_children(pid: int | None = None) -> None:
    """Kill the processes that the process ``pid``, or this one, started, and their children."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            child.kill()
