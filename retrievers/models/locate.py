"""Where a checkpoint lies: in a folder, an installed package, the Hub's cache or on the Hub."""

import importlib.util
import re
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from foundation.errors import BenchError, first_line
from foundation.files import sha256_of_file
from retrievers.models.checkpoint import find_weights, inside, weight_files

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")


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
        if folder.is_dir() and sha in ("", sha256_of_file(folder / find_weights(folder))):
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
