"""Read the files of a checkpoint: validity and hashes.

Everything is read as data (JSON, sizes, bytes): no model library is imported and nothing is
unpickled. A folder with its own code is refused.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from foundation.errors import BenchError, first_line
from foundation.files import check_not_lfs_pointer, resolve_inside, sha256_of_file
from foundation.records import Record, read_json, read_object
from retrievers.models.read_settings import (
    COPY_AGAIN,
    find_inner_folder,
    position_limit,
    read_config,
)

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
)
TOKENIZER = (
    *VOCABULARIES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
)
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")
LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")
MAX_LAYERS = 1_000  # transformers makes as many as a configuration says before it reads weights
HEADS, HEADS_FILE = "heads", "model.safetensors"  # state for continuing a pre-training
COUNTING_VERSION = 1  # increased when the rule changes, so that stored counts are renewed
BUFFER_DTYPES = ("I64", "I32", "BOOL")  # safetensors types of buffers such as positions
# transformers, tokenizers, torch and safetensors raise nearly anything for a damaged file.
LOAD_ERRORS = (Exception,)
# Weights of a checkpoint outside the encoder: heads of pre-training and decoders.
HEAD_WEIGHTS = re.compile(
    r"(^|\.)(cls|lm_head|classifier|c_head|decoder|mlm|predictions|vocab_\w+|generator_\w+"
    r"|discriminator_\w+)\."
)


class Tensor(NamedTuple):
    """One entry of a safetensors header.

    Attributes:
        dtype: name of the type in safetensors, such as ``F32``.
        shape: sizes of the dimensions.
    """

    dtype: str
    shape: tuple[int, ...]


class _Shards(msgspec.Struct, frozen=True):
    """Index of weights in several files.

    ``weight_map`` is the file of each tensor.
    """

    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Checkpoint:
    """One encoder on disk.

    Attributes:
        root: folder that stage folders are relative to.
        folder: folder of ``config.json``, weights and tokenizer; ``root`` or inside it.
        weights: name of the file of weights, or of its index, in ``folder``.
        config: content of ``config.json``.
        hashes: sha256 (hex) of each file that can change a vector, by path relative to ``root``.
        stamps: size in bytes and time of modification in nanoseconds of these files when hashed.
        position_limit: longest input in tokens; None if the architecture has no limit.
    """

    root: Path
    folder: Path
    weights: str
    config: Mapping[str, Any]
    hashes: Mapping[str, str]
    stamps: Mapping[str, tuple[int, int]]
    position_limit: int | None

    def check_unchanged(self) -> None:
        """Raise if an existing file differs from the one that was hashed.

        Raises:
            BenchError: a file was replaced or modified.
        """
        for name, digest in self.hashes.items():
            path = self.root / name
            if not path.is_file() or _stamp(path) == self.stamps[name]:
                continue
            if sha256_of_file(path) != digest:
                raise BenchError(
                    f"{path} changed while it was used, so vectors would mix two checkpoints",
                    "Run again when nothing writes to it any more, or copy the folder first.",
                )

    @property
    def weights_sha256(self) -> str:
        """Hash (sha256) of the file of weights, or of the index of its shards."""
        return self.hashes[str((self.folder / self.weights).relative_to(self.root))]

    @property
    def revision(self) -> str:
        """Commit of a snapshot in the Hub's cache.

        Empty for other folders.
        """
        return self.root.name if self.root.parent.name == "snapshots" else ""

    @property
    def hidden_width(self) -> int:
        """Width of token vectors, or of a DPR encoder's projection."""
        width = self.config.get("projection_dim") or first_stated(self.config, WIDTHS)
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise BenchError(f"{self.folder / 'config.json'} states no hidden size")
        return width


def read_checkpoint(root: Path, stage_folders: Iterable[str] = ()) -> Checkpoint:
    """Check and hash the files of a checkpoint, without loading it.

    Args:
        root: folder that stage folders are relative to.
        stage_folders: folders of dense and layer-norm stages.

    Raises:
        BenchError: weights, configuration or tokenizer are missing or damaged, or the folder has
            its own code.
    """
    folder = root / find_inner_folder(root)
    if (folder / "adapter_config.json").exists():
        raise BenchError(
            f"{folder} holds an adapter, not a model",
            f"name the model that it was trained on, and add --adapter {folder}",
        )
    config = read_config(folder)
    _refuse_own_code(folder, config)
    layers = first_stated(config, LAYERS)
    if isinstance(layers, int) and layers > MAX_LAYERS:
        raise BenchError(f"{folder / 'config.json'} states {layers:.3g} layers", COPY_AGAIN)
    weights = find_weights(folder)
    files = [folder / "config.json", *weight_files(folder, weights), *_tokenizer_files(folder)]
    for name in stage_folders:
        stage = resolve_inside(root, name)
        files += [stage / "config.json", *weight_files(stage, find_weights(stage))]
    paths = sorted(set(files))
    names = {path.relative_to(root).as_posix(): path for path in paths}
    stamps = {name: _stamp(path) for name, path in names.items()}  # before they are read
    hashes = {name: sha256_of_file(path) for name, path in names.items()}
    return Checkpoint(root, folder, weights, config, hashes, stamps, position_limit(config))


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def find_weights(folder: Path) -> str:
    """Return the name of the weights in ``folder``, safetensors before a restricted pickle.

    Raises:
        BenchError: there are none.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return name
    raise BenchError(
        f"{folder} has no weights that PyTorch can load",
        "it needs model.safetensors or pytorch_model.bin",
    )


def weight_files(folder: Path, weights: str) -> list[Path]:
    """Return the files in ``folder`` behind ``weights``, a file or an index of shards.

    Raises:
        BenchError: a file is missing or truncated.
    """
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


def read_safetensors_header(path: Path) -> dict[str, Tensor]:
    """Read the tensors of the safetensors file ``path`` by name, without their values.

    Raises:
        BenchError: the file is damaged, or shorter or longer than its header states.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Tensor(tensor.get_dtype(), tuple(tensor.get_shape()))
                for name, tensor in tensors.items()
            }
    except SafetensorError as error:
        with path.open("rb") as opened:
            check_not_lfs_pointer(path, opened.read(100))
        raise BenchError(f"{path} is not a complete safetensors file", COPY_AGAIN) from error


def read_tensors(path: Path, names: Collection[str] | None = None) -> dict[str, Any]:
    """Read tensors from safetensors or a pickle, executing nothing.

    Args:
        path: file of tensors.
        names: names to read, as far as they exist; None for all.

    Raises:
        BenchError: the file is damaged or holds more than tensors.
    """
    import torch
    from safetensors import safe_open

    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                wanted = [name for name in sorted(file.keys()) if names is None or name in names]
                return {name: file.get_tensor(name) for name in wanted}
        state = torch.load(path, map_location="cpu", weights_only=True).items()
    except LOAD_ERRORS as error:
        raise loading_error(str(path), error) from error
    tensors = {name: value for name, value in state if isinstance(value, torch.Tensor)}
    return {name: value for name, value in tensors.items() if names is None or name in names}


def loading_error(what: str, error: Exception) -> BenchError:
    """Return the error for ``what``, which could not be read because of ``error``."""
    return BenchError(
        f"{what} cannot be loaded: {first_line(error)}",
        "It is damaged, or holds more than tensors. Nothing in it was executed.",
    )


def count_file_parameters(path: Path) -> int:
    """Count the parameters in ``path``, without heads of pre-training and buffers of positions.

    A safetensors header suffices. A tensor of a pickle is counted once if it has several names.

    Raises:
        BenchError: the file is damaged or holds more than tensors.
    """
    sizes: dict[Any, int] = {}
    if path.suffix == ".safetensors":
        for name, tensor in read_safetensors_header(path).items():
            if tensor.dtype not in BUFFER_DTYPES and not HEAD_WEIGHTS.search(name):
                sizes[name] = prod(tensor.shape)
    elif path.suffix == ".bin":
        for name, value in read_tensors(path).items():
            if value.is_floating_point() and not HEAD_WEIGHTS.search(name):
                place = value.untyped_storage().data_ptr(), value.storage_offset(), value.shape
                sizes[place] = value.numel()
    return sum(sizes.values())


def _tokenizer_files(folder: Path) -> list[Path]:
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise BenchError(
            f"{folder} has no tokenizer",
            "Save it next to the weights: AutoTokenizer.from_pretrained(BASE).save_pretrained(...)",
        )
    return [folder / name for name in TOKENIZER if (folder / name).is_file()]


def _refuse_own_code(folder: Path, config: Mapping[str, Any]) -> None:
    settings = folder / "tokenizer_config.json"
    tokenizer = read_object(settings, COPY_AGAIN) if settings.exists() else {}
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        if content.get("auto_map"):
            raise BenchError(
                f"{folder / name} asks to run code of its own (auto_map)",
                "Code in a checkpoint is never run. Write an encoder class, and a card with "
                'encoder = "package.module:Class".',
            )


def first_stated(config: Mapping[str, Any], names: Iterable[str]) -> object:
    """Return the value of the first of ``names`` that ``config`` has.

    None if it has none.
    """
    return next((config[name] for name in names if name in config), None)


class Parameters(Record):
    """Numbers of learned parameters.

    Attributes:
        total: both encoders of an untied model, stages, and the adapter.
        adapter: the adapter alone, which is the trained part; 0 without one.
    """

    total: int
    adapter: int = 0
