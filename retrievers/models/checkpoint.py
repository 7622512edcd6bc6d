"""The files of a model that determine its vectors: validity, hashes, tensors and parameters.

Everything is read as data: code in a folder is refused, and never run.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from foundation.errors import BenchError, wrap_errors
from foundation.files import check_not_lfs_pointer, resolve_inside
from foundation.records import Record, read_json
from retrievers.models.folder import COPY_AGAIN, HashedFile, ModelFolder
from retrievers.models.positions import check_position_kind, mixable_length, position_limit
from retrievers.models.read_vectors import vector_files

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
COUNTING_VERSION = 1  # increased when the rule changes, so that stored counts are renewed
BUFFER_DTYPES = ("I64", "I32", "BOOL")  # safetensors types of buffers such as positions
DAMAGED = "It is damaged, or holds more than tensors. Nothing in it was executed."
# Weights of a checkpoint outside the encoder: heads of pre-training and decoders.
HEAD_WEIGHTS = re.compile(
    r"(^|\.)(cls|lm_head|classifier|c_head|decoder|mlm|predictions|vocab_\w+|generator_\w+"
    r"|discriminator_\w+)\."
)
VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
)
TOKENIZER = (
    *VOCABULARIES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
)
ADAPTER_CONFIG = "adapter_config.json"
WIDTHS = ("projection_dim", "hidden_size", "d_model", "dim", "n_embd")
HEADS, HEADS_FILE = "heads", "model.safetensors"  # state for continuing a pre-training
WAIT_FOR_WRITER = "Run again when nothing writes to it any more, or copy the folder first."


@dataclass(frozen=True)
class Checkpoint:
    """Files of one encoder on disk.

    Attributes:
        root: folder that stage folders are relative to.
        hashed: each file that can change a vector, by its path relative to ``root``.
        folder: folder of ``config.json``, weights and tokenizer; ``root`` or inside it.
        weights: name of the file of weights, or of its index, in ``folder``; "" if a library or
            another program decides.
        config: content of ``config.json``.
        position_limit: longest input in tokens; None if the architecture has no limit.
    """

    root: Path
    hashed: Mapping[str, HashedFile]
    folder: Path
    weights: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    position_limit: int | None = None

    @classmethod
    def of_network(cls, folder: ModelFolder, stages: Iterable[str] = ()) -> Self:
        """Check and hash the files of a network, without loading it.

        ``stages`` are the folders of dense and layer-norm stages, relative to the root.
        """
        inner = folder.inner
        if (inner / ADAPTER_CONFIG).exists():
            problem = f"{inner} holds an adapter, not a model"
            raise BenchError(problem, f"Give its base as the model, and add --adapter {inner}")
        config = folder.config
        check_position_kind(config, inner / "config.json")
        folder.refuse_own_code()
        weights = find_weights(inner)
        files = [inner / "config.json", *weight_files(inner, weights), *_tokenizer_files(inner)]
        for stage in map(folder.inside, stages):
            files += [stage / "config.json", *weight_files(stage, find_weights(stage))]
        hashed, limit = _hash_files(folder, sorted(set(files))), position_limit(config)
        return cls(folder.root, hashed, inner, weights, config, limit)

    @classmethod
    def of_library(cls, folder: ModelFolder) -> Self:
        """Hash all files in a folder that a library may read."""
        files = []
        for path in folder.list_files():
            # A hidden folder may be a module's, but git and the Hub's client keep files in these.
            is_ignored = path.relative_to(folder.root).parts[0] in (".git", ".cache")
            if is_ignored or path.suffix == ".md" or path.name.startswith("."):
                continue
            if path.name == ADAPTER_CONFIG:
                raise BenchError(f"{path} is an adapter", "Save the model with it merged.")
            files.append(path)
        return cls(folder.root, _hash_files(folder, files), folder.root)

    @classmethod
    def of_vectors(cls, path: Path) -> Self:
        """Hash the files of ready vectors in a folder, or a single file of them."""
        root = path if path.is_dir() else path.parent
        return cls(root, _hash_files(ModelFolder(root), vector_files(path)), root)

    def check_unchanged(self) -> None:
        """Raise if an existing file differs from the one that was hashed."""
        for path, known in zip(self.files, self.hashed.values(), strict=True):
            if path.is_file() and known.is_changed(path):
                raise BenchError(f"{path} changed while it was used", WAIT_FOR_WRITER)

    @property
    def hashes(self) -> dict[str, str]:
        """Hashes (sha256, hex) of the files, by their paths relative to ``root``."""
        return {name: file.sha256 for name, file in self.hashed.items()}

    @property
    def size(self) -> int:
        """Size of the files in bytes."""
        return sum(file.size for file in self.hashed.values())

    @property
    def files(self) -> list[Path]:
        """Files that can change a vector."""
        return [self.root / name for name in self.hashed]

    @property
    def weights_sha256(self) -> str:
        """Hash (sha256) of the file of weights, or of the index of its shards."""
        return self.hashed[str((self.folder / self.weights).relative_to(self.root))].sha256

    @property
    def mixable_length(self) -> int | None:
        """Length in tokens up to which texts may share a batch; None without a limit."""
        return mixable_length(self.config)

    @property
    def hidden_width(self) -> int:
        """Width of token vectors, or of a DPR encoder's projection."""
        width = next(filter(None, map(self.config.get, WIDTHS)), None)
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise BenchError(f"{self.folder / 'config.json'} states no hidden size")
        return width

    def is_length_dependent(self, max_tokens: int) -> bool:
        """Return whether texts of ``max_tokens`` have rotary frequencies of their own."""
        return self.mixable_length is not None and max_tokens > self.mixable_length


def _hash_files(folder: ModelFolder, files: Iterable[Path]) -> dict[str, HashedFile]:
    """Hash ``files`` by their paths relative to the root of ``folder``."""
    return {path.relative_to(folder.root).as_posix(): folder.hash_file(path) for path in files}


def _tokenizer_files(folder: Path) -> list[Path]:
    if not any((folder / name).is_file() for name in VOCABULARIES):
        how = "AutoTokenizer.from_pretrained(BASE).save_pretrained(...)"
        raise BenchError(f"{folder} has no tokenizer", f"Save it next to the weights: {how}")
    return [folder / name for name in TOKENIZER if (folder / name).is_file()]


class _Shards(msgspec.Struct, frozen=True):
    """Index of weights in several files, with the file of each tensor."""

    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


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
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  no mapping
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


class Parameters(Record):
    """Numbers of learned parameters: in total, and of the adapter alone, the trained part."""

    total: int
    adapter: int = 0


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
