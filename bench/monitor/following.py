"""Follower of a running training, which evaluates each complete checkpoint once.

A checkpoint is complete when nothing changed between two scans. If the Hugging Face Trainer wrote
it, its state file must be there, too, which is written last. A checkpoint that cannot be opened is
reported, and tried again when its files change.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.evaluation.collection_search import EvaluationOptions, LoadedModel
from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.result_record import Evaluation
from bench.result_store.find import find_results
from bench.result_store.result import reuse_or_evaluate
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from foundation.locations import Location
from foundation.records import read_object

# checkpoint-500, global_step500, epoch=1-step=500, 500; but not bert-base-v2 or runs-2026.
STEP = re.compile(r"(.*(checkpoint|ckpt|step|epoch|iter|iteration)s?[-_=]?)?\d+", re.IGNORECASE)
NUMBER = re.compile(r"\d+$")
TEMPORARY = ("tmp", ".")  # prefixes of folders that a training has not finished
TRAINER_STATE = "trainer_state.json"
TRAINER_FILES = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
CHECKPOINTS = "checkpoints"  # inside the folder of some trainings
MODEL_FOLDER = "model"  # inside a checkpoint whose own weights include heads for training
CHANGING = "its files are being written"
SETTLE_SECONDS = 2.0  # between two scans of a folder that may be being written

Publish = Callable[[], None]
FileStates = Mapping[str, tuple[int, int]]  # size and time of change in ns, by path


@dataclass(frozen=True)
class CheckpointState:
    """Checkpoint at one scan.

    Attributes:
        folder: folder of the checkpoint.
        files: size and modification time of its files. A change means a new checkpoint.
        missing: reason why it is incomplete; "" if it is complete.
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
        """Number at the end of the name."""
        return step_of(self.name)


def step_of(name: str) -> int:
    """Return the number at the end of ``name``, or 0 if there is none."""
    match = NUMBER.search(name)
    return int(match[0]) if match else 0


@dataclass
class CheckpointScanner:
    """Scanner of a folder of checkpoints. Two scans show which files still change.

    Attributes:
        folder: folder to scan.
    """

    folder: Path
    _previous: dict[str, FileStates] = field(default_factory=dict)

    def scan(self) -> tuple[CheckpointState, ...]:
        """Return the checkpoints by step."""
        parents = (self.folder, self.folder / CHECKPOINTS)
        paths = [path for parent in parents for path in _list_folder(parent)]
        found = [path for path in paths if path.is_dir() and _is_checkpoint(path)]
        listed = {path: files for path in found if (files := _read_file_states(path))}
        by_trainer = any(TRAINER_STATE in files for files in listed.values())
        checkpoints = [
            CheckpointState(path, files, self._find_missing(path.name, files, by_trainer))
            for path, files in listed.items()
        ]
        self._previous = {path.name: files for path, files in listed.items()}
        return tuple(sorted(checkpoints, key=lambda each: (each.step, each.name)))

    def _find_missing(self, name: str, files: FileStates, by_trainer: bool) -> str:
        """Return why a checkpoint is incomplete, or "" if it is complete."""
        if files != self._previous.get(name):
            return CHANGING
        if TRAINER_STATE not in files and (by_trainer or files.keys() & TRAINER_FILES):
            return f"{TRAINER_STATE} is missing, which the Trainer writes last"
        return ""


def _is_checkpoint(folder: Path) -> bool:
    """Return True if the name says that it ends in a step, or the Trainer's state confirms it.

    ``run_1`` and ``run_2`` are two trainings more often than two steps of one.
    """
    if folder.name.startswith(TEMPORARY) or not NUMBER.search(folder.name):
        return False
    if STEP.fullmatch(folder.name):
        return True
    try:
        state = read_object(folder / TRAINER_STATE)
    except BenchError:
        return False
    return state.get("global_step") == step_of(folder.name)


def _list_folder(folder: Path) -> list[Path]:
    """Return the sorted content of a folder, or nothing if it was removed."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def training_folder(folder: Path) -> Path:
    """Return the folder of the training: ``folder``, or its parent if it is ``checkpoints``."""
    here = folder.resolve()
    return here.parent if here.name == CHECKPOINTS else here


def model_folder(checkpoint: Path) -> Path:
    """Return the folder of the model in ``checkpoint``: ``model`` inside it, or itself."""
    inner = checkpoint / MODEL_FOLDER
    return inner if (inner / "config.json").is_file() else checkpoint


def _read_file_states(folder: Path) -> FileStates:
    """Return size and modification time by path, or nothing if the folder was removed."""
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
    """Evaluator of checkpoints: once each, and again if the files change.

    Attributes:
        training: prefix of names in results, as in ``retromae/checkpoint-500``.
        opened: collections to evaluate on.
        weights: weight of each collection in the mean; they sum to 1.
        measure: measure on all collections.
        results: location of stored results, old and new.
        workspace: folders of collections, models and vectors.
        work_folder: folder for the vectors of one checkpoint at a time, since those of a long
            training would fill the disk.
        open_model: function that loads the model in a folder.
        evaluations: evaluations by checkpoint and collection, including deleted checkpoints.
        left_out: reason why a checkpoint was not evaluated, by name.
        waiting: reason why a checkpoint is not evaluated yet, by name.
        interrupted: checkpoint under evaluation when Ctrl-C was pressed; "" if none.
    """

    training: str
    opened: Sequence[OpenDataset]
    weights: Mapping[str, float]
    measure: str
    results: Location
    workspace: Workspace
    work_folder: Path
    open_model: Callable[[Path], LoadedModel]
    evaluations: dict[str, dict[str, Evaluation]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    interrupted: str = ""
    _handled: dict[str, FileStates] = field(default_factory=dict)

    def is_new(self, checkpoint: CheckpointState) -> bool:
        """Return True if ``checkpoint`` is complete and these files were not handled before."""
        return not checkpoint.missing and self._handled.get(checkpoint.name) != checkpoint.files

    def leave_out(self, checkpoint: CheckpointState, why: str, waiting: bool = False) -> None:
        """Report that ``checkpoint`` is not evaluated, once per reason.

        Args:
            checkpoint: the checkpoint.
            why: reason.
            waiting: whether it may still become complete.
        """
        reasons = self.waiting if waiting else self.left_out
        if reasons.get(checkpoint.name) != why:
            start, verb = ("", "waits") if waiting else ("warning: ", "is left out")
            print(f"{start}{checkpoint.name} {verb}: {why}", file=sys.stderr)
            reasons[checkpoint.name] = why

    def evaluate(self, checkpoint: CheckpointState) -> None:
        """Evaluate ``checkpoint`` on every collection, or report why it failed."""
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
        """Evaluate one model on every collection, and remove its vectors."""
        loaded = self.open_model(folder).with_name(f"{self.training}/{name}")
        found = {}
        workspace = replace(self.workspace, vectors=str(self.work_folder.resolve() / "vectors"))
        known = find_results(self.results, loaded.name)
        options = EvaluationOptions(measures=(self.measure,))
        for dataset in self.opened:
            job = workspace.prepare(dataset, loaded, options, known=known)
            if not job.stored:
                print(f"{name} on {dataset.name}: evaluating", file=sys.stderr)
            stored = reuse_or_evaluate(job, self.results)
            found[dataset.name] = Evaluation(stored.record, stored.scores)  # a ranking is large
            score = stored.record.measures[self.measure]
            print(f"{name} on {dataset.name}: {self.measure} {score:.4f}", file=sys.stderr)
        self.evaluations[name] = found
        shutil.rmtree(workspace.vectors_dir, ignore_errors=True)


@dataclass(frozen=True)
class StopRule:
    """Interval between scans, and condition to stop.

    Attributes:
        every_s: seconds between scans.
        once: stop after the present checkpoints.
        stop_after_s: stop if no checkpoint was completed for this many seconds.
    """

    every_s: float = 60.0
    once: bool = False
    stop_after_s: float | None = None


def follow_training(folder: Path, watcher: Watcher, stop: StopRule, publish: Publish) -> None:
    """Scan ``folder`` and evaluate new checkpoints until ``stop`` applies, or until Ctrl-C.

    Args:
        folder: folder of checkpoints.
        watcher: evaluator of checkpoints.
        stop: interval and condition to stop.
        publish: function called after new evaluations.
    """
    try:
        _follow(CheckpointScanner(folder), watcher, stop, publish)
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; repeat the command to continue", file=sys.stderr)


def _follow(scanner: CheckpointScanner, watcher: Watcher, stop: StopRule, publish: Publish) -> None:
    """Scan repeatedly, and evaluate new checkpoints."""
    checkpoints = scanner.scan()
    latest = time.monotonic()
    while True:
        soon = stop.once or any(each.missing == CHANGING for each in checkpoints)
        time.sleep(min(SETTLE_SECONDS, stop.every_s) if soon else stop.every_s)
        checkpoints = scanner.scan()
        new = [checkpoint for checkpoint in checkpoints if watcher.is_new(checkpoint)]
        for checkpoint in new:
            watcher.evaluate(checkpoint)
        for checkpoint in checkpoints:
            if checkpoint.missing:
                watcher.leave_out(checkpoint, checkpoint.missing, waiting=not stop.once)
        if new:
            publish()
            latest = time.monotonic()
        quiet_s = time.monotonic() - latest
        if stop.once or (stop.stop_after_s is not None and quiet_s >= stop.stop_after_s):
            return
