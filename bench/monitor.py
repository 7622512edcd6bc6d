"""Checkpoints of a running training: evaluation as they are completed, curve, and best one.

A checkpoint is complete when nothing changed between two scans. If its files change later, it is
evaluated again.

The learning curve shows the quality of the checkpoints by step, and the best of them. The best of
many scores is partly chance, and each comparison with it is one of many tests. p is therefore
corrected for all pairs of checkpoints: if no checkpoints differ, at most 5 % of curves lead to any
claim.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from bench.comparing.pairs import ComparedModel, ComparisonSettings, read_all_scores
from bench.comparing.statistics import (
    SAME_MEAN,
    Difference,
    Estimate,
    Resampling,
    ScoreMatrix,
    adjust_p_values,
    mean_with_interval,
    paired_difference,
)
from bench.evaluation.judging import common_measure
from bench.evaluation.pipeline import OpenDataset
from bench.evaluation.result_record import Evaluation
from bench.evaluation.retriever import EvaluationOptions, Retriever
from bench.requests.training import WatchRequest
from bench.result_store.find import find_results
from bench.result_store.result import reuse_or_evaluate
from bench.runner.workspace import Workspace, open_workspace
from foundation.errors import BenchError
from foundation.files import FileLock
from foundation.records import Record
from retrievers.models.card import load_card
from retrievers.models.settings import ModelSettings
from retrievers.training.engine.run_folder import CHECKPOINTS, MODEL, step_of

# checkpoint-500, global_step500, epoch=1-step=500, 500; but not bert-base-v2 or runs-2026.
STEP = re.compile(r"(.*(checkpoint|ckpt|step|epoch|iter|iteration)s?[-_=]?)?\d+", re.IGNORECASE)
TEMPORARY = ("tmp", ".")  # prefixes of folders that a training has not finished
DELETED = "the training deleted it before it was evaluated"
CHANGING = "its files are being written"
SETTLE_SECONDS = 2.0  # between two scans of a folder that may be being written

MEAN = "mean"

FileStates = Mapping[Path, tuple[int, int]]  # size and time of change in ns, by path


class Selection(Record):
    """Best checkpoint, with its comparisons.

    Attributes:
        best: name of the checkpoint.
        candidates: number of checkpoints.
        queries: number of queries of all collections.
        pairs: number of comparisons that p-values are adjusted for.
        rivals: difference of the best checkpoint from each other one, with adjusted p-value.
        splits: splits of the queries. ``test`` means that test data selected the checkpoint.
    """

    best: str
    candidates: int
    queries: int
    pairs: int
    rivals: tuple[Difference, ...]
    splits: tuple[str, ...]

    @property
    def indistinguishable(self) -> tuple[str, ...]:
        """Checkpoints that do not differ significantly from the best one."""
        return tuple(rival.b for rival in self.rivals if not rival.significant)


def select_checkpoint(
    panels: Sequence[ScoreMatrix], weights: Sequence[float], splits: Sequence[str] = ()
) -> Selection:
    """Select the checkpoint with the best mean (the first of equal ones), and compare the others.

    ``panels`` have the same models in the same columns. ``weights`` sum to 1.
    """
    names = list(panels[0].columns)
    means = np.average([panel.scores.mean(axis=0) for panel in panels], axis=0, weights=weights)
    best = names[int(np.flatnonzero(means >= means.max() - SAME_MEAN)[0])]
    pairs = combinations([best, *(name for name in names if name != best)], 2)
    parts = {pair: [panel.minus(*pair) for panel in panels] for pair in pairs}
    tests = adjust_p_values({pair: paired_difference(parts[pair], weights) for pair in parts})
    rivals = tuple(test for test in tests.values() if test.a == best)
    queries, of_splits = sum(len(panel.scores) for panel in panels), tuple(dict.fromkeys(splits))
    return Selection(best, len(names), queries, len(tests), rivals, of_splits)


class CurvePoint(Record):
    """Checkpoint on the curve. ``levels`` are mean scores by collection and in their ``mean``."""

    checkpoint: str
    step: int
    levels: dict[str, Estimate]

    @classmethod
    def make(
        cls, name: str, panels: Sequence[ScoreMatrix], weights: Sequence[float]
    ) -> "CurvePoint":
        """Make the point of the checkpoint ``name`` from its scores on each collection."""
        parts = [panel.minus(name) for panel in panels]
        levels = {part.on: mean_with_interval([part]) for part in parts}
        if len(panels) > 1:
            levels[MEAN] = mean_with_interval(parts, weights)
        return cls(name, step_of(name), levels)


class Curve(Record, kw_only=True):
    """Learning curve of one training.

    Attributes:
        training: name of the folder of checkpoints.
        measure: measure of all scores.
        collections: collections on which every point has a level.
        headline: criterion of selection: ``mean``, or the only collection.
        points: evaluated checkpoints by step.
        selection: best checkpoint; None if there is only one.
        broken: reason why a checkpoint has no point, by name.
        resampling: resampling of queries behind intervals and p-values.
    """

    training: str
    measure: str
    collections: tuple[str, ...]
    headline: str
    points: tuple[CurvePoint, ...]
    selection: Selection | None
    broken: dict[str, str]
    resampling: Resampling


@dataclass(frozen=True)
class Watched:
    """Folder and curve of a watch, and whether Ctrl-C ended it."""

    out: Path
    curve: Curve | None
    interrupted: bool


def watch(
    request: WatchRequest, draw: Callable[[Curve, Path], None] = lambda curve, out: None
) -> Watched:
    """Evaluate checkpoints until stopped.

    ``draw`` is called with the curve and its folder after each evaluation, and at the end.
    """
    if not request.folder.is_dir():
        raise BenchError(
            f"there is no folder {request.folder}",
            "Give the folder that the training writes its checkpoints to (output_dir).",
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
        workspace=replace(workspace, vectors=str(out.resolve() / ".work" / "vectors")),
        like=request.like,
    )

    def show() -> Curve | None:
        if (curve := watcher.curve()) is not None:
            draw(curve, out)
        return curve

    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock.try_acquire(out / ".lock")
    if lock is None:
        raise BenchError(f"another watch is writing to {out}", "Stop it, or choose another --out.")
    with lock:
        interrupted = follow_training(request, watcher, show)
        curve = show()
    if curve is None and request.once:
        reasons = "".join(f"\n  {name}: {why}" for name, why in watcher.left_out.items())
        raise BenchError(
            f"no checkpoint in {request.folder} can be evaluated{reasons}",
            "Names of checkpoints end in their step, as checkpoint-500 or epoch_3 do.",
        )
    return Watched(out, curve, interrupted)


def scan_checkpoints(folder: Path) -> dict[Path, FileStates]:
    """Return the checkpoints in ``folder`` by step, with their files."""
    parents = (folder, folder / CHECKPOINTS)
    listed = [path for parent in parents if parent.is_dir() for path in parent.iterdir()]
    found = sorted(filter(_is_checkpoint, listed), key=lambda path: (step_of(path), path.name))
    return {path: files for path in found if (files := _read_file_states(path))}


def _is_checkpoint(path: Path) -> bool:
    """Return True if the name of a folder ends in a step."""
    name = path.name
    return path.is_dir() and not name.startswith(TEMPORARY) and bool(STEP.fullmatch(name))


def training_folder(folder: Path) -> Path:
    """Return the folder of the training: ``folder``, or its parent if it is ``checkpoints``."""
    here = folder.resolve()
    return here.parent if here.name == CHECKPOINTS else here


def model_folder(checkpoint: Path) -> Path:
    """Return the folder of the model in ``checkpoint``: ``model`` inside it, or itself."""
    inner = checkpoint / MODEL
    return inner if (inner / "config.json").is_file() else checkpoint


def _read_file_states(folder: Path) -> FileStates:
    """Return size and modification time by path, or nothing if the folder was removed."""
    try:
        stats = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    except FileNotFoundError:
        return {}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


@dataclass
class Watcher:
    """Evaluator of checkpoints.

    ``left_out`` has the reason why a checkpoint cannot be evaluated.
    """

    training: str
    opened: Sequence[OpenDataset]
    weights: Mapping[str, float]
    measure: str
    results: Path
    workspace: Workspace
    like: str | None = None
    evaluations: dict[str, dict[str, Evaluation]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def leave_out(self, name: str, why: str) -> None:
        """Report that a checkpoint is not evaluated."""
        print(f"warning: {name} is left out: {why}", file=sys.stderr)
        self.left_out[name] = why

    def evaluate(self, checkpoint: Path) -> None:
        """Evaluate ``checkpoint`` on every collection, or report why it failed."""
        name = checkpoint.name
        self.evaluations.pop(name, None)
        files = _read_file_states(checkpoint)
        try:
            loaded = self.workspace.load(
                str(model_folder(checkpoint)), ModelSettings(like=self.like)
            )
            self.evaluations[name] = self._evaluate_all(name, loaded)
            self.left_out.pop(name, None)
        except (BenchError, OSError) as error:
            was_deleted = not files or not all(path.exists() for path in files)
            self.leave_out(name, DELETED if was_deleted else str(error))

    def _evaluate_all(self, name: str, loaded: Retriever) -> dict[str, Evaluation]:
        loaded, found = loaded.with_name(f"{self.training}/{name}"), {}
        workspace = replace(self.workspace)  # with a store of its own, which keeps no lock
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
        shutil.rmtree(workspace.vectors_dir, ignore_errors=True)
        return found

    def curve(self) -> Curve | None:
        """Return the curve of the checkpoints evaluated so far, or None if there are none."""
        names = sorted(self.evaluations, key=step_of)
        if not names:
            return None
        models = [ComparedModel(name, self.evaluations[name]) for name in names]
        resampling = Resampling()
        choices = ComparisonSettings(self.measure, resampling=resampling)
        panels = [read_all_scores(name, models, choices) for name in self.weights]
        weights = list(self.weights.values())
        splits = [each.dataset.metadata.split for each in self.opened]
        return Curve(
            training=self.training,
            measure=self.measure,
            collections=tuple(self.weights),
            headline=MEAN if len(panels) > 1 else panels[0].collection,
            points=tuple(CurvePoint.make(name, panels, weights) for name in names),
            selection=select_checkpoint(panels, weights, splits) if len(names) > 1 else None,
            broken={name: why for name, why in self.left_out.items() if name not in names},
            resampling=resampling,
        )


def follow_training(request: WatchRequest, watcher: Watcher, publish: Callable[[], object]) -> bool:
    """Evaluate new checkpoints in the folder of a request. Return True if Ctrl-C ended it.

    ``publish`` is called after new evaluations. A checkpoint whose files change is evaluated again.
    """
    handled: dict[Path, FileStates] = {}
    latest = time.monotonic()
    try:
        checkpoints = scan_checkpoints(request.folder)
        changing = list(checkpoints)
        while True:
            soon = request.once or changing
            time.sleep(min(SETTLE_SECONDS, request.every) if soon else request.every)
            before, checkpoints = checkpoints, scan_checkpoints(request.folder)
            changing = [path for path in checkpoints if checkpoints[path] != before.get(path)]
            complete = {path: checkpoints[path] for path in checkpoints if path not in changing}
            new = [path for path in complete if complete[path] != handled.get(path)]
            handled |= complete
            for checkpoint in new:
                watcher.evaluate(checkpoint)
            for checkpoint in changing if request.once else ():
                watcher.leave_out(checkpoint.name, CHANGING)
            if new:
                publish()
                latest = time.monotonic()
            quiet = time.monotonic() - latest
            if request.once or (request.stop_after is not None and quiet >= request.stop_after):
                return False
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; repeat the command to continue", file=sys.stderr)
        return True
