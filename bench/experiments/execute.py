"""Work through a plan: finished tasks are skipped, failed ones leave a gap, others go on."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from traceback import format_exception
from typing import Any

import msgspec

from bench.experiments.experiment import CellTask, Cost, Experiment, ExperimentStage, GridCell
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
from foundation.records import Record, read_json, write_json

DONE_FILE, FAILED_FILE = "done.json", "failed.txt"


class FinishedTask(Record, kw_only=True):
    """A task that is finished.

    Attributes:
        commit: of the code that did it; "" outside a checkout.
    """

    stage: str
    key: str
    settings: Table
    cost: Cost
    time: str
    commit: str


def read_finished(task: CellTask, out: Path) -> FinishedTask | None:
    """The record of a finished task; None if it is not finished.

    Raises:
        BenchError: the record is damaged.
    """
    path = task.folder(out) / DONE_FILE
    if not path.is_file():
        return None
    return read_json(path, FinishedTask, f"delete {path.parent} and type the same command")


def write_finished(task: CellTask, out: Path, cost: Cost, commit: str) -> FinishedTask:
    """Write that a task is finished, after all that it wrote."""
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
    """Write why a task failed, for whoever mends it; return that in a line.

    It is tried again when the command is typed again.
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
class Outcome:
    """Tasks by key: what each left, and why it failed."""

    finished: dict[str, FinishedTask] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def find_gap(self, cell: GridCell) -> tuple[str, str]:
        """Stage that failed and its error; two empty strings where the cell is finished."""
        for task in cell.task.chain():
            if task.key in self.failed:
                return task.stage, self.failed[task.key]
        return ("", "") if cell.task.key in self.finished else (cell.task.stage, "not done")

    def describe_remaining(self, experiment: Experiment) -> str:
        """How many tasks are left."""
        unfinished = sum(task.key not in self.finished for task in experiment.tasks())
        return f"{unfinished} tasks left" if unfinished else "all are finished"


def load_outcome(experiment: Experiment, out: Path) -> Outcome:
    """Records of the tasks that are on disk already."""
    kept = {task.key: read_finished(task, out) for task in experiment.tasks()}
    return Outcome({key: record for key, record in kept.items() if record})


def run_experiment(
    experiment: Experiment,
    out: Path,
    run: RunTask,
    print_line: PrintLine,
    commit: str = "",
) -> Outcome:
    """Run unfinished tasks. Processes that execute the same plan at the same time share its cells.

    Args:
        run: does one task; in this process or in one apart.
        say: is told of each cell.

    Raises:
        Exception: of `run`, where the disk is full, which no other cell would survive either.
    """
    outcome = load_outcome(experiment, out)
    cells = [
        pair for pair in enumerate(experiment.cells, 1) if pair[1].task.key not in outcome.finished
    ]
    while cells:
        elsewhere, claims = [], []
        for number, cell in cells:
            if claim := _run_cell(cell, experiment, out, run, commit, outcome):
                elsewhere.append((number, cell))
                claims.append(claim)
                continue
            name = f"cell {number} of {len(experiment.cells)}: {cell.row}, seed {cell.seed}"
            print_line(
                f"{name}: {_describe_cell(cell, outcome)}; {outcome.describe_remaining(experiment)}"
            )
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
    outcome: Outcome,
) -> Path | None:
    """Run the tasks of a cell in turn, up to one that fails; return the claim of another process.

    Whatever goes wrong belongs to its cell, and is kept there.
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
                record = read_finished(task, out) or write_finished(
                    task, out, run(experiment.stages[task.stage], task, out), commit
                )
            except Exception as error:
                if is_disk_full(error):
                    raise
                outcome.failed[task.key] = write_failure(task, out, error)
                return None
            outcome.finished[task.key] = record
    return None


def _describe_cell(cell: GridCell, outcome: Outcome) -> str:
    stage, error = outcome.find_gap(cell)
    if stage:
        return f"FAILED at {stage}: {error}"
    spent = [outcome.finished[task.key].cost.seconds for task in cell.task.chain()]
    return f"done, {sum(spent):,.0f} s"


def run_timed(stage: ExperimentStage, settings: Table, model: str, out: Path) -> Cost:
    """Do the work of a stage, and say how long it took."""
    began = time.perf_counter()
    cost = stage.run(settings, model, out)
    return msgspec.structs.replace(cost, seconds=time.perf_counter() - began)


PRELOADED = ("torch", "transformers", "bench.evaluate.pipeline")
NO_MEMORY_HINT = (
    "a smaller batch_size with more accumulate is the same recipe; so are gradient_checkpointing "
    "and a smaller cache_chunk"
)


def run_in_subprocess(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do a piece of work in a process apart and return what it returns.

    Args:
        work: a function of a module, with picklable arguments and result.

    Raises:
        BenchError: it had bad input, no memory or no room on a disk, or was killed.
        WorkerError: it failed in another way.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with ProcessPoolExecutor(1, context, initializer=_watch_parent) as pool:
        try:
            return pool.submit(_call_sendable, work, arguments).result()
        except BrokenProcessPool as error:
            killed = "its process was killed by the system: most likely out of memory"
            raise BenchError(killed, NO_MEMORY_HINT) from error
        except (KeyboardInterrupt, SystemExit):
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _call_sendable(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What the work returns; what it raises, so that it can be sent."""
    try:
        return work(*arguments)
    except Exception as error:
        if is_out_of_memory(error):
            raise BenchError(f"out of memory: {first_line(error)}", NO_MEMORY_HINT) from error
        raise as_picklable_error(error) from error


def _watch_parent() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process, whatever it does, when the one that asked for it is no more."""
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
        os._exit(1)
