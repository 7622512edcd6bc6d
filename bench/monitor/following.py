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
STATE = "trainer_state.json"
OF_THE_TRAINER = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
INNER = "checkpoints"  # of a training's folder, where they have one of their own
MODEL = "model"  # of a checkpoint, where its own weights are those of training, heads and all
CHANGING = "it is being written"
SETTLE_S = 2.0  # between two looks at what may be being written

Files = Mapping[str, tuple[int, int]]  # size and time of change in ns, by path


@dataclass(frozen=True)
class SeenCheckpoint:
    """A checkpoint at one look.

    Attributes:
        files: as they were; others under the same name are another checkpoint.
        lacks: what it lacks to be complete; "" if it is complete.
    """

    folder: Path
    files: Files
    lacks: str

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
    _before: dict[str, Files] = field(default_factory=dict)

    def look(self) -> tuple[SeenCheckpoint, ...]:
        """Return all checkpoints by step, with what each lacks."""
        listed = {path: files for path in _checkpoints(self.folder) if (files := _files(path))}
        by_trainer = any(STATE in files for files in listed.values())
        seen = [
            SeenCheckpoint(path, files, self._lacks(path.name, files, by_trainer))
            for path, files in listed.items()
        ]
        self._before = {path.name: files for path, files in listed.items()}
        return tuple(sorted(seen, key=lambda each: (each.step, each.name)))

    def _lacks(self, name: str, files: Files, by_trainer: bool) -> str:
        if files != self._before.get(name):
            return CHANGING
        if STATE not in files and (by_trainer or any(one in files for one in OF_THE_TRAINER)):
            return f"there is no {STATE}, which the Trainer writes last"
        return ""


def _checkpoints(folder: Path) -> list[Path]:
    """Folders whose name ends in a step; none if a training has removed them."""
    paths = [path for place in (folder, folder / INNER) for path in _inside(place)]
    return [path for path in paths if STEP.fullmatch(path.name) and path.is_dir()]


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def training_of(folder: Path) -> Path:
    """Return the folder that a training is known by: that of the checkpoints, or the one above."""
    here = folder.resolve()
    return here.parent if here.name == INNER else here


def model_folder(checkpoint: Path) -> Path:
    """Return the folder of the model: beside what training goes on with, or the checkpoint."""
    inner = checkpoint / MODEL
    return inner if (inner / "config.json").is_file() else checkpoint


def _files(folder: Path) -> Files:
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
    place: Path
    open_model: Callable[[Path], LoadedModel]
    evaluations: dict[str, dict[str, Evaluation]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    interrupted: str = ""
    _done: dict[str, Files] = field(default_factory=dict)

    def is_new(self, checkpoint: SeenCheckpoint) -> bool:
        """Return True for a complete checkpoint until these very files are dealt with."""
        return not checkpoint.lacks and self._done.get(checkpoint.name) != checkpoint.files

    def leave_out(self, checkpoint: SeenCheckpoint, why: str, waiting: bool = False) -> None:
        """Report a checkpoint that is not evaluated, or not yet; once for the same reason."""
        if self.left_out.get(checkpoint.name) != why:
            told = "waits" if waiting else "is left out"
            print(
                f"{'' if waiting else 'warning: '}{checkpoint.name} {told}: {why}", file=sys.stderr
            )
            self.left_out[checkpoint.name] = why

    def evaluate(self, checkpoint: SeenCheckpoint) -> None:
        """Evaluate on every collection; a checkpoint that fails is reported and left out."""
        self._done[checkpoint.name] = checkpoint.files
        self.evaluations.pop(checkpoint.name, None)
        self.interrupted = checkpoint.name
        try:
            self._evaluate(checkpoint.name, model_folder(checkpoint.folder))
            self.left_out.pop(checkpoint.name, None)
        except (BenchError, OSError) as error:
            self.leave_out(checkpoint, str(error))
        self.interrupted = ""

    def _evaluate(self, name: str, folder: Path) -> None:
        loaded = self.open_model(folder).with_name(f"{self.training}/{name}")
        found = {}
        workspace = replace(self.workspace, vectors=str(self.place.resolve() / "vectors"))
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
class Ending:
    """When to look, and when to end.

    Attributes:
        every_s: seconds between looks.
        once: end when what is there is evaluated.
        stop_after_s: end when no checkpoint was completed for so many seconds.
    """

    every_s: float = 60.0
    once: bool = False
    stop_after_s: float | None = None


def follow(folder: Path, watcher: Watcher, ending: Ending, publish: Callable[[], None]) -> None:
    """Look, evaluate what is new, wait; Ctrl-C ends it, see `Watcher.interrupted`.

    Args:
        publish: called after a look that found something new.
    """
    try:
        _follow(CheckpointScanner(folder), watcher, ending, publish)
    except KeyboardInterrupt:
        print("\nended by Ctrl-C; the same command goes on", file=sys.stderr)


def _follow(
    scanner: CheckpointScanner, watcher: Watcher, ending: Ending, publish: Callable[[], None]
) -> None:
    look = scanner.look()
    latest = time.monotonic()
    while True:
        soon = ending.once or any(each.lacks == CHANGING for each in look)
        time.sleep(min(SETTLE_S, ending.every_s) if soon else ending.every_s)
        look = scanner.look()
        new = [checkpoint for checkpoint in look if watcher.is_new(checkpoint)]
        for checkpoint in new:
            watcher.evaluate(checkpoint)
        for checkpoint in look:
            if checkpoint.lacks:
                watcher.leave_out(checkpoint, checkpoint.lacks, waiting=not ending.once)
        if new:
            publish()
            latest = time.monotonic()
        quiet_s = time.monotonic() - latest
        if ending.once or (ending.stop_after_s is not None and quiet_s >= ending.stop_after_s):
            return
