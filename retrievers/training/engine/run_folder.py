"""Output folder of a training: the identity of the training, a lock, checkpoints and the model.

``training.json`` identifies the training, so that only the same training continues a folder, and
states where and how long it was trained.
``trained.json`` is written last, after the model.

A training resumes from its last complete checkpoint. The last file of a checkpoint is ``complete``
with the sizes of all others. A checkpoint that a kill or a full disk left incomplete has none, and
the previous one is used.

In the finished model, ``config.json``, ``model.safetensors`` and the tokenizer form a plain Hugging
Face checkpoint. ``modules.json`` and the files that it names make it a sentence-transformers
folder. ``card.toml`` states how vectors are made and which collections the model was trained on.
"""

import json
import logging
import re
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from foundation.errors import BenchError
from foundation.files import FileLock, clean_up, replace_entries, replace_file, reset_permissions
from foundation.records import convert_table, find_differing_keys, read_json, write_json
from retrievers.models.card import CARD_FILE, Card, write_card
from retrievers.models.names import TRAINING_FILE, resolve_card
from retrievers.models.resolve import resolve_kind
from retrievers.models.st_files import LEGACY_POOLING, ST_POOLING
from retrievers.training.engine.context import (
    CURVE_FILE,
    TrainingContext,
    first_process_first,
    is_first,
    read_curve,
    wait_for_file,
)
from retrievers.training.engine.identity import Training, TrainingRecord, hash_weights

CHECKPOINTS = "checkpoints"  # folder that a finished training removes
TRAINED_FILE = "trained.json"
LOCK = ".training.lock"
PREFIX = ".training."  # prefix of files that precede ``training.json``
COMPLETE = "complete"
WEIGHTS = "model.safetensors"
MODEL = "model"  # folder in a checkpoint with the model in evaluable form
NUMBER = re.compile(r"\d+$")

T = TypeVar("T")
Array = TypeVar("Array", bound=npt.NDArray[Any])

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFolder:
    """Output folder of a context, and the identity of its training."""

    context: TrainingContext
    training: Training

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self.context.out

    @property
    def has_model(self) -> bool:
        """True if the model has been written. Its card is the last of its files."""
        return (self.path / CARD_FILE).exists()

    def train_once(self, kind: type[T], train: Callable[[], T]) -> T:
        """Return the result of this training, which ``train`` makes unless it has finished.

        ``train`` writes the model. Meanwhile the folder is reserved for this training, which all of
        its processes share. A finished training is marked as found.

        Raises:
            BenchError: the folder holds a different training or other files, or is in use.
        """
        if finished := self._find_result(kind):
            return finished
        began = time.monotonic()
        with ExitStack() as locks:
            with first_process_first(self.context.device):
                if is_first():
                    locks.enter_context(lock_folder(self.path))
                    self._refuse_other_training()
                    for folder in (self.path, *filter(Path.is_dir, self.path.iterdir())):
                        clean_up(folder, 0)
                    began -= self._earlier_seconds()
                    self._write_record()
            trained = train()
            if is_first():
                self._finish(trained, began)
        return trained

    def _find_result(self, kind: type[T]) -> T | None:
        """Return the result of this training if it has finished, marked as found, or None."""
        if not self.has_model:
            return None
        self._refuse_other_training()
        source = self.path / TRAINED_FILE
        if not source.is_file():
            return None
        record = read_json(source, dict[str, Any], f"Remove {source}, and type the command again.")
        for curve in self.path.rglob(CURVE_FILE):
            if log := self.context.with_folder(curve.parent).open_log():
                log.close()
        folder = str(self.path)  # it may have been moved
        return convert_table({**record, "folder": folder, "found": True}, kind, source)

    def _finish(self, result: object, began: float) -> None:
        """Write the records of a training that ``began`` then and whose model is written."""
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
        model = resolve_kind(*resolve_card(str(self.path)))
        weights = hash_weights(model.recipe)
        self._write_record(seconds=time.monotonic() - began, weights=weights)
        record = msgspec.to_builtins(result) | {"folder": "."}
        del record["found"]
        write_json(self.path / TRAINED_FILE, record)  # last, so that it means complete

    def _write_record(self, **finished: Any) -> None:
        conditions = self.context.conditions()
        identity = msgspec.structs.asdict(self.training)
        record = TrainingRecord(**identity, conditions=conditions, **finished)
        write_json(self.path / TRAINING_FILE, record)

    def _earlier_seconds(self) -> float:
        """Return the seconds of the optimizer's steps in calls before this one."""
        curves = [read_curve(path) for path in self.path.rglob(CURVE_FILE)]
        return sum(point.seconds for curve in curves for point in curve)

    def _refuse_other_training(self) -> None:
        """Raise if the folder holds other files, or weights of a different training."""
        entries = {path.name for path in self.path.iterdir() if not path.name.startswith(PREFIX)}
        if not (self.path / TRAINING_FILE).exists() and entries:
            raise BenchError(f"{self.path} contains other files", "Use another folder.")
        # A loss curve or an incomplete checkpoint alone may be overwritten.
        sealed = any((self.path / CHECKPOINTS).glob(f"checkpoint-*/{COMPLETE}"))
        if not sealed and not entries - {TRAINING_FILE, CURVE_FILE, CHECKPOINTS}:
            return
        stored = read_json(self.path / TRAINING_FILE, dict[str, Any], "Use another folder.")
        if "kind" not in stored:
            raise BenchError(
                f"{self.path} holds a training of an older version, which did not record the "
                "content of what it started from",
                "Evaluate it as it is, and use another folder for this training.",
            )
        training = msgspec.json.decode(msgspec.json.encode(self.training))
        identity = {name: stored[name] for name in stored if name in Training.__struct_fields__}
        if different := find_differing_keys(training, identity):
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


def seal(folder: Path) -> None:
    """Mark ``folder`` as complete by the sizes of its files, without the checkpoints inside it."""
    reset_permissions(folder)
    names = {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}
    sizes = {
        name.as_posix(): path.stat().st_size
        for name, path in names.items()
        if path.is_file() and name.parts[0] not in (CHECKPOINTS, COMPLETE)
    }
    write_json(folder / COMPLETE, sizes)


def is_complete(folder: Path) -> bool:
    """Return whether ``folder`` was sealed and all of its files have their sizes since."""
    try:
        sizes = read_json(folder / COMPLETE, dict[str, int])
    except BenchError:
        return False
    paths = {folder / name: size for name, size in sizes.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last complete checkpoint in ``folder``, and remove later ones."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        if is_complete(checkpoint):
            return checkpoint
        if is_first():
            if (checkpoint / COMPLETE).exists():
                logger.warning("%s is damaged and will not be used", checkpoint)
            shutil.rmtree(checkpoint)
    return None


def step_of(checkpoint: Path | str | None) -> int:
    """Return the number at the end of the name of a checkpoint, or 0 if there is none."""
    match = NUMBER.search(str(checkpoint or ""))
    return int(match[0]) if match else 0


def save_checkpoint(model: Any, tokenizer: Any, out: Path, card: Card) -> None:
    """Write a Hugging Face encoder without heads so that ``run --model OUT`` accepts it.

    The card is written last, so a folder with a card is complete.
    """
    with replace_entries(out) as folder:
        from retrievers.models.loading import silence_transformers  # late: it imports torch

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
    write_card(card, out)


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


def load_array(path: Path, compute: Callable[[], Array]) -> Array:
    """Read an array from the NumPy file ``path``, which the first process computes if necessary."""
    wait_for_file(path)  # in the other processes
    if path.is_file():
        kept: Array = np.load(path, allow_pickle=False)
        return kept
    array = compute()
    with replace_file(path) as file:
        np.save(file, array, allow_pickle=False)
    return array
