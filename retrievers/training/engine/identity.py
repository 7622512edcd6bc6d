"""Identity of a training: what decides its result, with the content of everything that it reads.

Every kind of training has one `Training`. A folder belongs to one identity: if a file that the
training started from has another content, the same command is a different training.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from retrievers.models.card import Recipe
from retrievers.models.names import TRAINING_FILE
from retrievers.models.resolve import Model

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")
Hashes = Mapping[str, str]


class Training(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity of a training, with the content of what it reads as hashes by name.

    Attributes:
        start: files of the initial weights, heads, tokenizer, adapters and teacher, and the
            fingerprint of a model's recipe.
        data: texts, queries and judgements.
        code: sources of the objective and of the continual learning method.
        kind: kind of the training.
        preset: complete settings as a table.
        trained_on: collections that the finished card names.
        processes: number of processes that share each step.
        steps: optimizer steps of a pre-training.
        texts: number of texts of a pre-training. Each block of a long document counts.
    """

    start: Hashes = {}
    data: Hashes = {}
    code: Mapping[str, Hashes] = {}
    kind: Literal["pretrain", "finetune", "compose"]
    preset: Mapping[str, Any]
    trained_on: tuple[str, ...]
    processes: int = 1
    steps: int = 0
    texts: int = 0


class TrainingRecord(Training, frozen=True, kw_only=True, omit_defaults=True):
    """Content of ``training.json``: an identity, and where and how long it was trained.

    Attributes:
        conditions: program, commit, date, machine, threads and libraries of the last call.
        seconds: wall-clock seconds of the last call, and of the optimizer's steps in earlier calls;
            0 until the training has finished.
        weights: sha256 (hex) of each file of the finished weights, by name.
    """

    conditions: Mapping[str, Any] = {}
    seconds: float = 0.0
    weights: Hashes = {}


def hash_weights(recipe: Recipe) -> dict[str, str]:
    """Return the hashes of the files of weights of a model, or of its adapter, by name."""
    files = recipe.adapter.files if recipe.adapter else recipe.files
    return {name: digest for name, digest in files.items() if name.endswith(WEIGHT_SUFFIXES)}


def find_training(model: Model) -> str:
    """Return the sha256 (hex) of the record of the training that made the weights of ``model``.

    It is "" if there is no record next to the weights, or if it is of other weights.
    """
    if model.document is None:
        return ""
    folder = model.adapter.parent if model.adapter else model.document.root
    path = folder / TRAINING_FILE
    if not path.is_file():
        return ""
    content = path.read_bytes()
    try:
        record = msgspec.json.decode(content, type=TrainingRecord)
    except msgspec.DecodeError:  # of an older version, or of another program
        return ""
    made = record.weights and record.weights == hash_weights(model.recipe)
    return hashlib.sha256(content).hexdigest() if made else ""
