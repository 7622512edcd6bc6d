"""Locate the folder of a checkpoint: here, in a package, in the Hub's cache, or downloaded."""

import re
import site
from contextlib import suppress
from pathlib import Path
from typing import Any

from foundation.errors import BenchError, first_line
from foundation.files import resolve_inside
from retrievers.models.card import BRANCH, Card
from retrievers.models.checkpoint import find_weights, weight_files
from retrievers.models.folder import ModelFolder

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")
DECLARATIONS = ("*.json", "*.txt", "*.model")  # settings and tokenizers
SKIPPED = ("onnx/*", "openvino/*", "coreml/*", "*checkpoint-*/*")


def locate_card(card: Card, base: Path) -> ModelFolder:
    """Return the folder of a card's checkpoint. Its relative paths are those below ``base``."""
    package, sha = card.package, card.weights_sha256
    return locate_checkpoint(card.checkpoint, card.revision, base=base, package=package, sha=sha)


def locate_checkpoint(
    checkpoint: str,
    revision: str = BRANCH,
    *,
    base: Path,
    package: str = "",
    sha: str = "",
    with_weights: bool = True,
) -> ModelFolder:
    """Return the folder of a checkpoint: local, in a package, in the Hub's cache, or downloaded.

    ``checkpoint`` is a Hub id, or a folder relative to ``base``, the card's. The weights in
    ``package``, a folder of an installed package, are used if their sha256 is ``sha`` or it is "".
    Without ``with_weights``, settings and tokenizer alone are downloaded.
    """
    local = base / Path(checkpoint).expanduser()
    if local.is_dir():
        return ModelFolder(local.resolve())
    # A branch changes, so it is not shown as a revision; without a known commit, none is shown.
    shown = "" if revision == BRANCH else revision
    if packaged := _find_packaged(package, sha, checkpoint, shown):
        return packaged
    if not HUB_ID.fullmatch(checkpoint):
        raise BenchError(f"there is no folder {local}")
    fetch = fetch_checkpoint if with_weights else _download
    root = fetch(checkpoint, revision)
    return ModelFolder(root, checkpoint, root.name if root.parent.name == "snapshots" else shown)


def find_local(checkpoint: str, revision: str, package: str = "") -> Path | None:
    """Return the folder of a published checkpoint on this machine, or None if it is incomplete.

    An installed package comes before the Hub's cache. Of its weights, names and headers are read,
    so that a list of models appears at once.
    """
    packaged = _find_packaged(package)
    folder = packaged.root if packaged else _cached_snapshot(checkpoint, revision)
    try:
        return folder if folder and weight_files(folder, find_weights(folder)) else None
    except (BenchError, OSError):
        return None


def _cached_snapshot(repository: str, revision: str) -> Path | None:
    """Return the folder of a repository in the Hub's cache, by its documented layout."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cached = Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    with suppress(OSError):
        revision = (cached / "refs" / revision).read_text("utf-8").strip()
    folder = cached / "snapshots" / revision
    return folder if folder.is_dir() else None


def fetch_checkpoint(repository: str, revision: str) -> Path:
    """Return the folder of a Hub repository's snapshot, downloaded if it is not in the cache.

    Only configuration, tokenizer and one format of weights are downloaded.
    """
    safe = (*DECLARATIONS, "*.safetensors", "[0-9]*_*/*", "*.py")
    folder = _download(repository, revision, safe)
    if not any(path.name.startswith("model") for path in folder.rglob("*.safetensors")):
        folder = _download(repository, revision, (*DECLARATIONS, "*pytorch_model*.bin"))
    return folder


def _download(repository: str, revision: str, wanted: tuple[str, ...] = DECLARATIONS) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    # requests.HTTPError, or httpx.HTTPError since huggingface_hub 1, which is not an OSError
    http_errors: tuple[Any, ...] = HfHubHTTPError.__bases__
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(wanted),
            ignore_patterns=list(SKIPPED),
        )
    except (OSError, ValueError, *http_errors) as error:
        raise BenchError(
            f"cannot get {repository}@{revision} from the Hugging Face Hub: {first_line(error)}",
            "Run `python -m bench fetch --model NAME` on a connected machine and copy its cache "
            "(HF_HOME), or give a folder of it and add --like CARD.",
        ) from error
    return Path(folder)


def _find_packaged(
    package: str, sha: str = "", checkpoint: str = "", revision: str = ""
) -> ModelFolder | None:
    """Return the folder of weights inside an installed package, without importing it.

    Only site-packages are searched, since ``sys.path`` includes the working directory.
    """
    for place in (*site.getsitepackages(), site.getusersitepackages()) if package else ():
        folder = ModelFolder(resolve_inside(Path(place), package), checkpoint, revision)
        root = folder.root
        if root.is_dir() and sha in ("", folder.hash_file(root / find_weights(root)).sha256):
            return folder
    return None
