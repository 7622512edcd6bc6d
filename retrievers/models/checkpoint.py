"""The files of a checkpoint: where they are, whether they may be loaded, what their hashes are.

Everything here is read as data (JSON, sizes, bytes): no model library is imported, nothing is
unpickled. A folder that brings its own code is refused.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import BenchError, first_line

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
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")


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
        names = ("hidden_size", "d_model", "dim", "n_embd")
        width = self.config.get("projection_dim") or _first(self.config, names)
        if not isinstance(width, int) or width < 1:
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
            f"{folder} holds an adapter, not a model", f"--model BASE --adapter {folder}"
        )
    config = read_json(folder / "config.json")
    _refuse_own_code(folder, config)
    weights = find_weights(folder)
    files = [folder / "config.json", *weight_files(folder, weights), *_tokenizer_files(folder)]
    for name in stage_folders:
        stage = inside(root, name)
        files += [stage / "config.json", *weight_files(stage, find_weights(stage))]
    hashes = {path.relative_to(root).as_posix(): sha256(path) for path in sorted(set(files))}
    return Checkpoint(root, folder, weights, config, hashes)


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Longest input in tokens of a model with this configuration; None where it has no limit."""
    kind, limit = config.get("model_type"), config.get("max_position_embeddings")
    if kind in UNBOUNDED or not isinstance(limit, int):
        return None
    return limit - int(config.get("pad_token_id", 1)) - 1 if kind in OFFSET_POSITIONS else limit


def find_weights(folder: Path) -> str:
    """Name of the weights in a folder: safetensors before a restricted pickle."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return name
    others = sorted(path.name for path in folder.glob("*") if path.suffix in {".h5", ".msgpack"})
    found = f"; found {', '.join(others)}, which PyTorch cannot load" if others else ""
    raise BenchError(
        f"{folder} has no weights{found}", "it needs model.safetensors or pytorch_model.bin"
    )


def weight_files(folder: Path, weights: str) -> list[Path]:
    """The files behind a weights name, shards included, each checked for truncation."""
    files = [folder / weights]
    if weights.endswith(".index.json"):
        shards = read_json(folder / weights).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise BenchError(f"{folder / weights} has no weight_map")
        files += [inside(folder, str(name)) for name in sorted(set(shards.values()))]
    for path in files:
        if not path.is_file():
            raise BenchError(f"{path} is missing", "copy or download the checkpoint again")
        if path.suffix == ".safetensors":
            read_safetensors_header(path)
    return files


def read_safetensors_header(path: Path) -> dict[str, Any]:
    """Names, shapes and positions of the tensors of a safetensors file.

    Raises:
        BenchError: the file is damaged, or shorter or longer than its header says.
    """
    damaged = BenchError(
        f"{path} is not a complete safetensors file", "copy or download the checkpoint again"
    )
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise damaged
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for key, entry in header.items() if key[:2] != "__"]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise damaged from error
    if 8 + length + max(ends, default=0) != size:
        raise damaged
    return dict(header)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a checkpoint.

    Raises:
        BenchError: the file is missing or is not a JSON object.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing", "is this the folder of a model?") from error
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise BenchError(f"{path} is not a JSON object")
    return content


def inside(root: Path, name: str) -> Path:
    """``root / name``, refusing names that lead out of ``root``."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise BenchError(f"{name!r} leads out of {root}")
    return root / name


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
            "(HF_HOME), or give a folder: --model path/to/checkpoint --like NAME",
        ) from error
    return Path(folder)


def _package_folder(package: str, sha: str) -> Path | None:
    """Folder of weights inside an installed package, found without importing the package."""
    top, _, rest = package.partition("/")
    spec = importlib.util.find_spec(top) if top else None
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / rest
        if folder.is_dir() and sha in ("", sha256(folder / find_weights(folder))):
            return folder
    return None


def _tokenizer_files(folder: Path) -> list[Path]:
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise BenchError(
            f"{folder} has no tokenizer",
            "save it beside the weights: AutoTokenizer.from_pretrained(BASE).save_pretrained(...)",
        )
    return [folder / name for name in TOKENIZER if (folder / name).is_file()]


def _refuse_own_code(folder: Path, config: Mapping[str, Any]) -> None:
    settings = folder / "tokenizer_config.json"
    tokenizer = read_json(settings) if settings.exists() else {}
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        if content.get("auto_map"):
            raise BenchError(
                f"{folder / name} asks to run code of its own (auto_map)",
                "code that arrives with weights is not run; write an encoder class and a card "
                'with encoder = "package.module:Class"',
            )


def _first(config: Mapping[str, Any], names: Iterable[str]) -> object:
    return next((config[name] for name in names if name in config), None)
