"""``watch`` evaluates the checkpoints of a running training as they are completed."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.cli.commands.common import make_workspace
from bench.cli.options.commands import WatchOptions
from bench.cli.terminal import print_json
from bench.evaluation.judging import common_measure
from bench.monitor.curve import Curve, curve_of
from bench.monitor.following import StopRule, Watcher, follow_training, step_of, training_folder
from bench.outcomes import ExitCode
from foundation.errors import BenchError
from foundation.files import FileLock, read_file, replace_file
from reports.plots import draw_quality, load_library
from reports.training import curve_markdown
from retrievers.models.card import load_card


def watch(options: WatchOptions) -> int:
    """Evaluate checkpoints until stopped, then print the curve.

    Args:
        options: parsed options of the command.
    """
    out = options.out or training_folder(options.folder) / "watch"
    _check_options(options)
    workspace = make_workspace(options.common, options.hardware, options.allow_mismatch)
    opened = [workspace.open(name, options.split) for name in workspace.expand_names(options.on)]
    watcher = Watcher(
        training="_".join(training_folder(options.folder).name.split()) or "training",
        opened=opened,
        weights=workspace.weights(options.on),
        measure=common_measure([each.dataset for each in opened], options.measure),
        results=options.results,
        workspace=workspace,
        work_folder=out / ".work",
        open_model=lambda folder: workspace.load(str(folder), like=options.like),
    )
    load_library()
    with _lock_folder(out):
        follow_training(
            options.folder,
            watcher,
            StopRule(options.every or 60.0, options.once, options.stop_after),
            lambda: _write_curve(curve_of(watcher), out),
        )
        curve = curve_of(watcher)
        _write_curve(curve, out)
    if curve is None and options.once:
        raise _no_checkpoint(options.folder, watcher.left_out)
    if options.common.json:
        print_json({"out": str(out), "curve": curve})
    elif curve is not None:
        print(curve_markdown(curve), end="")
    if watcher.interrupted:
        print(f"the evaluation of {watcher.interrupted} was interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _check_options(options: WatchOptions) -> None:
    """Raise if the folder or the card does not exist, before the first scan."""
    if not options.folder.is_dir():
        raise BenchError(
            f"there is no folder {options.folder}",
            "give the folder that the training writes its checkpoints to (output_dir)",
        )
    if options.like is not None:
        load_card(options.like)


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


def _write_curve(curve: Curve | None, out: Path) -> None:
    """Write the table, picture and data of a curve, unless they are up to date."""
    if curve is None:
        return
    content = msgspec.json.format(msgspec.json.encode(curve), indent=1)
    path = out / "curve.json"
    if path.exists() and read_file(path) == content:
        return
    draw_quality(curve, out / "curve")
    for file, text in ((out / "curve.md", curve_markdown(curve).encode()), (path, content)):
        with replace_file(file) as stream:
            stream.write(text)


def _no_checkpoint(folder: Path, why: Mapping[str, str]) -> BenchError:
    """Return the error for a folder without any checkpoint that could be evaluated."""
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in why.items())
    example = next((path.name for path in folder.glob("*[0-9]") if path.name not in why), "run_500")
    return BenchError(
        f"no checkpoint in {folder} can be evaluated{reasons}",
        "Names of checkpoints end in their step, as checkpoint-500 or epoch_3 do. If the number in "
        f"{example} is a step, rename it checkpoint-{step_of(example)}.",
    )
