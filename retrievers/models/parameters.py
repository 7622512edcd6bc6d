"""Number of parameters of a model, from the headers of its files, not from a loaded network.

Counted is what the encoder is made of: a pre-training head is not, nor are buffers of positions. A
pooler is, as wherever the size of a BERT is stated.
"""

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from foundation.records import Record
from retrievers.models.checkpoint import (
    Checkpoint,
    find_weights,
    inside,
    read_safetensors_header,
    weight_files,
)

if TYPE_CHECKING:
    from retrievers.models.model import Model

COUNTING = 1  # raised when the rule changes: counts that are kept are then made again
# What lies in a checkpoint beside the encoder: heads of pre-training and decoders.
HEADS = re.compile(
    r"(^|\.)(cls|lm_head|classifier|c_head|decoder|mlm|predictions|vocab_\w+|generator_\w+"
    r"|discriminator_\w+)\."
)
INDEXES = ("I64", "I32", "BOOL")  # safetensors types of buffers such as positions


class Parameters(Record):
    """Numbers that were learnt.

    Attributes:
        total: of both encoders of an untied model, of stages, and of the adapter.
        adapter: of the adapter, which is all that was trained where there is one; else 0.
    """

    total: int
    adapter: int = 0


def count_parameters(model: "Model") -> Parameters | None:
    """The parameters of a resolved model; None for a third party's class.

    Safetensors headers suffice; a pickle is opened with torch, restricted to tensors.

    Raises:
        BenchError: a file is damaged or holds more than tensors.
    """
    if model.recipe.encoder:
        return None
    towers = [tower for tower in (model.document, model.query) if tower is not None]
    network = sum(_count_tower(tower, model) for tower in towers)
    adapter = _count_adapter(model)
    return Parameters(network + adapter, adapter)


def _count_tower(checkpoint: Checkpoint, model: "Model") -> int:
    """The transformer, and the stages that have folders of their own."""
    folders = [(checkpoint.folder, checkpoint.weights)]
    for stage in model.recipe.stages:
        where, _, name = stage.source.partition(":")
        if where == "folder":
            folder = inside(checkpoint.root, name)
            folders.append((folder, find_weights(folder)))
    files = [path for folder, weights in folders for path in weight_files(folder, weights)]
    return sum(_count_file(path) for path in files if path.suffix != ".json")


def _count_adapter(model: "Model") -> int:
    identity, folder = model.recipe.adapter, model.adapter
    if identity is None or folder is None:
        return 0
    return sum(_count_file(folder / name) for name in identity.files if not name.endswith(".json"))


def _count_file(path: Path) -> int:
    return sum(_safetensors(path) if path.suffix == ".safetensors" else _pickled(path))


def _safetensors(path: Path) -> Iterator[int]:
    for name, tensor in read_safetensors_header(path).items():
        if tensor.dtype not in INDEXES and not HEADS.search(name):
            yield prod(tensor.shape)


def _pickled(path: Path) -> Iterator[int]:
    """Tensors of a pickle; one that has several names counts once."""
    from retrievers.models.loading import load_tensors

    seen = set()
    for name, tensor in load_tensors(path).items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        if tensor.is_floating_point() and place not in seen and not HEADS.search(name):
            seen.add(place)
            yield tensor.numel()
