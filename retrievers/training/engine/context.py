"""Context of a training: output folder, device, progress with its loss curve, and processes.

With several processes, the first one searches and writes, and the others wait for its files, not at
a barrier: barriers time out after minutes, and encoding a corpus can take hours.
"""

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from foundation.errors import BenchError, import_package, wrap_errors
from foundation.files import replace_file
from foundation.records import decode_json

CURVE_FILE = "losses.jsonl"
SAVE_MINUTES = 5  # between checkpoints, unless steps are given
POLL_S = 0.2


def check_packages(*names: str) -> None:
    """Raise before a training starts if one of the packages ``names`` is missing."""
    problem = "training needs a package that cannot be imported"
    for name in names:
        import_package(name, problem, "Run `pip install 'retrieval-bench[train]'`.")


def check_device(name: str) -> None:
    """Raise if the device ``name`` is not the first visible GPU, which trainers use."""
    number = name.partition(":")[2]
    if number and int(number):
        raise BenchError(
            f"training uses the first visible GPU, not {name}",
            f"Set CUDA_VISIBLE_DEVICES={int(number)} and use --device cuda.",
        )


def world_size() -> int:
    """Return the number of processes that ``accelerate launch`` started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Return whether this process searches, writes and prints."""
    return os.environ.get("RANK", "0") == "0"


def wait_for_file(path: Path) -> None:
    """Wait until the first process has written the file ``path``, which appears atomically."""
    while not is_first() and not path.exists():
        time.sleep(POLL_S)


@contextmanager
def first_process_first(device: str) -> Iterator[None]:
    """Let the first process on ``device`` run the block alone, then all others."""
    if world_size() == 1:
        yield
        return
    from accelerate import PartialState

    from retrievers.encoders.device import pick_device

    disconnect_at_exit()
    with PartialState(cpu=pick_device(device).type == "cpu").main_process_first():
        yield


@cache  # register only once
def disconnect_at_exit() -> None:
    """Close the connection between processes before Python exits: Gloo's threads may abort it."""
    from torch import distributed

    def disconnect() -> None:
        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()

    atexit.register(disconnect)


class LossPoint(msgspec.Struct, frozen=True):
    """Point of a loss curve: means over the steps since the previous point.

    Attributes:
        step: last of these steps, from 1.
        losses: ``loss`` and its components, by name.
        lr: learning rate of the last step.
        seconds: duration of these steps.
        tokens: tokens that this process read in these steps, without padding.
    """

    step: int
    losses: dict[str, float]
    lr: float
    seconds: float
    tokens: int


def append_point(path: Path, point: LossPoint) -> None:
    """Append ``point`` to the file ``path``."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(point) + b"\n")


def read_curve(path: Path) -> list[LossPoint]:
    """Read all points of the loss curve ``path``. The incomplete last line of a kill is skipped."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [decode_json(line, LossPoint, path) for line in lines]


def cut_curve(path: Path, step: int) -> None:
    """Remove the points after ``step``, so that a training can resume there."""
    if path.exists():
        kept = [point for point in read_curve(path) if point.step <= step]
        with replace_file(path) as file:
            file.writelines(msgspec.json.encode(point) + b"\n" for point in kept)


def import_tensorboard() -> Any:
    """Import PyTorch's writer of TensorBoard's files, or raise if TensorBoard is not installed."""
    problem = "a log of the losses needs TensorBoard, which cannot be imported"
    hint = "Run `pip install 'retrieval-bench[tensorboard]'`."
    return import_package("torch.utils.tensorboard", problem, hint)


def log_folder(logs: Path, out: Path) -> Path:
    """Return the folder in ``logs`` for the curves of ``out``, which no other training has.

    It is the path of ``out`` from the folder that holds ``logs``, or its whole path if it is
    elsewhere. Raise if TensorBoard is not installed.
    """
    import_tensorboard()
    path, beside = out.resolve(), logs.resolve().parent
    return logs / path.relative_to(beside if path.is_relative_to(beside) else path.anchor)


def log_point(writer: Any, point: LossPoint) -> None:
    """Write ``point`` to TensorBoard's log."""
    values = {**point.losses, "learning_rate": point.lr}
    for name, value in values.items():
        writer.add_scalar(f"train/{name}", value, point.step)
    writer.flush()


@dataclass(frozen=True)
class Progress:
    """Progress of a stage of a training, earlier calls included, with a new loss point."""

    stage: str
    done: int
    total: int
    unit: str = "steps"
    point: LossPoint | None = None


@dataclass(frozen=True)
class TrainingContext:
    """Output folder, device, checkpoint interval and progress callback of a training.

    None of them changes the weights. ``save_every`` is in steps, None for `SAVE_MINUTES`. The first
    process calls ``progress`` after each step and after other work. ``conditions`` returns what the
    record of the training says about program, machine and libraries. ``log`` is the folder of
    TensorBoard's log, None for no log.
    """

    out: Path
    device: str = "auto"
    save_every: int | None = None
    progress: Callable[[Progress], None] | None = None
    conditions: Callable[[], Mapping[str, Any]] = dict
    log: Path | None = None

    def with_folder(self, folder: Path) -> "TrainingContext":
        """Return the context of a part of the training, with its own ``folder`` inside."""
        log = self.log and self.log / folder.resolve().relative_to(self.out.resolve())
        return replace(self, out=folder, log=log)

    def open_log(self) -> Any:
        """Open TensorBoard's log of this part in the first process, or return None for no log.

        It gets the points of the curve so far, which replace those of earlier calls, so that a
        resumed training has each step once.
        """
        if self.log is None or not is_first():
            return None
        with wrap_errors(f"cannot write {self.log}", "Use another --log-dir."):
            writer = import_tensorboard().SummaryWriter(str(self.log), purge_step=0)
        curve = self.out / CURVE_FILE
        for point in read_curve(curve) if curve.exists() else ():
            log_point(writer, point)
        return writer

    def report(self, progress: Progress) -> None:
        """Call the progress callback in the first process."""
        if self.progress is not None and is_first():
            self.progress(progress)
