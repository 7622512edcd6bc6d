"""Output folder of a training: the identity of the training, a lock, checkpoints and the model.

``training.json`` identifies the training, so that only the same training continues a folder.
``trained.json`` is written last, after the model, and contains the hashes of the weights. A
finished training whose weights have changed since is refused.

A training resumes from its last complete checkpoint. The last file of a checkpoint is ``complete``:
a manifest with the size and hash of every other file. A checkpoint that a kill or a disk error left
incomplete does not match its manifest or has none, and the previous one is used.

In the finished model, ``config.json``, ``model.safetensors`` and the tokenizer form a plain Hugging
Face checkpoint. ``modules.json`` and the files that it names make it a sentence-transformers
folder. ``card.toml`` states how vectors are made and which collections the model was trained on.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
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
    clean_up,
    replace_entries,
    replace_file,
    reset_permissions,
    sha256_of_file,
)
from foundation.records import Record, convert_table, find_differing_keys, read_json, write_json
from retrievers.models.card import CARD_FILE, Card, write_card
from retrievers.models.loading import silence_transformers
from retrievers.models.read_checkpoint import read_safetensors_header
from retrievers.models.read_settings import LEGACY_POOLING, ST_POOLING
from retrievers.models.resolve import TRAINING_FILE
from retrievers.training.engine.context import (
    CURVE_FILE,
    first_process_first,
    is_first,
    wait_for_file,
)

CHECKPOINTS = "checkpoints"  # folder that a finished training removes
TRAINED_FILE = "trained.json"
SIZE_FILE = "size.json"
LOCK = ".training.lock"
PREFIX = ".training."  # prefix of files that precede ``training.json``
COMPLETE = "complete"
WEIGHTS = "model.safetensors"
WEIGHT_SUFFIXES = (".safetensors", ".bin")
STAGES = (CHECKPOINTS, "rounds", "teacher")  # folders that are not part of the finished model
MODEL = "model"  # folder in a checkpoint with the model in evaluable form

T = TypeVar("T")
Array = TypeVar("Array", bound=npt.NDArray[Any])

logger = logging.getLogger(__name__)


class FileHash(Record):
    """Size in bytes and sha256 (hex) of a file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileHash":
        """Return the size and hash of ``path``."""
        return cls(path.stat().st_size, sha256_of_file(path))


class Manifest(msgspec.Struct, frozen=True):
    """Hashes of the files of a folder, by path relative to it."""

    files: dict[str, FileHash]


@dataclass(frozen=True)
class RunFolder:
    """Output folder, and the record of everything that decides the result of its training."""

    path: Path
    training: msgspec.Struct

    @property
    def has_model(self) -> bool:
        """True if the model has been written. Its card is the last of its files."""
        return (self.path / CARD_FILE).exists()

    def result(self, kind: type[T]) -> T | None:
        """Return the record of type ``kind`` that this training wrote when it finished.

        It is None if the training is unfinished or the record is damaged.

        Raises:
            BenchError: the folder holds a different training or other files, or its weights are
                damaged.
        """
        if not self.has_model:
            return None
        self._refuse_other_training()
        source = self.path / TRAINED_FILE
        finished: T | None = None
        manifest = Manifest({})
        with suppress(BenchError):
            record = read_json(source, dict[str, Any])
            record["folder"] = str(self.path)  # the folder may have been moved
            manifest = convert_table(record, Manifest, source)
            finished = convert_table(record, kind, source)
        problem = find_changed_file(self.path, manifest.files)
        if not problem and finished is None:  # the record may have no hashes
            problem = find_truncated_file(self._weight_files())
        if problem:
            raise BenchError(
                f"the finished training in {self.path} is damaged: {problem}",
                "Restore the file, or remove the folder to train again.",
            )
        return finished

    @contextmanager
    def claim(self, device: str) -> Iterator[None]:
        """Reserve the folder for this training, which all of its processes on ``device`` share."""
        with ExitStack() as locks:
            with first_process_first(device):
                if is_first():
                    self._refuse_other_training()
                    locks.enter_context(lock_folder(self.path))
                    self._refuse_other_training()  # another training may have finished meanwhile
                    for folder in (self.path, *filter(Path.is_dir, self.path.iterdir())):
                        clean_up(folder, 0)
                    write_json(self.path / TRAINING_FILE, self.training)
            yield

    def finish(self, result: msgspec.Struct) -> None:
        """Write ``result`` as the record of the training, whose model was written before."""
        if is_first():
            shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
            files = {
                path.relative_to(self.path).as_posix(): FileHash.of(path)
                for path in self._weight_files()
            }
            record = msgspec.to_builtins(result) | {"folder": ".", "files": files}
            write_json(self.path / TRAINED_FILE, record)  # last, so that it means complete

    def _weight_files(self) -> list[Path]:
        return [
            path
            for path in sorted(self.path.rglob("*"))
            if path.suffix in WEIGHT_SUFFIXES
            and path.relative_to(self.path).parts[0] not in STAGES
            and path.is_file()
        ]

    def _refuse_other_training(self) -> None:
        """Raise if the folder holds other files, or weights of a different training."""
        if not self.path.exists():
            return
        entries = {path.name for path in self.path.iterdir() if not path.name.startswith(PREFIX)}
        if not (self.path / TRAINING_FILE).exists() and entries:
            raise BenchError(f"{self.path} contains other files", "Use another folder.")
        # A loss curve or an incomplete checkpoint alone may be overwritten.
        sealed = any((self.path / CHECKPOINTS).glob(f"checkpoint-*/{COMPLETE}"))
        if not sealed and not entries - {TRAINING_FILE, CURVE_FILE, CHECKPOINTS}:
            return
        stored = read_json(self.path / TRAINING_FILE, dict[str, Any], "Use another folder.")
        training = msgspec.json.decode(msgspec.json.encode(self.training))
        if different := find_differing_keys(training, stored):
            raise BenchError(
                f"{self.path} holds a different training: {', '.join(different)} changed",
                "Use another folder, or remove this one.",
            )


def lock_folder(path: Path) -> FileLock:
    """Lock the folder ``path`` for training until the process ends. Create it if necessary."""
    path.mkdir(parents=True, exist_ok=True)
    lock = FileLock.try_acquire(path / LOCK)
    if lock is None:
        raise BenchError(
            f"another process is training into {path}",
            "Wait until it has finished, or use another folder.",
        )
    return lock


def write_manifest(folder: Path) -> None:
    """Write the manifest that marks ``folder`` as complete, without the checkpoints inside it.

    If a file is lost in a power failure, the folder no longer matches its manifest.
    """
    reset_permissions(folder)
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}
    files = {
        name.as_posix(): FileHash.of(path)
        for name, path in paths.items()
        if path.is_file() and name.parts[0] not in (CHECKPOINTS, COMPLETE)
    }
    write_json(folder / COMPLETE, Manifest(files))


def find_damage(folder: Path) -> str:
    """Describe the damage to ``folder``. Return an empty string if it matches its manifest."""
    try:
        manifest = read_json(folder / COMPLETE, Manifest)
    except BenchError:
        return f"{COMPLETE} cannot be read"
    return find_changed_file(folder, manifest.files)


def find_changed_file(folder: Path, files: Mapping[str, FileHash]) -> str:
    """Describe the first file of ``folder`` that does not match ``files``, or return ""."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected.size or FileHash.of(path) != expected:
            return f"{name} is not as it was written"
    return ""


def find_truncated_file(paths: Iterable[Path]) -> str:
    """Describe the first ``.safetensors`` file of ``paths`` that is incomplete, or return ""."""
    for path in paths:
        if path.suffix == ".safetensors":
            try:
                read_safetensors_header(path)
            except BenchError:
                return f"{path.name} is not a complete safetensors file"
    return ""


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last complete checkpoint in ``folder``, and remove later ones."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=checkpoint_step, reverse=True):
        sealed = (checkpoint / COMPLETE).exists()
        problem = find_damage(checkpoint) if sealed else "it is unfinished"
        if not problem:
            return checkpoint
        if is_first():
            if sealed:
                logger.warning("%s is damaged and will not be used: %s", checkpoint, problem)
            shutil.rmtree(checkpoint)
    return None


def checkpoint_step(checkpoint: Path | None) -> int:
    """Return the step after which ``checkpoint`` was written, 0 for None."""
    number = checkpoint.name.rpartition("-")[2] if checkpoint else ""
    return int(number) if number.isdecimal() else 0


def save_checkpoint(model: Any, tokenizer: Any, out: Path, card: Card) -> None:
    """Write a Hugging Face encoder without heads so that ``run --model OUT`` accepts it.

    The card is written last, so a folder with a card is complete.
    """
    save_files(model, tokenizer, out, card)
    write_card(card, out)


def save_files(model: Any, tokenizer: Any, out: Path, card: Card) -> None:
    """Write all files of a checkpoint except its card, see `save_checkpoint`."""
    with replace_entries(out) as folder:
        with silence_transformers():  # version 5 shows a progress bar for each file
            model.save_pretrained(str(folder), safe_serialization=True)
        tokenizer.save_pretrained(str(folder))
        if not card.stages and card.pooling in ST_POOLING:
            for name, content in _st_settings(card, model.config.hidden_size).items():
                (folder / name).parent.mkdir(exist_ok=True)
                text = json.dumps(content, indent=2) + "\n"
                (folder / name).write_text(text, encoding="utf-8")
            if card.normalize:
                (folder / "2_Normalize").mkdir()


def _st_settings(card: Card, width: int) -> dict[str, Any]:
    """Return the files of a sentence-transformers folder with vectors of ``width`` dimensions."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if card.normalize else [])]
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    modes = {key: mode == ST_POOLING[card.pooling] for key, mode in LEGACY_POOLING.items()}
    return {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": width, **modes},
        "sentence_bert_config.json": {
            "max_seq_length": card.max_tokens,
            "do_lower_case": card.lower_case,
        },
        "config_sentence_transformers.json": {
            "prompts": {"query": card.prompts.query, "document": card.prompts.document},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine" if card.similarity == "cos" else "dot",
        },
    }


class ModelSize(Record, kw_only=True):
    """Size of a trained checkpoint or adapter.

    Attributes:
        parameters: parameters of the network including adapters. Tied parameters count once.
        trained: parameters that the optimizer changed.
        saved_bytes: total size of the weight files.
    """

    parameters: int
    trained: int
    saved_bytes: int

    @property
    def share(self) -> float:
        """Share of trained parameters, between 0 and 1."""
        return self.trained / self.parameters


def write_size(network: Any, folder: Path, files: Iterable[Path]) -> None:
    """Write parameters of ``network`` and bytes of weights in ``files`` to ``size.json``."""
    counts = [(weight.numel(), weight.requires_grad) for weight in network.parameters()]
    weights = [path for path in files if path.suffix in WEIGHT_SUFFIXES]
    size = ModelSize(
        parameters=sum(count for count, _ in counts),
        trained=sum(count for count, requires_grad in counts if requires_grad),
        saved_bytes=sum(path.stat().st_size for path in weights),
    )
    write_json(folder / SIZE_FILE, size)


def read_size(folder: Path) -> ModelSize | None:
    """Return the size that `write_size` wrote to ``folder``, or None if there is none."""
    path = folder / SIZE_FILE
    return read_json(path, ModelSize, "remove it") if path.is_file() else None


def load_array(path: Path, compute: Callable[[], Array]) -> Array:
    """Read an array from the NumPy file ``path``, which the first process computes if necessary."""
    if not is_first():
        wait_for_file(path)
        computed: Array = np.load(path, allow_pickle=False)
        return computed
    try:
        kept: Array = np.load(path, allow_pickle=False)
        return kept
    except FileNotFoundError:
        pass
    except (ValueError, EOFError, BadZipFile) as error:
        logger.warning("%s is damaged and will be computed again: %s", path, error)
    array = compute()
    with replace_file(path) as file:
        np.save(file, array, allow_pickle=False)
    return array
