"""The folder of a training: what is trained in it, who works in it, and what came out.

``training.json`` says what is trained, so that a folder is gone on with by the same training only;
``trained.json`` is written when that is finished, after the model itself, with the hash of its
weights: a finished training whose weights have changed since is refused.

A training goes on from its last whole checkpoint. The last file of a checkpoint is ``complete``:
its manifest, with the size and the hash of every other file. What a kill, a full disk or a failing
one left of a checkpoint does not fit its manifest, or has none, and the one before is taken.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from foundation.errors import BenchError
from foundation.files import (
    FileLock,
    remove_leftovers,
    replace_file,
    reset_permissions,
    sha256_of_file,
)
from foundation.records import Record, convert_table, differing_fields, read_json, write_json
from retrievers.models.card import CARD_FILE
from retrievers.models.checkpoint import read_safetensors_header
from retrievers.models.locate import TRAINING_FILE
from retrievers.training.engine.arguments import (
    CHECKPOINTS,
    first_process_first,
    is_first_process,
    wait_for_file,
)
from retrievers.training.engine.curve import CURVE_FILE

TRAINED_FILE = "trained.json"
SIZE_FILE = "size.json"
LOCK = ".training.lock"
OWN_PREFIX = ".training."  # how files begin that are there before ``training.json`` is
COMPLETE = "complete"
WEIGHTS = "model.safetensors"
WEIGHT_SUFFIXES = (".safetensors", ".bin")
STAGES = (CHECKPOINTS, "rounds", "teacher")  # folders that the finished model does not need
MODEL = "model"  # folder in a checkpoint: the model alone, as it can be evaluated

T = TypeVar("T")
Array = TypeVar("Array", bound=npt.NDArray[Any])

logger = logging.getLogger(__name__)


class FileHash(Record):
    """Content of a file: size in bytes, and sha256 (hex)."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileHash":
        """Return the size and the hash of a file."""
        return cls(path.stat().st_size, sha256_of_file(path))


class FinishedFiles(msgspec.Struct, frozen=True):
    """Weights of a finished training in its record, by path in the folder."""

    files: dict[str, FileHash] = {}


@dataclass(frozen=True)
class RunFolder:
    """A folder and the training that asks for it.

    Attributes:
        path: of the folder, which need not exist.
        training: msgspec Struct with all that decides the result.
    """

    path: Path
    training: msgspec.Struct

    @property
    def has_model(self) -> bool:
        """True if the model is written: its card is the last of its files."""
        return (self.path / CARD_FILE).exists()

    def result(self, kind: type[T]) -> T | None:
        """The record that this training wrote when it was finished.

        None if it is not finished, or if the file is damaged.

        Raises:
            BenchError: the folder holds another training, or something else, or its weights are
                damaged.
        """
        if not self.has_model:
            return None
        self._refuse_other_training()
        try:
            held = read_json(self.path / TRAINED_FILE, dict[str, Any])
            held["folder"] = str(self.path)  # which may have been moved since
            finished: T | None = convert_table(held, kind, self.path / TRAINED_FILE)
            files = convert_table(held, FinishedFiles, self.path / TRAINED_FILE).files
        except BenchError:
            finished, files = None, {}
        self._refuse_damaged(files)
        return finished

    @contextmanager
    def claim(self, device: str) -> Iterator[None]:
        """Have the folder for this training alone; all of its processes share it.

        Raises:
            BenchError: another process works in it, or it holds another training, or something
                else; the folder is as it was then.
        """
        with ExitStack() as held:
            with first_process_first(device):
                if is_first_process():
                    self._refuse_other_training()
                    held.enter_context(lock_folder(self.path))
                    self._refuse_other_training()  # another training may have begun and ended since
                    for folder in (self.path, *filter(Path.is_dir, self.path.iterdir())):
                        remove_leftovers(folder, 0)
                    write_json(self.path / TRAINING_FILE, self.training)
            yield

    def finish(self, result: msgspec.Struct) -> None:
        """Say that the training is finished, once its model is written."""
        if is_first_process():
            shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
            files = {
                path.relative_to(self.path).as_posix(): FileHash.of(path)
                for path in self._weight_files()
            }
            record = msgspec.to_builtins(result) | {"folder": ".", "files": files}
            write_json(self.path / TRAINED_FILE, record)  # last: a kill leaves nothing behind

    def _weight_files(self) -> list[Path]:
        """Files of weights of the finished model."""
        return [
            path
            for path in sorted(self.path.rglob("*"))
            if path.suffix in WEIGHT_SUFFIXES
            and path.relative_to(self.path).parts[0] not in STAGES
            and path.is_file()
        ]

    def _refuse_damaged(self, files: Mapping[str, FileHash]) -> None:
        """Refuse a model whose weights are not as they were written.

        Args:
            files: that were written; none in records of earlier versions.
        """
        problem = find_changed_file(self.path, files)
        for path in self._weight_files():
            if not problem and path.suffix == ".safetensors":
                try:
                    read_safetensors_header(path)
                except BenchError:
                    problem = f"{path.name} is not a complete safetensors file"
        if problem:
            raise BenchError(
                f"{self.path} holds a finished training that was damaged: {problem}",
                "restore the file, or remove the folder to train again",
            )

    def _refuse_other_training(self) -> None:
        """Refuse a folder of something else, or of another training that came to anything."""
        if not self.path.exists():
            return
        entries = {
            path.name for path in self.path.iterdir() if not path.name.startswith(OWN_PREFIX)
        }
        if not (self.path / TRAINING_FILE).exists() and entries:
            raise BenchError(f"{self.path} holds something else", "name another folder")
        # A curve alone is nobody's loss, nor is a checkpoint that is not whole.
        sealed = any((self.path / CHECKPOINTS).glob(f"checkpoint-*/{COMPLETE}"))
        if not sealed and not entries - {TRAINING_FILE, CURVE_FILE, CHECKPOINTS}:
            return
        asked = msgspec.json.decode(msgspec.json.encode(self.training))
        try:
            held = read_json(self.path / TRAINING_FILE, dict[str, Any])
        except BenchError as error:
            raise BenchError(
                f"{error}; it is not known what was trained in {self.path}", "name another folder"
            ) from error
        if different := differing_fields(asked, held):
            raise BenchError(
                f"{self.path} holds another training: it differs in {', '.join(different)}",
                "name another folder, or remove it",
            )


def lock_folder(path: Path) -> FileLock:
    """The right to train into a folder, which ends with the process; the folder is made.

    Raises:
        BenchError: another process has it.
    """
    path.mkdir(parents=True, exist_ok=True)
    lock = FileLock.try_acquire(path / LOCK)
    if lock is None:
        raise BenchError(
            f"another process is training into {path}",
            "wait until it has finished, or name another folder",
        )
    return lock


class CheckpointManifest(Record, kw_only=True):
    """List of a folder's files when it was whole.

    Attributes:
        training: of earlier versions.
        files: by path in the folder.
    """

    training: str = ""
    files: dict[str, FileHash]


def write_manifest(folder: Path) -> None:
    """Write the manifest that says that a folder is whole; checkpoints inside it are left out.

    A file that has not reached the disk when the power fails does not fit the manifest either.
    """
    reset_permissions(folder)
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}
    files = {
        name.as_posix(): FileHash.of(path)
        for name, path in paths.items()
        if path.is_file() and name.parts[0] not in (CHECKPOINTS, COMPLETE)
    }
    write_json(folder / COMPLETE, CheckpointManifest(files=files))


def find_damage(folder: Path) -> str:
    """Damage to a folder that was sealed, in words; "" if it is whole."""
    try:
        manifest = read_json(folder / COMPLETE, CheckpointManifest)
    except BenchError:
        return f"{COMPLETE} cannot be read"
    return find_changed_file(folder, manifest.files)


def find_changed_file(folder: Path, files: Mapping[str, FileHash]) -> str:
    """Return what happened to the first file that is not as it was written; "" if all are."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected.size or FileHash.of(path) != expected:
            return f"{name} is not as it was written"
    return ""


def last_complete_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint of a training; what came after it is removed.

    Damaged checkpoints are named; those that a kill left unfinished are not.

    Args:
        folder: of the checkpoints.
    """
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True):
        sealed = (checkpoint / COMPLETE).exists()
        problem = find_damage(checkpoint) if sealed else "it is unfinished"
        if not problem:
            return checkpoint
        if is_first_process():
            if sealed:
                logger.warning("%s is damaged and is not used: %s", checkpoint, problem)
            shutil.rmtree(checkpoint)
    return None


def checkpoint_step(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was written; 0 for none."""
    number = checkpoint.name.rpartition("-")[2] if checkpoint else ""
    return int(number) if number.isdecimal() else 0


class ModelSize(Record, kw_only=True):
    """Costs of a finished checkpoint or adapter.

    Attributes:
        parameters: of the network, adapters included; tied ones count once.
        trained: of these, those that the optimizer changed.
        saved_bytes: of the files of weights that were written.
    """

    parameters: int
    trained: int
    saved_bytes: int

    @property
    def share(self) -> float:
        """Trained parameters of all, in 0..1."""
        return self.trained / self.parameters


def write_size(network: Any, folder: Path, files: Iterable[Path]) -> None:
    """Count parameters and bytes, and write ``size.json``.

    Args:
        network: as it was trained.
        folder: of the training.
        files: that were written; of these, those of weights count.
    """
    counts = [(weight.numel(), weight.requires_grad) for weight in network.parameters()]
    weights = [path for path in files if path.suffix in WEIGHT_SUFFIXES]
    size = ModelSize(
        parameters=sum(count for count, _ in counts),
        trained=sum(count for count, requires_grad in counts if requires_grad),
        saved_bytes=sum(path.stat().st_size for path in weights),
    )
    write_json(folder / SIZE_FILE, size)


def read_size(folder: Path) -> ModelSize | None:
    """The size that `write_size` wrote; None if it wrote none.

    Raises:
        BenchError: the file is damaged.
    """
    path = folder / SIZE_FILE
    return read_json(path, ModelSize, "remove it") if path.is_file() else None


def load_or_compute(path: Path, compute: Callable[[], Array]) -> Array:
    """The array in a file; the first process computes it if there is none, or a damaged one."""
    if is_first_process():
        try:
            kept: Array = np.load(path, allow_pickle=False)
            return kept
        except FileNotFoundError:
            pass
        except (ValueError, EOFError, BadZipFile) as error:
            logger.warning("%s is damaged, and is computed again: %s", path, error)
        array = compute()
        with replace_file(path) as file:
            np.save(file, array, allow_pickle=False)
        return array
    wait_for_file(path)
    computed: Array = np.load(path, allow_pickle=False)
    return computed
