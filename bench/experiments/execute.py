"""Work through a plan: finished tasks are skipped, failed ones leave a gap, others go on."""

import errno
import multiprocessing
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from traceback import format_exception
from typing import Any

from bench.experiments.grid import Table
from bench.experiments.plan import CellTask, Cost, ExperimentStage, GridCell, Plan
from foundation.errors import BenchError, first_line, lacks_memory, lacks_room, sendable
from foundation.files import FileLock
from foundation.machine import now
from foundation.records import Record, read_json, write_json

DONE_FILE, FAILED_FILE = "done.json", "failed.json"


class Done(Record, kw_only=True):
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


class Failed(Record, kw_only=True):
    """A task that failed; it is tried again when the command is typed again.

    Attributes:
        error: one line.
        hint: what to change; may be empty.
        trace: for whoever mends it; "" where the input was at fault.
    """

    error: str
    hint: str
    trace: str


def done(task: CellTask, out: Path) -> Done | None:
    """The record of a finished task; None where it is not finished.

    Raises:
        BenchError: the record is damaged.
    """
    path = task.folder(out) / DONE_FILE
    if not path.is_file():
        return None
    return read_json(path, Done, f"delete {path.parent} and type the same command")


def keep_done(task: CellTask, out: Path, cost: Cost, commit: str) -> Done:
    """Write that a task is finished, after all that it wrote."""
    record = Done(
        stage=task.stage,
        key=task.key,
        settings=task.settings,
        cost=cost,
        time=now(),
        commit=commit,
    )
    write_json(task.folder(out) / DONE_FILE, record)
    (task.folder(out) / FAILED_FILE).unlink(missing_ok=True)
    return record


def keep_failed(task: CellTask, out: Path, error: Exception) -> Failed:
    """Write why a task failed."""
    hint = getattr(error, "hint", None)
    line = str(error).strip().partition("\n")[0]
    foreseen = hint is not None or hasattr(error, "trace")
    record = Failed(
        error=line if foreseen else f"{type(error).__name__}: {line}",
        hint=hint or "",
        trace=getattr(error, "trace", "" if foreseen else "".join(format_exception(error))),
    )
    write_json(task.folder(out) / FAILED_FILE, record)
    return record


Run = Callable[[ExperimentStage, CellTask, Path], Cost]
Say = Callable[[str], None]


@dataclass
class Outcome:
    """Tasks by key: what each left."""

    finished: dict[str, Done] = field(default_factory=dict)
    failed: dict[str, Failed] = field(default_factory=dict)

    def gap(self, cell: GridCell) -> tuple[str, str]:
        """Stage that failed and its error; two empty strings where the cell is finished."""
        for task in cell.task.chain():
            if task.key in self.failed:
                return task.stage, self.failed[task.key].error
        return ("", "") if cell.task.key in self.finished else (cell.task.stage, "not done")

    def seconds(self, stages: Sequence[str]) -> float | None:
        """Forecast what tasks of these stages take together; None where one was never timed."""
        spent: defaultdict[str, list[float]] = defaultdict(list)
        for record in self.finished.values():
            spent[record.stage].append(record.cost.seconds)
        if not set(stages) <= set(spent):
            return None
        return sum(median(spent[stage]) for stage in stages)

    def left(self, plan: Plan) -> str:
        """The tasks that are left, and the time that they take, as people read it."""
        stages = [task.stage for task in plan.tasks() if task.key not in self.finished]
        if not stages:
            return "all are finished"
        total = self.seconds(stages)
        if total is None:
            return f"{len(stages)} tasks left"
        return f"{len(stages)} tasks left, about {timedelta(seconds=round(total))}"


def finished(plan: Plan, out: Path) -> Outcome:
    """Records of the tasks that are on disk already."""
    kept = {task.key: done(task, out) for task in plan.tasks()}
    return Outcome({key: record for key, record in kept.items() if record})


def execute(
    plan: Plan,
    stages: Mapping[str, ExperimentStage],
    out: Path,
    run: Run,
    say: Say,
    commit: str = "",
) -> Outcome:
    """Run unfinished tasks. Processes that execute the same plan at the same time share its cells.

    Args:
        run: does one task; in this process or in one apart.
        say: is told of each cell, and how long the rest will take.

    Raises:
        Exception: of `run`, where the disk is full, which no other cell would survive either.
    """
    outcome, total = finished(plan, out), len(plan.cells)
    left = [pair for pair in enumerate(plan.cells, 1) if pair[1].task.key not in outcome.finished]
    while left:
        elsewhere = []
        for number, cell in left:
            todo = [task for task in cell.task.chain() if task.key not in outcome.finished]
            if claimed := _work(todo, stages, out, run, commit, outcome):
                elsewhere.append((number, cell, claimed))
                continue
            _tell(say, f"cell {number} of {total}: {cell.row}, seed {cell.seed}", cell, outcome)
            say(f"  {outcome.left(plan)}")
        if len(elsewhere) == len(left):
            FileLock.wait(_claim(elsewhere[0][2], out)).release()
        left = [(number, cell) for number, cell, _ in elsewhere]
    return outcome


def _claim(task: CellTask, out: Path) -> Path:
    """File that the process locks which works on a task."""
    return task.folder(out).with_suffix(".claim")


def _work(
    tasks: Sequence[CellTask],
    stages: Mapping[str, ExperimentStage],
    out: Path,
    run: Run,
    commit: str,
    outcome: Outcome,
) -> CellTask | None:
    """Run tasks in turn, up to one that fails; return the one that another process works on.

    Whatever goes wrong belongs to its cell, and is kept there.
    """
    for task in tasks:
        if task.key in outcome.failed:
            return None
        task.folder(out).mkdir(parents=True, exist_ok=True)
        claim = FileLock.take(_claim(task, out))
        if claim is None:
            return task
        with claim:
            if record := done(task, out):
                outcome.finished[task.key] = record
                continue
            try:
                cost = run(stages[task.stage], task, out)
            except Exception as error:
                if lacks_room(error):
                    raise
                outcome.failed[task.key] = keep_failed(task, out, error)
                return None
            outcome.finished[task.key] = keep_done(task, out, cost, commit)
    return None


def _tell(say: Say, name: str, cell: GridCell, outcome: Outcome) -> None:
    stage, error = outcome.gap(cell)
    if stage:
        say(f"{name}: FAILED at {stage}: {error}")
        return
    spent = [outcome.finished[task.key].cost.seconds for task in cell.task.chain()]
    say(f"{name}: done, {sum(spent):,.0f} s")


PRELOADED = ("torch", "transformers", "bench.evaluate.pipeline")
NO_MEMORY_HINT = (
    "a smaller batch_size with more accumulate is the same recipe; so are gradient_checkpointing "
    "and a smaller cache_chunk"
)


def isolated(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do a piece of work in a process apart and return what it returns.

    Args:
        work: a function of a module, with picklable arguments and result.

    Raises:
        BenchError: it had bad input, no memory or no room on a disk (see `lacks_room`), or was
            killed.
        WorkerError: it failed in another way.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        succeeded, answer = receiver.recv()
    except EOFError:
        process.join()
        raise _ended(process.exitcode) from None
    finally:
        if process.is_alive():
            process.join(timeout=5)
        if process.is_alive():
            process.terminate()
        process.join()
        receiver.close()
    if not succeeded:
        error, cause = answer
        raise error from cause
    return answer


def _answer(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = (True, work(*arguments))
    except KeyboardInterrupt:
        return
    except Exception as error:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if lacks_room(error) else None
        answer = (False, (_plain(error), full))  # an error that is sent loses its cause
    sender.send(answer)


def _end_with_parent() -> None:
    """End this process, whatever it does, when the one that asked for it is no more."""
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
        os._exit(1)


def _plain(error: Exception) -> Exception:
    """An error that can be sent: no memory as such, others as `sendable`."""
    if lacks_memory(error):
        return BenchError(f"out of memory: {first_line(error)}", NO_MEMORY_HINT)
    return sendable(error)


def _ended(code: int | None) -> BenchError:
    if code == -signal.SIGKILL:
        return BenchError("killed by the system: most likely out of memory", NO_MEMORY_HINT)
    return BenchError(f"its process ended with {code}", "type the same command to try again")
