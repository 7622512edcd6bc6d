"""Locate the folder of a checkpoint: here, in a package, in the Hub's cache, or downloaded."""

import re
import site
from contextlib import suppress
from pathlib import Path
from typing import Any

from foundation.errors import BenchError, first_line
from foundation.files import resolve_inside, sha256_of_file
from retrievers.models.card import BRANCH, Card
from retrievers.models.weights import find_weights, weight_files

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")
DECLARATIONS = ("*.json", "*.txt", "*.model")  # settings and tokenizers
SKIPPED = ("onnx/*", "openvino/*", "coreml/*", "*checkpoint-*/*")


def locate_card(card: Card, base: Path) -> Path:
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
) -> Path:
    """Return the folder of a checkpoint: local, in a package, in the Hub's cache, or downloaded.

    ``checkpoint`` is a Hub id, or a folder relative to ``base``, the card's. The weights in
    ``package``, a folder of an installed package, are used if their sha256 is ``sha`` or it is "".
    Without ``with_weights``, settings and tokenizer alone are downloaded.
    """
    local = base / Path(checkpoint).expanduser()
    if local.is_dir():
        return local.resolve()
    if packaged := _package_folder(package, sha):
        return packaged
    if not HUB_ID.fullmatch(checkpoint):
        raise BenchError(f"there is no folder {local}")
    if not with_weights:
        return _download(checkpoint, revision, DECLARATIONS)
    return fetch_checkpoint(checkpoint, revision)


def find_local(checkpoint: str, revision: str, package: str = "") -> Path | None:
    """Return the folder of a published checkpoint on this machine, or None if it is incomplete.

    An installed package comes before the Hub's cache. Of its weights, names and headers are read,
    so that a list of models appears at once.
    """
    folder = _package_folder(package, "") or _cached_snapshot(checkpoint, revision)
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


def _download(repository: str, revision: str, wanted: tuple[str, ...]) -> Path:
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


def _package_folder(package: str, sha: str) -> Path | None:
    """Return the folder of weights inside an installed package, without importing it.

    Only site-packages are searched, since ``sys.path`` includes the working directory.
    """
    for place in (*site.getsitepackages(), site.getusersitepackages()) if package else ():
        folder = resolve_inside(Path(place), package)
        if folder.is_dir() and sha in ("", sha256_of_file(folder / find_weights(folder))):
            return folder
    return None
