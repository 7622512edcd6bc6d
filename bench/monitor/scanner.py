"""Scanner that tells complete checkpoints of a running training from those still being written.

By content: whole weights, a configuration and a tokenizer; the state of the Hugging Face Trainer,
which it writes last, where there is a trace of that Trainer; and nothing changed between two looks.
"""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from foundation import records
from foundation.errors import BenchError
from foundation.records import read_object
from retrievers.models.checkpoint import VOCABULARIES, find_weights, read_config, weight_files
from retrievers.models.st_folder import is_st_folder, read_st_folder

STEP = re.compile(r"(?!tmp|\.).*?(\d+)")
STATE = "trainer_state.json"
OF_THE_TRAINER = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
INNER = "checkpoints"  # of a training's folder, where they have one of their own
MODEL = "model"  # of a checkpoint, where its own weights are those of training, heads and all
ZIP = b"PK"  # files of torch.save, whose list of contents comes last; older ones are not told


class _TrainerState(msgspec.Struct):
    """The field that is read of the Trainer's state."""

    global_step: int | None = None


Files = Mapping[str, tuple[int, int]]  # size and time of change in ns, by path


@dataclass(frozen=True)
class FinishedCheckpoint:
    """A complete checkpoint.

    Attributes:
        step: of the training, as the Trainer states it, else the number its name ends in.
        files: as they were; others under the same name are another checkpoint.
    """

    name: str
    step: int
    folder: Path
    files: Files


@dataclass(frozen=True)
class Unfinished:
    """A checkpoint that cannot be evaluated yet, or ever.

    Attributes:
        why: what it lacks.
        broken: whether nobody will complete it: it lacks something though the Trainer's state,
            which comes last, is there, or a later checkpoint is complete.
    """

    name: str
    step: int
    why: str
    broken: bool


@dataclass(frozen=True)
class ScannedFolder:
    """All checkpoints in a folder at one moment, by step."""

    finished: tuple[FinishedCheckpoint, ...]
    unfinished: tuple[Unfinished, ...]


@dataclass
class CheckpointScanner:
    """Scanner of a folder of checkpoints: only a second look sees what is still changing."""

    folder: Path
    _before: dict[str, Files] = field(default_factory=dict)

    def look(self) -> ScannedFolder:
        """Complete is what lacks nothing and did not change since the last look."""
        folders = _checkpoints(self.folder)
        files = {name: listing for name, path in folders.items() if (listing := _files(path))}
        by_trainer = any(STATE in inside for inside in files.values())
        finished, unfinished = [], []
        for name, listing in files.items():
            folder, step = folders[name], _step(folders[name])
            if listing != self._before.get(name):
                unfinished.append(Unfinished(name, step, "it is being written", broken=False))
            elif why := missing_parts(folder, listing, by_trainer):
                unfinished.append(Unfinished(name, step, why, broken=STATE in listing))
            else:
                finished.append(FinishedCheckpoint(name, step, folder, listing))
        self._before = files
        return _by_step(finished, unfinished)


def _by_step(finished: list[FinishedCheckpoint], unfinished: list[Unfinished]) -> ScannedFolder:
    latest = max((checkpoint.step for checkpoint in finished), default=-1)
    told = [
        Unfinished(
            checkpoint.name,
            checkpoint.step,
            checkpoint.why,
            checkpoint.broken or checkpoint.step < latest,
        )
        for checkpoint in unfinished
    ]
    return ScannedFolder(
        tuple(sorted(finished, key=lambda checkpoint: (checkpoint.step, checkpoint.name))),
        tuple(sorted(told, key=lambda checkpoint: (checkpoint.step, checkpoint.name))),
    )


def _checkpoints(folder: Path) -> dict[str, Path]:
    """Folders whose name ends in a number, by name; none where a training has removed them."""
    paths = [path for place in (folder, folder / INNER) for path in _inside(place)]
    return {path.name: path for path in paths if STEP.fullmatch(path.name) and path.is_dir()}


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def training_of(folder: Path) -> Path:
    """The folder that a training is known by: where its checkpoints are, or the one above."""
    here = folder.resolve()
    return here.parent if here.name == INNER else here


def model_folder(checkpoint: Path) -> Path:
    """Where the model of a checkpoint is: beside what training goes on with, or the folder."""
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


def _step(folder: Path) -> int:
    try:
        stated = records.read_json(folder / STATE, _TrainerState).global_step
    except BenchError:
        stated = None
    match = STEP.fullmatch(folder.name)
    return int(match[1]) if stated is None and match else stated or 0


def missing_parts(folder: Path, files: Files, by_trainer: bool = False) -> str:
    """The parts that a checkpoint lacks to be complete, as text; "" where it is complete.

    Args:
        files: names of what is in the folder.
        by_trainer: whether the Trainer wrote other checkpoints beside this one.
    """
    if STATE not in files and (by_trainer or any(name in files for name in OF_THE_TRAINER)):
        return f"there is no {STATE}, which the Trainer writes last"
    try:
        if STATE in files:
            read_object(folder / STATE)
        _check_model(model_folder(folder))
    except BenchError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def _check_model(folder: Path) -> None:
    """Raise what is missing or cut off, without reading the weights."""
    inner = folder / read_st_folder(folder).inner if is_st_folder(folder) else folder
    read_config(inner)
    for path in weight_files(inner, find_weights(inner)):
        if path.suffix == ".bin" and not _is_whole_pickle(path):
            raise BenchError(f"{path} is cut off")
    if not any((inner / name).is_file() for name in VOCABULARIES):
        raise BenchError(
            f"{inner} has no tokenizer: give the Trainer one (processing_class=tokenizer)"
        )
    if (inner / "tokenizer.json").is_file():
        read_object(inner / "tokenizer.json")


def _is_whole_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.read(len(ZIP))
    return bool(first) and (first != ZIP or zipfile.is_zipfile(path))
