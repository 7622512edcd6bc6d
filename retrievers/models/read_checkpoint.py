"""Read the files of a checkpoint and of an adapter: validity, hashes and sizes.

Everything is read as data: code in a folder is refused, and never run.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from os.path import lexists
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from foundation.errors import BenchError, wrap_errors
from foundation.files import check_not_lfs_pointer, resolve_inside, sha256_of_file
from foundation.records import Record, read_json, read_object
from retrievers.models.card import AdapterIdentity, AdapterKind, CardAdapter
from retrievers.models.positions import check_position_kind, mixable_length, position_limit
from retrievers.models.read_settings import (
    COPY_AGAIN,
    find_inner_folder,
    list_files,
    read_config,
    refuse_own_code,
)
from retrievers.models.read_vectors import vector_files

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
WIDTHS = ("projection_dim", "hidden_size", "d_model", "dim", "n_embd")
HEADS, HEADS_FILE = "heads", "model.safetensors"  # state for continuing a pre-training
COUNTING_VERSION = 1  # increased when the rule changes, so that stored counts are renewed
ATTACH_TO_BASE = "Attach it to the model that it was trained on."
BUFFER_DTYPES = ("I64", "I32", "BOOL")  # safetensors types of buffers such as positions
WAIT_FOR_WRITER = "Run again when nothing writes to it any more, or copy the folder first."
DAMAGED = "It is damaged, or holds more than tensors. Nothing in it was executed."
# Weights of a checkpoint outside the encoder: heads of pre-training and decoders.
HEAD_WEIGHTS = re.compile(
    r"(^|\.)(cls|lm_head|classifier|c_head|decoder|mlm|predictions|vocab_\w+|generator_\w+"
    r"|discriminator_\w+)\."
)

ADAPTER_FOLDER = "adapter"  # inside the folder of a training
ADAPTER_CONFIG = "adapter_config.json"
# Tensors that all layers share; AdapterHub itself does not save them.
SHARED = "shared_parameters.safetensors"
NORMS = "norms.safetensors"  # LayerNorms of the base, as they were trained with the adapter
BASE = "base.json"  # states the weights that an adapter was trained on here
ADAPTER_WEIGHTS: dict[AdapterKind, tuple[str, ...]] = {
    "adapterhub": ("adapter.safetensors", "pytorch_adapter.bin"),
    "peft": ("adapter_model.safetensors", "adapter_model.bin"),
}
ROUTING = "adapter_routing.json"  # several of any library, each in a folder inside, used one by one
ROUTER = "router.safetensors"  # the rule that chooses one for a query


class _Shards(msgspec.Struct, frozen=True):
    """Index of weights in several files, with the file of each tensor."""

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
        """Raise if an existing file differs from the one that was hashed."""
        for name, digest in self.hashes.items():
            path = self.root / name
            if not path.is_file() or _stamp(path) == self.stamps[name]:
                continue
            if sha256_of_file(path) != digest:
                raise BenchError(f"{path} changed while it was used", WAIT_FOR_WRITER)

    @property
    def files(self) -> list[Path]:
        """Files that can change a vector."""
        return [self.root / name for name in self.hashes]

    @property
    def weights_sha256(self) -> str:
        """Hash (sha256) of the file of weights, or of the index of its shards."""
        return self.hashes[str((self.folder / self.weights).relative_to(self.root))]

    @property
    def revision(self) -> str:
        """Commit of a snapshot in the Hub's cache, or empty for other folders."""
        return self.root.name if self.root.parent.name == "snapshots" else ""

    @property
    def mixable_length(self) -> int | None:
        """Longest text in tokens that others may share a batch with; None if all may."""
        return mixable_length(self.config)

    @property
    def hidden_width(self) -> int:
        """Width of token vectors, or of a DPR encoder's projection."""
        width = next(filter(None, map(self.config.get, WIDTHS)), None)
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise BenchError(f"{self.folder / 'config.json'} states no hidden size")
        return width


def is_length_dependent(checkpoint: Checkpoint, max_tokens: int) -> bool:
    """Return whether texts of ``max_tokens`` have rotary frequencies of their own."""
    mixable = checkpoint.mixable_length
    return mixable is not None and max_tokens > mixable


def read_checkpoint(root: Path, stage_folders: Iterable[str] = ()) -> Checkpoint:
    """Check and hash the files of a checkpoint, without loading it.

    ``stage_folders``, relative to ``root``, are those of dense and layer-norm stages.
    """
    folder = root / find_inner_folder(root)
    if (folder / "adapter_config.json").exists():
        problem = f"{folder} holds an adapter, not a model"
        raise BenchError(problem, f"Give its base as the model, and add --adapter {folder}")
    config = read_config(folder)
    check_position_kind(config, folder / "config.json")
    refuse_own_code(folder)
    weights = find_weights(folder)
    files = [folder / "config.json", *weight_files(folder, weights), *_tokenizer_files(folder)]
    for name in stage_folders:
        stage = resolve_inside(root, name)
        files += [stage / "config.json", *weight_files(stage, find_weights(stage))]
    hashes, stamps = _hash_files(root, sorted(set(files)))
    return Checkpoint(root, folder, weights, config, hashes, stamps, position_limit(config))


def read_folder(root: Path) -> Checkpoint:
    """Hash all files in ``root`` that a library may read."""
    files = []
    for path in list_files(root):
        # A hidden folder may be a module's, but git and the Hub's client keep files in these two.
        is_ignored = path.relative_to(root).parts[0] in (".git", ".cache")
        if is_ignored or path.suffix == ".md" or path.name.startswith("."):
            continue
        if path.name == ADAPTER_CONFIG:
            raise BenchError(f"{path} is an adapter", "Save the model with it merged.")
        files.append(path)
    return Checkpoint(root, root, "", {}, *_hash_files(root, files), None)


def read_vector_files(folder: Path) -> Checkpoint:
    """Hash the files of ready vectors in ``folder``, or a single file of them."""
    root = folder if folder.is_dir() else folder.parent
    return Checkpoint(root, root, "", {}, *_hash_files(root, vector_files(folder)), None)


def _hash_files(
    root: Path, files: Iterable[Path]
) -> tuple[dict[str, str], dict[str, tuple[int, int]]]:
    """Return hashes and stamps of ``files`` by path relative to ``root``."""
    names = {path.relative_to(root).as_posix(): path for path in files}
    stamps = {name: _stamp(path) for name, path in names.items()}  # before they are read
    return {name: sha256_of_file(path) for name, path in names.items()}, stamps


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


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


def _tokenizer_files(folder: Path) -> list[Path]:
    if not any((folder / name).is_file() for name in VOCABULARIES):
        how = "AutoTokenizer.from_pretrained(BASE).save_pretrained(...)"
        raise BenchError(f"{folder} has no tokenizer", f"Save it next to the weights: {how}")
    return [folder / name for name in TOKENIZER if (folder / name).is_file()]


class Parameters(Record):
    """Numbers of learned parameters: in total, and of the adapter alone, the trained part."""

    total: int
    adapter: int = 0


class Routing(Record, kw_only=True):
    """Adapters of one base, one of which encodes each query: see `retrievers.adapters.compose`.

    Attributes:
        by: kind of the rule. A ``classifier`` is no longer fitted, but existing ones are linear,
            too.
        adapters: folders inside.
        domains: for each adapter, the collections that it is for.
        otherwise: adapter for collections outside all domains, in files of earlier versions.
    """

    by: Literal["centroid", "classifier"] = "centroid"
    adapters: tuple[str, ...]
    domains: tuple[tuple[str, ...], ...]
    otherwise: str = ""

    def __post_init__(self) -> None:
        if not self.adapters or len(self.adapters) != len(self.domains):
            raise ValueError(f"{len(self.domains)} domains for {len(self.adapters)} adapters")


def adapter_folder(adapter: CardAdapter, base: Path) -> Path:
    """Return the existing folder of ``adapter``, whose path is relative to ``base``."""
    folder = (base / Path(adapter.path).expanduser()).resolve()
    if not folder.is_dir():
        raise BenchError(f"there is no adapter folder {folder}")
    inner = folder / ADAPTER_FOLDER
    if inner.is_dir() and not any((folder / n).exists() for n in (ADAPTER_CONFIG, ROUTING)):
        problem = f"{folder} is a folder of `finetune`, and its adapter is in {inner}"
        raise BenchError(problem, f"Use --adapter {inner}, or {folder} as the model without it.")
    return folder


def adapter_name(folder: Path) -> str:
    """Return the name of the adapter in ``folder``: the folder's, or its training's."""
    path = folder.resolve()
    named = path.parent if path.name == ADAPTER_FOLDER and path.parent.name else path
    return "_".join(named.name.split())


def identify_adapter(
    folder: Path, base: Checkpoint, kind: AdapterKind | Literal["auto"] = "auto"
) -> AdapterIdentity:
    """Return the library of the adapter in ``folder`` and the sha256 of its files, without loading.

    Raise if it belongs to another checkpoint than ``base`` or another library than ``kind``.
    """
    found, files = _find_files(folder, base)
    if kind not in ("auto", found):
        raise BenchError(f"{folder} holds an adapter of {found}, not of {kind}")
    for path in files:
        if not path.is_file():
            raise BenchError(f"{path} is missing: the adapter {folder} is incomplete")
    hashes = {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}
    return AdapterIdentity(found, hashes)


def _find_files(folder: Path, base: Checkpoint) -> tuple[AdapterKind, list[Path]]:
    """Return an adapter's library and all files that determine what it does."""
    _check_trained_on(folder, base)
    if (routing := read_routing(folder)) is not None:
        inner = [resolve_inside(folder, name) for name in routing.adapters]
        if any(read_routing(part) for part in inner):
            raise BenchError(f"an adapter in {folder} is routed itself", "Route its adapters.")
        files = [path for part in inner for path in _find_files(part, base)[1]]
        return "routed", [folder / ROUTING, folder / ROUTER, *files]
    return _find_adapter_files(folder, base)


def _find_adapter_files(folder: Path, base: Checkpoint) -> tuple[AdapterKind, list[Path]]:
    config = read_object(folder / ADAPTER_CONFIG)
    kind: AdapterKind = "peft" if "peft_type" in config else "adapterhub"
    if kind == "adapterhub":
        _check_base(folder, config, base)
    own = next((name for name in ADAPTER_WEIGHTS[kind] if (folder / name).is_file()), None)
    if own is None:
        expected = f"Copy {' or '.join(ADAPTER_WEIGHTS[kind])} into it."
        raise BenchError(f"{folder} has no adapter weights", expected)
    shared = (name for name in (SHARED, NORMS) if lexists(folder / name))
    weights = [folder / name for name in (own, *shared)]
    for path in weights:
        if path.suffix == ".safetensors":
            read_safetensors_header(path)
    return kind, [folder / ADAPTER_CONFIG, *weights]


def check_adapter_unchanged(folder: Path, identity: AdapterIdentity, base: Checkpoint) -> None:
    """Raise if the files of the adapter in ``folder`` differ from the hashes in ``identity``."""
    if identify_adapter(folder, base).files != identity.files:
        raise BenchError(f"the adapter {folder} changed while it was used", WAIT_FOR_WRITER)


def _check_trained_on(folder: Path, base: Checkpoint) -> None:
    """Raise if a ``base.json`` names other weights, whose adapter would fit by its sizes."""
    places = [place / BASE for place in (folder, *folder.parents[:2])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:  # neither in the adapter's folder nor in those that it is a part of
        return
    stated = read_object(path)
    if stated.get("weights_sha256") != base.weights_sha256:
        raise BenchError(
            f"the adapter {folder} is for another base: it was trained on {stated.get('model')}, "
            f"whose weights differ from those in {base.folder}",
            ATTACH_TO_BASE,
        )


def _check_base(folder: Path, config: Mapping[str, Any], base: Checkpoint) -> None:
    """Raise if AdapterHub's configuration states another base, since sizes may still match."""
    base_config = {"model_type": base.config.get("model_type"), "hidden_size": base.hidden_width}
    for key, actual in base_config.items():
        if config.get(key) not in (None, actual):
            raise BenchError(
                f"the adapter {folder} was made for {config.get('model_name')} "
                f"({key} {config[key]}), not for a model with {key} {actual}",
                ATTACH_TO_BASE,
            )


def read_routing(folder: Path) -> Routing | None:
    """Read the routing in ``folder``, or return None if its adapters are not routed."""
    path = folder / ROUTING
    hint = "Adapters of collections: python -m bench run COLLECTION --model BASE --adapter FOLDER."
    return read_json(path, Routing, hint) if path.is_file() else None
