"""Finished and failed tasks on disk: what is finished is never done again."""

from datetime import UTC, datetime
from pathlib import Path
from traceback import format_exception

from bench.experiments.grid import Table
from bench.experiments.plan import CellTask
from bench.experiments.stages import Cost
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
    time = datetime.now(UTC).isoformat(timespec="seconds")
    record = Done(
        stage=task.stage,
        key=task.key,
        settings=task.settings,
        cost=cost,
        time=time,
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
