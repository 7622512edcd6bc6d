"""Locate a model: a name as a card, a folder or a repository, and the folder of a checkpoint."""

import re
import site
from contextlib import suppress
from pathlib import Path
from typing import Any

from foundation.errors import BenchError, did_you_mean, first_line
from foundation.files import resolve_inside, sha256_of_file
from retrievers.models.card import (
    BRANCH,
    CARD_FILE,
    Card,
    card_names,
    load_card,
    make_card,
    replace_fields,
)
from retrievers.models.read_checkpoint import find_weights, weight_files

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")
PYTHON_FILE = re.compile(r"(.+\.py)(?::(\w+))?")  # a class, function or object in a user's file
READY_VECTORS = re.compile(r"vectors:(.+?)(?::(dot|cos))?")  # a folder, and their similarity
DECLARATIONS = ("*.json", "*.txt", "*.model")  # settings and tokenizers
SKIPPED = ("onnx/*", "openvino/*", "coreml/*", "*checkpoint-*/*")


def find_card(name: str) -> tuple[Card, Path] | None:
    """Return the card that ``name`` stands for, and the folder that its paths are relative to.

    It is None for a folder without a card, and for a Hub id. Nothing is downloaded.
    """
    here, folder = Path.cwd(), Path(name).expanduser()
    if members := _split_fusion(name):
        names = [_name_of(member) for member in members]
        fields = {"name": "+".join(names), "title": name, "kind": "fusion", "models": members}
        return make_card(fields), here
    if found := READY_VECTORS.fullmatch(name):
        return _card_of_vectors(name, *found.groups()), here
    is_folder = folder.is_dir()  # which may have a name like that of a file
    if name.endswith(".toml") and not is_folder:
        return load_card(name), Path(name).resolve().parent
    if not is_folder and (found := PYTHON_FILE.fullmatch(name)):
        if not found[2]:
            add = f"Add the class, function or object in it that encodes: {name}:NAME"
            raise BenchError(f"{name} is a file of Python code", add)
        encoder = f"{Path(found[1]).expanduser().resolve()}:{found[2]}"
        return Card(name=found[2], title=name, kind="python", encoder=encoder), here
    if name in card_names():
        return load_card(name), here
    if (folder / CARD_FILE).is_file():
        folder = folder.resolve()
        return replace_fields(load_card(folder / CARD_FILE), {"name": folder.name}), folder
    if is_folder or (name.count("/") == 1 and not name.startswith((".", "~", "/"))):
        return None
    file = f"{name}.toml"
    meant = f"Did you mean {file}?" if Path(file).is_file() else did_you_mean(name, card_names())
    hint = f"{meant} See `python -m bench list models`.".strip()
    raise BenchError(f"there is no model card and no folder {name!r}", hint)


def _card_of_vectors(typed: str, folder: str, similarity: str | None) -> Card:
    """Return the card of ready vectors. Without a similarity, they must have length 1."""
    path = Path(folder).expanduser()
    if not path.exists():
        raise BenchError(f"there is no folder {path}", "Give the folder of the vectors.")
    return Card(
        name=path.resolve().stem,
        title=typed,
        kind="vectors",
        checkpoint=str(path.resolve()),
        similarity="dot" if similarity == "dot" else "cos",
        normalize=similarity == "cos",
    )


def _split_fusion(name: str) -> tuple[str, ...]:
    """Return the models of ``one+another``, or none if it is the name of a file or one model."""
    members = tuple(name.split("+"))
    if len(members) < 2 or is_url(name) or Path(_path_in(name)).expanduser().exists():
        return ()
    if not all(members):
        raise BenchError(f"{name}: a model is missing next to +", "Name two, such as minilm+bm25.")
    return members


def _name_of(member: str) -> str:
    """Return the name of a model in results."""
    found = find_card(member)
    return found[0].name if found else Path(member).resolve().name


def _path_in(name: str) -> str:
    """Return the path in the name of ready vectors or of Python code, or the name."""
    found = READY_VECTORS.fullmatch(name) or PYTHON_FILE.fullmatch(name)
    return found[1] if found else name


def anchor_members(card: Card, base: Path) -> Card:
    """Return a pipeline's card with the paths in its models and reranker below ``base``."""
    anchored = {
        "models": tuple(anchor_path(name, base) for name in card.models),
        **{name: anchor_path(getattr(card, name), base) for name in ("model", "reranker")},
    }
    return replace_fields(card, anchored)


def anchor_path(name: str, base: Path) -> str:
    """Return ``name`` with each path in it that exists below ``base`` written in full."""
    if not name:
        return ""
    file = _path_in(name)
    path = base / Path(file).expanduser()
    if path.exists():
        return name.replace(file, str(path), 1)
    return "+".join(anchor_path(each, base) for each in _split_fusion(name)) or name


def is_card(model: str) -> bool:
    """Return whether ``model`` names a card or Python code rather than a folder or Hub id."""
    named = model in card_names() or model.endswith(".toml") or _split_fusion(model)
    patterns = READY_VECTORS.fullmatch(model) or PYTHON_FILE.fullmatch(model)
    return bool(named or patterns) and not Path(model).expanduser().is_dir()


def is_url(model: str) -> bool:
    """Return whether ``model`` is the URL of an endpoint."""
    return model.startswith(("http://", "https://"))


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
