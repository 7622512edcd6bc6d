"""Files of weights: which a folder has, their headers and tensors, and their parameters.

Tensors are read as data: nothing in a file is executed.
"""

import re
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec

from foundation.errors import BenchError, wrap_errors
from foundation.files import check_not_lfs_pointer, resolve_inside
from foundation.records import Record, read_json

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
COPY_AGAIN = "copy or download the checkpoint again"
COUNTING_VERSION = 1  # increased when the rule changes, so that stored counts are renewed
BUFFER_DTYPES = ("I64", "I32", "BOOL")  # safetensors types of buffers such as positions
DAMAGED = "It is damaged, or holds more than tensors. Nothing in it was executed."
# Weights of a checkpoint outside the encoder: heads of pre-training and decoders.
HEAD_WEIGHTS = re.compile(
    r"(^|\.)(cls|lm_head|classifier|c_head|decoder|mlm|predictions|vocab_\w+|generator_\w+"
    r"|discriminator_\w+)\."
)


class _Shards(msgspec.Struct, frozen=True):
    """Index of weights in several files, with the file of each tensor."""

    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


class Parameters(Record):
    """Numbers of learned parameters: in total, and of the adapter alone, the trained part."""

    total: int
    adapter: int = 0


def find_weights(folder: Path) -> str:
    """Return the name of the weights in ``folder``, safetensors before a restricted pickle."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return name
    needed = "it needs model.safetensors or pytorch_model.bin"
    raise BenchError(f"{folder} has no weights that PyTorch can load", needed)


def weight_files(folder: Path, weights: str) -> list[Path]:
    """Return the complete files in ``folder`` behind ``weights``, a file or an index of shards."""
    files = [folder / weights]
    if weights.endswith(".index.json"):
        shards = read_json(folder / weights, _Shards, COPY_AGAIN).weight_map
        files += [resolve_inside(folder, name) for name in sorted(set(shards.values()))]
    for path in files:
        if not path.is_file():
            raise BenchError(f"{path} is missing", COPY_AGAIN)
        if path.suffix == ".safetensors":
            read_safetensors_header(path)
    return files


def read_safetensors_header(path: Path) -> dict[str, tuple[str, int]]:
    """Read the type, such as ``F32``, and the size of each tensor in a safetensors file.

    The size of the file must match them.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (s.get_dtype(), prod(s.get_shape())) for name, s in slices.items()}
    except SafetensorError as error:
        with path.open("rb") as opened:
            check_not_lfs_pointer(path, opened.read(100))
        raise BenchError(f"{path} is not a complete safetensors file", COPY_AGAIN) from error


def read_tensors(path: Path, names: Collection[str] | None = None) -> dict[str, Any]:
    """Read tensors from safetensors or a pickle, executing nothing.

    ``names`` are the names to read, as far as they exist; None for all.
    """
    import torch
    from safetensors import safe_open

    with wrap_errors(f"{path} cannot be loaded", DAMAGED):
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                wanted = [name for name in sorted(file.keys()) if names is None or name in names]
                return {name: file.get_tensor(name) for name in wanted}
        state = torch.load(path, map_location="cpu", weights_only=True).items()
    tensors = {name: value for name, value in state if isinstance(value, torch.Tensor)}
    return {name: value for name, value in tensors.items() if names is None or name in names}


def count_file_parameters(path: Path) -> int:
    """Count the parameters in ``path``, without heads of pre-training and buffers of positions.

    A tensor of a pickle is counted once if it has several names.
    """
    sizes: dict[Any, int] = {}
    if path.suffix == ".safetensors":
        for name, (dtype, size) in read_safetensors_header(path).items():
            if dtype not in BUFFER_DTYPES and not HEAD_WEIGHTS.search(name):
                sizes[name] = size
    elif path.suffix == ".bin":
        for name, value in read_tensors(path).items():
            if value.is_floating_point() and not HEAD_WEIGHTS.search(name):
                place = value.untyped_storage().data_ptr(), value.storage_offset(), value.shape
                sizes[place] = value.numel()
    return sum(sizes.values())
