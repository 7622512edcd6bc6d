"""The files of a checkpoint: where they are, whether they may be loaded, what their hashes are.

Everything here is read as data (JSON, sizes, bytes): no model library is imported, nothing is
unpickled. A folder that brings its own code is refused.
"""

import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Annotated, Any

import msgspec

from foundation.errors import BenchError, first_line
from foundation.records import decode_json, read_json, read_object

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
# Position 0 of these architectures is pad_token_id + 1, so that many positions cannot be used.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer")
# Attention by relative distance: the length is not bounded by a table of positions.
UNBOUNDED = ("t5", "mt5")
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")
LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")
MAX_LAYERS = 1_000  # transformers makes as many as a configuration says before it reads weights
COPY_AGAIN = "copy or download the checkpoint again"
LONGEST_NAME = 255  # bytes, of a file
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")


class Tensor(msgspec.Struct, frozen=True):
    """One entry of a safetensors header; ``data_offsets`` are bytes after the header."""

    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]


class _Shards(msgspec.Struct, frozen=True):
    """The index of weights in several files; ``weight_map`` is file by tensor."""

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
    """

    root: Path
    folder: Path
    weights: str
    config: Mapping[str, Any]
    hashes: Mapping[str, str]

    @property
    def weights_sha256(self) -> str:
        """sha256 of the file of weights, or of the index of its shards."""
        return self.hashes[str((self.folder / self.weights).relative_to(self.root))]

    @property
    def revision(self) -> str:
        """Commit of a snapshot in the Hub's cache; empty for any other folder."""
        return self.root.name if self.root.parent.name == "snapshots" else ""

    @property
    def hidden_width(self) -> int:
        """Width of the model's token vectors, or of a DPR encoder's projection."""
        width = self.config.get("projection_dim") or first_stated(self.config, WIDTHS)
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise BenchError(f"{self.folder / 'config.json'} states no hidden size")
        return width

    @property
    def position_limit(self) -> int | None:
        """Longest input in tokens; None where the architecture has no limit."""
        return position_limit(self.config)


def open_checkpoint(root: Path, inner: str = "", stage_folders: Iterable[str] = ()) -> Checkpoint:
    """Check the files of a checkpoint and hash them. Loads nothing.

    Raises:
        BenchError: weights, configuration or tokenizer are missing or damaged, or the folder
            brings its own code.
    """
    folder = root / inner
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
        stage = inside(root, name)
        files += [stage / "config.json", *weight_files(stage, find_weights(stage))]
    hashes = {path.relative_to(root).as_posix(): sha256(path) for path in sorted(set(files))}
    return Checkpoint(root, folder, weights, config, hashes)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of a model's ``config.json``.

    Raises:
        BenchError: it is missing, or is not a JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise BenchError(f"{path} is missing", "is this the folder of a model?")
    return read_object(path, COPY_AGAIN)


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Longest input in tokens of a model with this configuration; None where it has no limit."""
    kind, limit = config.get("model_type"), config.get("max_position_embeddings")
    if kind in UNBOUNDED or not isinstance(limit, int):
        return None
    pad = config.get("pad_token_id", 1)
    return limit - (pad if isinstance(pad, int) else 1) - 1 if kind in OFFSET_POSITIONS else limit


def find_weights(folder: Path) -> str:
    """Name of the weights in a folder: safetensors before a restricted pickle."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return name
    others = sorted(path.name for path in folder.glob("*") if path.suffix in {".h5", ".msgpack"})
    unusable = f"; found {', '.join(others)}, which PyTorch cannot load" if others else ""
    raise BenchError(
        f"{folder} has no weights{unusable}", "it needs model.safetensors or pytorch_model.bin"
    )


def weight_files(folder: Path, weights: str) -> list[Path]:
    """The files behind a weights name, shards included, each checked for truncation."""
    files = [folder / weights]
    if weights.endswith(".index.json"):
        shards = read_json(folder / weights, _Shards, COPY_AGAIN).weight_map
        files += [inside(folder, name) for name in sorted(set(shards.values()))]
    for path in files:
        if not path.is_file():
            raise BenchError(f"{path} is missing", COPY_AGAIN)
        if path.suffix == ".safetensors":
            read_safetensors_header(path)
    return files


def read_safetensors_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, without their values.

    Raises:
        BenchError: the file is damaged, or shorter or longer than its header says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        content = file.read(length) if length <= size - 8 else b""
    damaged = f"{path} is not a complete safetensors file"
    try:
        entries = decode_json(content, dict[str, msgspec.Raw], path)
        entries.pop("__metadata__", None)
        header = {name: decode_json(bytes(raw), Tensor, path) for name, raw in entries.items()}
    except BenchError as error:
        raise BenchError(damaged, COPY_AGAIN) from error
    if 8 + length + max((tensor.data_offsets[1] for tensor in header.values()), default=0) != size:
        raise BenchError(damaged, COPY_AGAIN)
    return header


def inside(root: Path, name: str) -> Path:
    """``root / name``, refusing names that lead out of ``root`` or that no file can have."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise BenchError(f"{name!r} leads out of {root}")
    if not _is_file_name(name):
        raise BenchError(f"{name[:80]!r} is no name of a file in {root}")
    return root / name


def _is_file_name(name: str) -> bool:
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return b"\0" not in encoded and max(map(len, encoded.split(b"/"))) <= LONGEST_NAME


def sha256(path: Path) -> str:
    """sha256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locate(checkpoint: str, revision: str, *, base: Path, package: str = "", sha: str = "") -> Path:
    """The folder of a checkpoint: a local folder, an installed package, the Hub's cache, the Hub.

    An installed package is used only when its weights have the stated sha256.

    Raises:
        BenchError: it is nowhere and cannot be fetched.
    """
    local = base / Path(checkpoint).expanduser()
    if local.is_dir():
        return local.resolve()
    packaged = _package_folder(package, sha)
    if packaged is not None:
        return packaged
    if not HUB_ID.fullmatch(checkpoint):
        raise BenchError(f"there is no folder {local}")
    return fetch(checkpoint, revision)


def find_local(checkpoint: str, revision: str, package: str = "") -> Path | None:
    """Folder of a published checkpoint with whole weights on this machine; None without one.

    Looks at names only: an installed package, then the Hub's cache. Nothing is hashed, fetched or
    imported, so that a list of models answers at once.
    """
    folder = _package_folder(package, "") or _cached_snapshot(checkpoint, revision)
    try:
        return folder if folder and weight_files(folder, find_weights(folder)) else None
    except (BenchError, OSError):
        return None


def _cached_snapshot(repository: str, revision: str) -> Path | None:
    """Folder of a repository in the Hub's cache, by the layout that its documentation states."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cached = Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    with suppress(OSError):
        revision = (cached / "refs" / revision).read_text(encoding="utf-8").strip()
    folder = cached / "snapshots" / revision
    return folder if folder.is_dir() else None


def fetch(repository: str, revision: str) -> Path:
    """Folder of a Hub repository's snapshot, downloaded where it is not in the cache.

    Only configuration, tokenizer and one format of weights are downloaded. HF_HUB_OFFLINE and
    HF_HOME are honoured.

    Raises:
        BenchError: the Hub cannot be reached, or has no such repository or revision.
    """
    text = ["*.json", "*.txt", "*.model"]
    folder = _snapshot(repository, revision, [*text, "*.safetensors", "*_Dense/*", "*_LayerNorm/*"])
    names = (path.name for path in folder.rglob("*"))
    if not any(name.endswith(".safetensors") and name.startswith("model") for name in names):
        folder = _snapshot(repository, revision, [*text, "*pytorch_model*.bin"])
    return folder


def fetch_file(repository: str, revision: str, name: str) -> Path | None:
    """One small file of a Hub repository, or None where the repository does not have it."""
    path = _snapshot(repository, revision, [name]) / name
    return path if path.is_file() else None


def _snapshot(repository: str, revision: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    skip = ["onnx/*", "openvino/*", "coreml/*", "*checkpoint-*/*"]
    try:
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=patterns, ignore_patterns=skip
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = first_line(error)
        raise BenchError(
            f"cannot get {repository}@{revision} from the Hugging Face Hub: {reason}",
            "run `python -m bench fetch --model NAME` on a connected machine and copy its cache "
            "(HF_HOME), or name a folder of it and add --like CARD",
        ) from error
    return Path(folder)


def _package_folder(package: str, sha: str) -> Path | None:
    """Folder of weights inside an installed package, found without importing anything.

    A name with a dot would be found by importing the package before the dot, and a package that
    no distribution installed may be any folder of the place where the command was typed.
    """
    top, _, rest = package.partition("/")
    if not package:
        return None
    if not top.isidentifier():
        raise BenchError(
            f"package = {package!r} is not a package and a folder in it",
            'write package = "name/folder", with the name of a package that is not inside another',
        )
    spec = importlib.util.find_spec(top) if _is_installed(top) else None
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = inside(Path(location), rest)
        if folder.is_dir() and sha in ("", sha256(folder / find_weights(folder))):
            return folder
    return None


def _is_installed(package: str) -> bool:
    """True for a package of a distribution; the one of the same name is read before all others."""
    with suppress(PackageNotFoundError):
        of_that_name = distribution(package)
        stated = of_that_name.read_text("top_level.txt")
        files = of_that_name.files or ()
        if package in (stated.split() if stated else {file.parts[0] for file in files}):
            return True
    return package in _installed_packages(tuple(sys.path))


@cache
def _installed_packages(_path: tuple[str, ...]) -> frozenset[str]:
    """Top-level packages of the distributions on ``sys.path``."""
    return frozenset(packages_distributions())


def _tokenizer_files(folder: Path) -> list[Path]:
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise BenchError(
            f"{folder} has no tokenizer",
            "save it beside the weights: AutoTokenizer.from_pretrained(BASE).save_pretrained(...)",
        )
    return [folder / name for name in TOKENIZER if (folder / name).is_file()]


def _refuse_own_code(folder: Path, config: Mapping[str, Any]) -> None:
    settings = folder / "tokenizer_config.json"
    tokenizer = read_object(settings, COPY_AGAIN) if settings.exists() else {}
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        if content.get("auto_map"):
            raise BenchError(
                f"{folder / name} asks to run code of its own (auto_map)",
                "code that arrives with weights is not run; write an encoder class and a card "
                'with encoder = "package.module:Class"',
            )


def first_stated(config: Mapping[str, Any], names: Iterable[str]) -> object:
    """The value of the first of these names that a configuration has; None where it has none."""
    return next((config[name] for name in names if name in config), None)
