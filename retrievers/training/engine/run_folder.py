"""The folder of a training: what is trained in it, who works in it, and what came out.

``training.json`` says what is trained, so that a folder is gone on with by the same training only;
``trained.json`` is written when that is finished, after the model itself.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from foundation.errors import BenchError
from foundation.files import sweep
from foundation.locks import FileLock
from foundation.records import differing_fields, read_json, write_json
from retrievers.models.lookup import CARD_FILE
from retrievers.training.engine.curve import CURVE_FILE
from retrievers.training.engine.fit import first_process_first
from retrievers.training.engine.processes import is_first
from retrievers.training.engine.step_checkpoints import CHECKPOINTS, COMPLETE, is_checkpoint_of

TRAINING_FILE = "training.json"
TRAINED_FILE = "trained.json"
LOCK = ".training.lock"
OWN = ".training."  # how files begin that are there before ``training.json`` is
EARLIER_UNFINISHED = ".training.json"  # of earlier versions

T = TypeVar("T")


@dataclass(frozen=True)
class RunFolder:
    """A folder and the training that asks for it.

    Attributes:
        path: of the folder, which need not exist.
        training: msgspec Struct with all that decides the result.
    """

    path: Path
    training: msgspec.Struct

    @cached_property
    def identity(self) -> str:
        """sha256 of what is trained, which the checkpoints state."""
        return hashlib.sha256(msgspec.json.encode(self.training)).hexdigest()

    @property
    def has_model(self) -> bool:
        """True where the model is written: its card is the last of its files."""
        return (self.path / CARD_FILE).exists()

    def result(self, kind: type[T]) -> T | None:
        """The record that this training wrote when it was finished.

        None where it is not finished, or where the file is damaged. What a kill in its last moment
        left behind is removed.

        Raises:
            BenchError: the folder holds another training, or something else.
        """
        if not self.has_model:
            return None
        self._refuse_others()
        try:
            finished = read_json(self.path / TRAINED_FILE, kind)
        except BenchError:
            return None
        if is_first() and self._leftovers():
            with suppress(OSError, BenchError), lock_folder(self.path):  # read-only, or in use
                shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
        return finished

    @contextmanager
    def claimed(self, device: str) -> Iterator[None]:
        """Have the folder for this training alone; all of its processes share it.

        Raises:
            BenchError: another process works in it, or it holds another training, or something
                else; the folder is as it was then.
        """
        with first_process_first(device):
            lock = self._claim() if is_first() else None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def finish(self, result: msgspec.Struct) -> None:
        """Say that the training is finished, once its model is written."""
        if is_first():
            write_json(self.path / TRAINED_FILE, result)
            shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)

    def _claim(self) -> FileLock:
        self._refuse_others()
        lock = lock_folder(self.path)
        try:
            self._refuse_others()  # another training may have begun and ended since
            sweep(self.path)
            (self.path / EARLIER_UNFINISHED).unlink(missing_ok=True)
            write_json(self.path / TRAINING_FILE, self.training)
        except BaseException:
            lock.release()
            raise
        return lock

    def _refuse_others(self) -> None:
        """Refuse a folder of something else, or of another training that came to anything."""
        if not self.path.exists():
            return
        entries = {path.name for path in self.path.iterdir() if not path.name.startswith(OWN)}
        if not (self.path / TRAINING_FILE).exists() and entries:
            raise BenchError(f"{self.path} holds something else", "name another folder")
        if not self._came_to_anything(entries - {TRAINING_FILE, CURVE_FILE}):
            return
        asked = msgspec.json.decode(msgspec.json.encode(self.training))
        try:
            held = read_json(self.path / TRAINING_FILE, dict[str, Any])
        except BenchError as error:
            if is_checkpoint_of(self.path / CHECKPOINTS, self.identity):
                return
            raise BenchError(
                f"{error}; it is not known what was trained in {self.path}", "name another folder"
            ) from error
        if different := differing_fields(asked, held):
            raise BenchError(
                f"{self.path} holds another training: it differs in {', '.join(different)}",
                "name another folder, or remove it",
            )

    def _leftovers(self) -> bool:
        return any((self.path / name).exists() for name in (CHECKPOINTS, LOCK))

    def _came_to_anything(self, entries: set[str]) -> bool:
        """True for a model, mined negatives or a checkpoint; a curve alone is nobody's loss."""
        sealed = (self.path / CHECKPOINTS).glob(f"checkpoint-*/{COMPLETE}")
        return bool(entries - {CHECKPOINTS}) or any(sealed)


def lock_folder(path: Path) -> FileLock:
    """The right to train into a folder, which ends with the process; the folder is made.

    Raises:
        BenchError: another process has it.
    """
    path.mkdir(parents=True, exist_ok=True)
    lock = FileLock.take(path / LOCK)
    if lock is None:
        raise BenchError(
            f"another process is training into {path}",
            "wait until it has finished, or name another folder",
        )
    return lock
