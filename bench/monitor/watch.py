"""Quality of the checkpoints of a running training, evaluated as they are completed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.evaluation.judging import common_measure
from bench.monitor.curve import Curve, curve_of
from bench.monitor.following import StopRule, Watcher, follow_training, step_of, training_folder
from bench.requests.training import WatchRequest
from bench.runner.workspace import open_workspace
from foundation.errors import BenchError
from foundation.files import FileLock
from retrievers.models.card import load_card

Draw = Callable[[Curve, Path], None]


@dataclass(frozen=True)
class Watched:
    """Result of a watch.

    Attributes:
        out: folder of the curve.
        curve: quality by step; None if no checkpoint was evaluated.
        interrupted: name of a checkpoint whose evaluation was interrupted; "" otherwise.
    """

    out: Path
    curve: Curve | None
    interrupted: str = ""


def watch(request: WatchRequest, draw: Draw = lambda curve, out: None) -> Watched:
    """Evaluate checkpoints until stopped.

    Args:
        request: what to watch.
        draw: called with the curve and its folder after each evaluation, and at the end.

    Raises:
        BenchError: wrong input, another process watches this training, or no checkpoint could be
            evaluated with ``once``.
    """
    if not request.folder.is_dir():
        raise BenchError(
            f"there is no folder {request.folder}",
            "give the folder that the training writes its checkpoints to (output_dir)",
        )
    if request.like is not None:
        load_card(request.like)
    out = request.out or training_folder(request.folder) / "watch"
    workspace = open_workspace(request)
    opened = [workspace.open(name, request.split) for name in workspace.expand_names(request.on)]
    watcher = Watcher(
        training="_".join(training_folder(request.folder).name.split()) or "training",
        opened=opened,
        weights=workspace.weights(request.on),
        measure=common_measure([each.dataset for each in opened], request.measure),
        results=request.results,
        workspace=workspace,
        work_folder=out / ".work",
        open_model=lambda folder: workspace.load(str(folder), like=request.like),
    )

    def show() -> None:
        if (curve := curve_of(watcher)) is not None:
            draw(curve, out)

    with _lock_folder(out):
        stop = StopRule(request.every, request.once, request.stop_after)
        follow_training(request.folder, watcher, stop, show)
        show()
    curve = curve_of(watcher)
    if curve is None and request.once:
        raise _no_checkpoint(request.folder, watcher.left_out)
    return Watched(out, curve, watcher.interrupted or "")


def _lock_folder(out: Path) -> FileLock:
    """Lock the folder of a watch.

    Raises:
        BenchError: another process has locked it.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock.try_acquire(out / ".lock")
    if lock is None:
        raise BenchError(f"another watch is writing to {out}", "stop it, or choose another --out")
    return lock


def _no_checkpoint(folder: Path, why: Mapping[str, str]) -> BenchError:
    """Return the error for a folder without any checkpoint that could be evaluated."""
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in why.items())
    example = next((path.name for path in folder.glob("*[0-9]") if path.name not in why), "run_500")
    return BenchError(
        f"no checkpoint in {folder} can be evaluated{reasons}",
        "Names of checkpoints end in their step, as checkpoint-500 or epoch_3 do. If the number in "
        f"{example} is a step, rename it checkpoint-{step_of(example)}.",
    )
