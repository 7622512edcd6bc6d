"""The files of a model that determine its vectors: validity and hashes.

Everything is read as data: code in a folder is refused, and never run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from foundation.errors import BenchError
from retrievers.models.folder import HashedFile, ModelFolder
from retrievers.models.positions import check_position_kind, mixable_length, position_limit
from retrievers.models.read_vectors import vector_files
from retrievers.models.weights import find_weights, weight_files

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
        """Longest text in tokens that others may share a batch with; None if all may."""
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
