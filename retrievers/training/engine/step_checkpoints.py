"""Checkpoints from which a training goes on: whole, or known not to be.

The last file of a checkpoint is ``complete``: its manifest, with the size and the hash of every
other file. What a kill, a full disk or a failing one left of a checkpoint does not fit its
manifest, or has none, and the training goes on from the checkpoint before.
"""

import logging
import shutil
from pathlib import Path

from safetensors.torch import load_model
from torch import nn

from foundation.errors import BenchError
from foundation.files import sha256_of_file, share
from foundation.records import Record, read_json, write_json
from retrievers.training.engine.processes import is_first

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"  # folder in that of a training, removed when it is finished
COMPLETE = "complete"
WEIGHTS = "model.safetensors"
MODEL = "model"  # folder in a checkpoint: the model alone, as it can be evaluated


class FileHash(Record):
    """Content of a file: size in bytes, and sha256 (hex)."""

    size: int
    sha256: str


class CheckpointManifest(Record, kw_only=True):
    """List of a folder's files when it was whole.

    Attributes:
        training: sha256 of what is trained; "" where nobody asks.
        files: by path in the folder.
    """

    training: str
    files: dict[str, FileHash]


def seal(folder: Path, training: str = "") -> None:
    """Write the manifest that says that a folder is whole; checkpoints inside it are left out.

    A file that has not reached the disk when the power fails does not fit the manifest either.
    """
    share(folder)
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}
    files = {
        name.as_posix(): FileHash(path.stat().st_size, sha256_of_file(path))
        for name, path in paths.items()
        if path.is_file() and name.parts[0] not in (CHECKPOINTS, COMPLETE)
    }
    write_json(folder / COMPLETE, CheckpointManifest(training=training, files=files))


def damage(folder: Path) -> str:
    """Damage to a folder that was sealed, in words; "" where it is whole."""
    try:
        manifest = _manifest(folder)
    except BenchError:
        return f"{COMPLETE} cannot be read"
    for name, expected in manifest.files.items() if manifest else ():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != expected.size:
            return f"{name} has {size:,} of {expected.size:,} bytes"
        if sha256_of_file(path) != expected.sha256:
            return f"{name} is not as it was written"
    return ""


def last_whole(folder: Path) -> Path | None:
    """The last whole checkpoint of a training; what came after it is removed.

    Damaged checkpoints are named; those that a kill left unfinished are not.

    Args:
        folder: of the checkpoints.
    """
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        sealed = (checkpoint / COMPLETE).exists()
        problem = damage(checkpoint) if sealed else "it is unfinished"
        if not problem:
            return checkpoint
        if is_first():
            if sealed:
                logger.warning("%s is damaged and is not used: %s", checkpoint, problem)
            shutil.rmtree(checkpoint)
    return None


def is_checkpoint_of(folder: Path, training: str) -> bool:
    """True where a checkpoint among those in a folder states that it is of a training."""
    for checkpoint in folder.glob("checkpoint-*"):
        try:
            manifest = _manifest(checkpoint)
        except BenchError:
            continue
        if manifest and manifest.training == training:
            return True
    return False


def step_of(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was written; 0 for none."""
    number = checkpoint.name.rpartition("-")[2] if checkpoint else ""
    return int(number) if number.isdecimal() else 0


def load_weights(module: nn.Module, checkpoint: Path) -> None:
    """Take the weights of a checkpoint; each must be there."""
    load_model(module, str(checkpoint / WEIGHTS))


def _manifest(folder: Path) -> CheckpointManifest | None:
    """None where ``complete`` is empty, as versions without manifests wrote it.

    Raises:
        BenchError: it is missing or damaged.
    """
    path = folder / COMPLETE
    if path.is_file() and not path.stat().st_size:
        return None
    return read_json(path, CheckpointManifest)
