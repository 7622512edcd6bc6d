"""Follower of a running training: finds complete checkpoints and evaluates each of them once.

A checkpoint is complete when nothing changed between two looks and, where there is a trace of the
Hugging Face Trainer, its state is there, which it writes last. One that cannot be opened all the
same is left out with the reason, and tried again when its files change.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.evaluate.pipeline import OpenDataset
from bench.evaluate.retrieval import EvaluationOptions, LoadedModel
from bench.results.find import find_results
from bench.results.result import Evaluation
from bench.results.reuse import reuse_or_evaluate
from bench.workspace import Workspace
from foundation.errors import BenchError
from foundation.locations import Location

# checkpoint-500, global_step500, epoch=1-step=500, 500; but not bert-base-v2 or runs-2026.
STEP = re.compile(
    r"(?!tmp|\.)(.*(checkpoint|ckpt|step|epoch|iter|iteration)s?[-_=]?)?(?P<step>\d+)",
    re.IGNORECASE,
)
TRAINER_STATE = "trainer_state.json"
TRAINER_FILES = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
CHECKPOINTS_FOLDER = "checkpoints"  # inside the folder of some trainings
MODEL_FOLDER = "model"  # inside a checkpoint whose own weights include heads for training
CHANGING = "it is being written"
SETTLE_SECONDS = 2.0  # between two scans of a folder that may be being written

FileStates = Mapping[str, tuple[int, int]]  # size and time of change in ns, by path


@dataclass(frozen=True)
class CheckpointState:
    """A checkpoint at one look.

    Attributes:
        files: as they were; others under the same name are another checkpoint.
        lacks: what it lacks to be complete; "" if it is complete.
    """

    folder: Path
    files: FileStates
    missing: str

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def step(self) -> int:
        """The number that its name ends in."""
        return step_of(self.name)


def step_of(name: str) -> int:
    """Return the step in the name of a checkpoint; 0 for a name without one."""
    match = STEP.fullmatch(name)
    return int(match["step"]) if match else 0


@dataclass
class CheckpointScanner:
    """Scanner of a folder of checkpoints: only a second look sees what is still changing."""

    folder: Path
    _previous: dict[str, FileStates] = field(default_factory=dict)

    def scan(self) -> tuple[CheckpointState, ...]:
        """Return all checkpoints by step, with what each lacks."""
        listed = {
            path: files
            for path in _find_checkpoints(self.folder)
            if (files := _read_file_states(path))
        }
        by_trainer = any(TRAINER_STATE in files for files in listed.values())
        seen = [
            CheckpointState(path, files, self._find_missing(path.name, files, by_trainer))
            for path, files in listed.items()
        ]
        self._previous = {path.name: files for path, files in listed.items()}
        return tuple(sorted(seen, key=lambda each: (each.step, each.name)))

    def _find_missing(self, name: str, files: FileStates, by_trainer: bool) -> str:
        if files != self._previous.get(name):
            return CHANGING
        if TRAINER_STATE not in files and (
            by_trainer or any(one in files for one in TRAINER_FILES)
        ):
            return f"there is no {TRAINER_STATE}, which the Trainer writes last"
        return ""


def _find_checkpoints(folder: Path) -> list[Path]:
    """Folders whose name ends in a step; none if a training has removed them."""
    paths = [
        path for parent in (folder, folder / CHECKPOINTS_FOLDER) for path in _list_folder(parent)
    ]
    return [path for path in paths if STEP.fullmatch(path.name) and path.is_dir()]


def _list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def training_folder(folder: Path) -> Path:
    """Return the folder that a training is known by: that of the checkpoints, or the one above."""
    here = folder.resolve()
    return here.parent if here.name == CHECKPOINTS_FOLDER else here


def model_folder(checkpoint: Path) -> Path:
    """Return the folder of the model: beside what training goes on with, or the checkpoint."""
    inner = checkpoint / MODEL_FOLDER
    return inner if (inner / "config.json").is_file() else checkpoint


def _read_file_states(folder: Path) -> FileStates:
    """Empty where the folder is gone or is being removed."""
    try:
        stats = {path: path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    except FileNotFoundError:
        return {}
    return {
        path.relative_to(folder).as_posix(): (stat.st_size, stat.st_mtime_ns)
        for path, stat in stats.items()
    }


@dataclass
class Watcher:
    """Evaluator of checkpoints, each once, and again when its files change.

    Attributes:
        training: goes before the name of a checkpoint in results: ``retromae/checkpoint-500``.
        opened: collections.
        results: where results go, and are looked for.
        workspace: where collections, models and vectors are.
        place: folder of its own for vectors of one checkpoint at a time: those of a long training
            would fill the disk.
        open_model: from the folder of a checkpoint.
        evaluations: on every collection, by name of checkpoint; also of those deleted since.
        left_out: why checkpoints were not evaluated, by name.
        interrupted: checkpoint whose evaluation is going on, or was ended by Ctrl-C; "" for none.
    """

    training: str
    opened: Sequence[OpenDataset]
    options: EvaluationOptions
    results: Location
    workspace: Workspace
    work_folder: Path
    open_model: Callable[[Path], LoadedModel]
    evaluations: dict[str, dict[str, Evaluation]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    interrupted: str = ""
    _handled: dict[str, FileStates] = field(default_factory=dict)

    def is_new(self, checkpoint: CheckpointState) -> bool:
        """Return True for a complete checkpoint until these very files are dealt with."""
        return not checkpoint.missing and self._handled.get(checkpoint.name) != checkpoint.files

    def leave_out(self, checkpoint: CheckpointState, why: str, waiting: bool = False) -> None:
        """Report a checkpoint that is not evaluated, or not yet; once for the same reason."""
        if self.left_out.get(checkpoint.name) != why:
            told = "waits" if waiting else "is left out"
            print(
                f"{'' if waiting else 'warning: '}{checkpoint.name} {told}: {why}", file=sys.stderr
            )
            self.left_out[checkpoint.name] = why

    def evaluate(self, checkpoint: CheckpointState) -> None:
        """Evaluate on every collection; a checkpoint that fails is reported and left out."""
        self._handled[checkpoint.name] = checkpoint.files
        self.evaluations.pop(checkpoint.name, None)
        self.interrupted = checkpoint.name
        try:
            self._evaluate_all(checkpoint.name, model_folder(checkpoint.folder))
            self.left_out.pop(checkpoint.name, None)
        except (BenchError, OSError) as error:
            self.leave_out(checkpoint, str(error))
        self.interrupted = ""

    def _evaluate_all(self, name: str, folder: Path) -> None:
        loaded = self.open_model(folder).with_name(f"{self.training}/{name}")
        found = {}
        workspace = replace(self.workspace, vectors=str(self.work_folder.resolve() / "vectors"))
        known = find_results(self.results, loaded.name)
        for dataset in self.opened:
            job = workspace.prepare(dataset, loaded, self.options, known=known)
            if not job.stored:
                print(f"{name} on {dataset.name}: evaluating", file=sys.stderr)
            stored = reuse_or_evaluate(job, self.results)
            found[dataset.name] = Evaluation(stored.result, stored.scores)  # a ranking is large
            shown = {key: stored.result.measures[key] for key in self.options.measures or ()}
            scores = ", ".join(f"{key} {value:.4f}" for key, value in shown.items())
            print(f"{name} on {dataset.name}: {scores}", file=sys.stderr)
        self.evaluations[name] = found
        shutil.rmtree(workspace.vectors_dir, ignore_errors=True)


@dataclass(frozen=True)
class StopRule:
    """When to look, and when to end.

    Attributes:
        every_s: seconds between looks.
        once: end when what is there is evaluated.
        stop_after_s: end when no checkpoint was completed for so many seconds.
    """

    every_s: float = 60.0
    once: bool = False
    stop_after_s: float | None = None


def follow_training(
    folder: Path, watcher: Watcher, ending: StopRule, publish: Callable[[], None]
) -> None:
    """Look, evaluate what is new, wait; Ctrl-C ends it, see `Watcher.interrupted`.

    Args:
        publish: called after a look that found something new.
    """
    try:
        _follow_scans(CheckpointScanner(folder), watcher, ending, publish)
    except KeyboardInterrupt:
        print("\nended by Ctrl-C; the same command goes on", file=sys.stderr)


def _follow_scans(
    scanner: CheckpointScanner, watcher: Watcher, ending: StopRule, publish: Callable[[], None]
) -> None:
    seen = scanner.scan()
    latest = time.monotonic()
    while True:
        soon = ending.once or any(each.missing == CHANGING for each in seen)
        time.sleep(min(SETTLE_SECONDS, ending.every_s) if soon else ending.every_s)
        seen = scanner.scan()
        new = [checkpoint for checkpoint in seen if watcher.is_new(checkpoint)]
        for checkpoint in new:
            watcher.evaluate(checkpoint)
        for checkpoint in seen:
            if checkpoint.missing:
                watcher.leave_out(checkpoint, checkpoint.missing, waiting=not ending.once)
        if new:
            publish()
            latest = time.monotonic()
        quiet_s = time.monotonic() - latest
        if ending.once or (ending.stop_after_s is not None and quiet_s >= ending.stop_after_s):
            return
