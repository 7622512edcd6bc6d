"""Find a model: the card that states how vectors are made, and its checkpoint.

A card's name, a card's file, a folder with a card and a sentence-transformers folder state how
vectors are made. A plain checkpoint does not and is refused, unless it is used like a named card.
A checkpoint is in a folder, an installed package, the Hub's cache or on the Hub.
"""

import logging
import re
import site
from contextlib import suppress
from pathlib import Path
from typing import Any

from foundation.errors import BenchError, did_you_mean, first_line
from foundation.files import read_file, sha256_of_file
from foundation.printable import format_names
from foundation.records import read_object
from retrievers.models.card import (
    BRANCH,
    CARD_FILE,
    CLIENT_DECIDES,
    Card,
    all_cards,
    card_names,
    load_card,
    make_card_like,
    replace_fields,
)
from retrievers.models.checkpoint import Checkpoint, find_weights, resolve_inside, weight_files
from retrievers.models.st_folder import ends_in_normalize, is_st_folder, read_st_folder

TRAINING_FILE = "training.json"  # in the folder of a training, whose card comes last
ADAPTER_FILE = "adapter_config.json"
BASE_NAMES = ("base_model_name_or_path", "model_name")  # in files of PEFT and of AdapterHub
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")

SETTINGS_FILES = ("modules.json", "config_sentence_transformers.json", "config.json")
# Marks of models without a single vector per text, in their settings and the names of their files:
# sentence-transformers 5 and OpenSearch, PyLate and Stanford's ColBERT, rerankers.
OTHER_KINDS = {
    "a sparse encoder (SPLADE)": r"SparseEncoder|\.sparse_encoder\.|query_token_weights\.txt",
    "a late-interaction model (ColBERT)": r'"pylate\.|HF_ColBERT|"ColBERT"|MaxSim',
    "a cross-encoder": r"CrossEncoder|\.cross_encoder\.|\w+ForSequenceClassification|sbert_ce_\w+",
}

logger = logging.getLogger(__name__)


def find_card(model: str, like: str | None, endpoint_model: str | None = None) -> tuple[Card, Path]:
    """Return the card to use, and the folder that its paths are relative to.

    Args:
        model: card's name or file, folder, Hub id, or URL of an endpoint.
        like: card that a checkpoint or endpoint is used like, or None.
        endpoint_model: name of the model on the endpoint, or None.

    Raises:
        BenchError: there is no such model, a plain checkpoint without ``like``, a model without one
            vector per text, or a folder that contradicts ``like``.
    """
    if is_url(model):
        usage = {name: getattr(load_card(like), name) for name in CLIENT_DECIDES} if like else {}
        return card_of_endpoint(model, endpoint_model or "", **usage), Path.cwd()
    if endpoint_model is not None:
        raise BenchError(f"{model} is not a URL, so --endpoint-model has no effect", "leave it out")
    if like is not None:
        if is_card(model):
            raise BenchError(
                f"{model} is a card, but --like {like} needs a checkpoint without one",
                "leave --like out, or name the folder of a checkpoint",
            )
        return _card_like(load_card(like), model), Path.cwd()
    if model.endswith(".toml"):
        return load_card(model), Path(model).resolve().parent
    if model in card_names():
        return load_card(model), Path.cwd()
    folder = Path(model).expanduser()
    if (folder / CARD_FILE).is_file():
        card = load_card(folder / CARD_FILE)
        return replace_fields(card, {"name": folder.resolve().name}), folder.resolve()
    if folder.is_dir():
        return _card_of_folder(folder.resolve(), model), Path.cwd()
    if model.count("/") == 1 and not model.startswith((".", "~", "/")):
        return _card_of_repository(model), Path.cwd()
    raise BenchError(
        f"there is no model card and no folder {model!r}",
        f"{did_you_mean(model, card_names())} see `python -m bench list models`".strip(),
    )


def is_card(model: str) -> bool:
    """Return whether ``model`` names a card rather than a folder or Hub id."""
    named = model in card_names() or model.endswith(".toml")
    return named and not Path(model).expanduser().is_dir()


def is_url(model: str) -> bool:
    """Return whether ``model`` is the URL of an endpoint."""
    return model.startswith(("http://", "https://"))


def card_of_endpoint(url: str, endpoint_model: str, **fields: Any) -> Card:
    """Return the card of a model behind a URL.

    Args:
        url: address of the server.
        endpoint_model: name of the model on the server. Its last part is the card's name.
        fields: other fields of the card.

    Raises:
        BenchError: there is no name, or the URL or another field does not fit an endpoint.
    """
    if not endpoint_model:
        raise BenchError(
            "the URL of a server needs the name of one of its models",
            "add --endpoint-model NAME, as listed at /v1/models",
        )
    named = {"name": endpoint_model.rpartition("/")[2], "title": f"{endpoint_model} at {url}"}
    try:
        return Card(kind="endpoint", url=url, endpoint_model=endpoint_model, **{**named, **fields})
    except ValueError as error:
        raise BenchError(str(error)) from error


def _card_like(card: Card, checkpoint: str) -> Card:
    """Return a card for another checkpoint.

    Facts about the card's own checkpoint are dropped.
    """
    if card.kind != "transformer" or card.encoder:
        raise BenchError(
            f"--like {card.name}: its card does not describe a transformer checkpoint",
            "see `python -m bench list models`",
        )
    if card.query_checkpoint:
        raise BenchError(
            f"--like {card.name}: that model has two encoders, but one checkpoint was given",
            "Write a card with checkpoint and query_checkpoint, and name it: path/to/card.toml",
        )
    path = Path(checkpoint).expanduser()
    root = locate_checkpoint(checkpoint, BRANCH, base=Path.cwd())
    if not card.stages:  # ANCE's weights state a classifier, and its card a stage instead
        _refuse_other_kinds(root, checkpoint)
    where = str(root) if path.is_dir() else checkpoint
    folder_card = load_card(root / CARD_FILE) if (root / CARD_FILE).is_file() else None
    if folder_card is None and is_st_folder(root):
        folder_card = _card_of_folder(root, checkpoint)
    if folder_card is not None and not folder_card.pretrained_only:
        _check_like(card, folder_card, root)
    title = f"{path.name}, like {card.title}"
    return make_card_like(
        card,
        name=path.name,
        title=title,
        checkpoint=where,
        trained_on=folder_card.trained_on if folder_card else (),
    )


def _check_like(card: Card, folder_card: Card, root: Path) -> None:
    """Raise if a card contradicts the folder that is used like it.

    Different lengths only cause a warning, since users choose them. So does a different
    normalisation without a module for it: sentence-transformers writes cosine even if nobody chose
    it.
    """
    used, open_to_choice = _settings(card), {"max_query_tokens", "max_document_tokens"}
    if is_st_folder(root) and not ends_in_normalize(root):
        open_to_choice.add("normalize")
    for name, value in _settings(folder_card).items():
        chosen = used.get(name, "none")
        if value != chosen and name not in open_to_choice:
            raise BenchError(
                f"--like {card.name} contradicts {root}: its {name} is {value}, not {chosen}",
                "leave --like out, or correct the folder's settings",
            )
        if value != chosen:
            logger.warning("%s states %s %s, but %s is used", root, name, value, chosen)


def _settings(card: Card) -> dict[str, Any]:
    """Return the settings of a card that change vectors.

    Empty prompts are omitted.
    """
    prompts = {"query prompt": card.prompts.query, "document prompt": card.prompts.document}
    return {
        "pooling": card.pooling,
        "normalize": card.normalize,
        "stages": [stage.folder or stage.key for stage in card.stages],
        "truncation_side": card.truncation_side,
        "lower_case": card.lower_case,
        "max_query_tokens": card.max_query_tokens,
        "max_document_tokens": card.max_document_tokens,
        **{name: repr(text) for name, text in prompts.items() if text},
    }


def _refuse_other_kinds(folder: Path, typed: str) -> None:
    """Raise if a folder holds a sparse, late-interaction or cross-encoder model."""
    names = SETTINGS_FILES[:2] if is_st_folder(folder) else SETTINGS_FILES[1:]
    contents = [read_file(folder / name) for name in names if (folder / name).is_file()]
    lines = [path.name.encode() for path in folder.iterdir()]
    text = b"\n".join([*lines, *contents]).decode(errors="replace")
    for kind, marks in OTHER_KINDS.items():
        if mark := re.search(marks, text):
            raise BenchError(
                f"{typed} is {kind}, as {mark[0]} shows: it does not make one vector per text",
                "Rank with its own library, then score the run file with `python -m bench score "
                "RUN_FILE --dataset DATASET`, and compare it with `python -m bench compare`.",
            )


def _card_of_folder(folder: Path, typed: str) -> Card:
    _refuse_other_kinds(folder, typed)
    if not is_st_folder(folder):
        raise (
            _unfinished_error(folder, typed)
            or _no_model_error(folder, typed)
            or _plain_error(typed)
        )
    stated = read_st_folder(folder)
    return Card(
        name=Path(typed).name,
        title=f"{typed} (sentence-transformers)",
        checkpoint=str(folder),
        stages=stated.stages,
        prompts=stated.prompts,
        warning="; ".join(stated.warnings),
        **stated.usage.usage,
    )


def _card_of_repository(repository: str) -> Card:
    for name, card in all_cards().items():
        if card.checkpoint == repository:
            raise BenchError(f"{repository} has a card", f"name its card: {name}")
    settings = _download(repository, BRANCH, [*SETTINGS_FILES])
    _refuse_other_kinds(settings, repository)
    if not (settings / "modules.json").is_file():
        raise _plain_error(repository)
    card = _card_of_folder(locate_checkpoint(repository, BRANCH, base=Path.cwd()), repository)
    return replace_fields(card, {"checkpoint": repository})


def _unfinished_error(folder: Path, typed: str) -> BenchError | None:
    """Return the error for an adapter or an interrupted training.

    None for anything else.
    """
    if (folder / ADAPTER_FILE).is_file():
        stated = read_object(folder / ADAPTER_FILE)
        base = next((stated[name] for name in BASE_NAMES if stated.get(name)), "BASE")
        return BenchError(
            f"{typed} is an adapter without its base model",
            f"Give its base as the model, and the folder as --adapter: {base} --adapter {typed}",
        )
    if not (folder / TRAINING_FILE).is_file():
        return None
    models = Path(typed).glob(f"checkpoints/checkpoint-*/model/{CARD_FILE}")
    latest = max(models, key=lambda path: path.stat().st_mtime, default=None)
    evaluate = f"; or evaluate its last checkpoint: --model {latest.parent}" if latest else ""
    return BenchError(
        f"{typed} is an interrupted training",
        f"Run the same command again to continue it{evaluate}",
    )


def _no_model_error(folder: Path, typed: str) -> BenchError | None:
    """Return the error for a folder without a model, such as a parent folder or a collection."""
    if (folder / "config.json").exists():
        return None
    files = (path for name in ("config.json", CARD_FILE) for path in folder.glob(f"*/{name}"))
    names = [str(Path(typed) / name) for name in sorted({path.parent.name for path in files})]
    hint = f"name a model in it: {format_names(names)}" if names else "name the folder of a model"
    return BenchError(f"{typed} is not the folder of a model: it has no config.json", hint)


def _plain_error(typed: str) -> BenchError:
    return BenchError(
        f"{typed} is a plain checkpoint: it does not state how vectors are made (pooling, "
        "normalisation, prompts, lengths), and a guess gives wrong scores",
        "Look up how it was trained, then add --like CARD with a card that is used in the same "
        "way (`python -m bench list models`), or write card.toml into its folder.",
    )


def describe_source(
    checkpoint: str, revision: str, base: Path, resolved: Checkpoint
) -> tuple[str, str]:
    """Return the name and revision of a checkpoint for display.

    A branch changes, so it is not shown as a revision; without a known commit, none is shown.

    Args:
        checkpoint: Hub id or folder, as a card states it.
        revision: revision that the card states.
        base: folder that paths are relative to.
        resolved: files of the checkpoint.
    """
    folder = base / Path(checkpoint).expanduser()
    if folder.is_dir():
        return folder.resolve().name, ""
    return checkpoint, resolved.revision or ("" if revision == BRANCH else revision)


def locate_checkpoint(
    checkpoint: str, revision: str, *, base: Path, package: str = "", sha: str = ""
) -> Path:
    """Return the folder of a checkpoint: local, in a package, in the Hub's cache, or downloaded.

    Args:
        checkpoint: Hub id or folder.
        revision: revision on the Hub.
        base: folder that paths are relative to.
        package: ``package/folder`` of an installed package, used if its weights match ``sha``.
        sha: sha256 of the weights, or empty.

    Raises:
        BenchError: it is not found and cannot be downloaded.
    """
    local = base / Path(checkpoint).expanduser()
    if local.is_dir():
        return local.resolve()
    packaged = _package_folder(package, sha)
    if packaged is not None:
        return packaged
    if not HUB_ID.fullmatch(checkpoint):
        raise BenchError(f"there is no folder {local}")
    return fetch_checkpoint(checkpoint, revision)


def find_local(checkpoint: str, revision: str, package: str = "") -> Path | None:
    """Return the folder of a published checkpoint on this machine.

    None if weights are incomplete. Only names are looked up, in an installed package and then in
    the Hub's cache. Nothing is hashed, downloaded or imported, so that a list of models appears at
    once.

    Args:
        checkpoint: Hub id.
        revision: revision on the Hub.
        package: ``package/folder`` of an installed package.
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
        revision = read_file(cached / "refs" / revision).decode().strip()
    folder = cached / "snapshots" / revision
    return folder if folder.is_dir() else None


def fetch_checkpoint(repository: str, revision: str) -> Path:
    """Return the folder of a Hub repository's snapshot, downloaded if it is not in the cache.

    Only configuration, tokenizer and one format of weights are downloaded. HF_HUB_OFFLINE and
    HF_HOME are respected.

    Args:
        repository: Hub id.
        revision: branch, tag or commit.

    Raises:
        BenchError: the Hub cannot be reached, or has no such repository or revision.
    """
    text = ["*.json", "*.txt", "*.model"]
    folder = _download(repository, revision, [*text, "*.safetensors", "*_Dense/*", "*_LayerNorm/*"])
    names = (path.name for path in folder.rglob("*"))
    if not any(name.endswith(".safetensors") and name.startswith("model") for name in names):
        folder = _download(repository, revision, [*text, "*pytorch_model*.bin"])
    return folder


def _download(repository: str, revision: str, patterns: list[str]) -> Path:
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
    """Return the folder of weights inside an installed package, without importing it.

    Only site-packages are searched, not all of ``sys.path``, which includes the working directory.
    """
    for place in (*site.getsitepackages(), site.getusersitepackages()) if package else ():
        folder = resolve_inside(Path(place), package)
        if folder.is_dir() and sha in ("", sha256_of_file(folder / find_weights(folder))):
            return folder
    return None
