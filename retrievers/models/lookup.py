"""The card to use for what the user typed.

A card's name, a card's file, a folder with a card in it and a sentence-transformers folder say how
vectors are made. A plain checkpoint does not, and is refused unless a card is named that it is used
like.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from foundation.errors import BenchError, did_you_mean
from retrievers.models.card import BRANCH, Card, all_cards, card_names, load_card
from retrievers.models.checkpoint import Checkpoint, position_limit, read_config
from retrievers.models.locate import fetch_file, locate
from retrievers.models.st_folder import StFolder, is_st_folder, read_st_folder

COSINE_ASSUMED = (
    "the folder does not say which similarity it was trained for: cosine is used, as "
    "sentence-transformers does; use --like CARD for a model trained with dot products"
)

CARD_FILE = "card.toml"  # in the folder of a checkpoint that was trained here

# Fields of a card that are true of its own checkpoint only.
OF_ONE_CHECKPOINT = (
    "parameters",
    "dim",
    "revision",
    "package",
    "weights_sha256",
    "trained_on",
    "expected",
    "expected_source",
    "unverified",
    "warning",
    "missing",
    "source",
    "citation",
    "licence",
)


def find_card(model: str, like: str | None) -> tuple[Card, Path]:
    """The card to use, and the folder that its paths are relative to.

    Raises:
        BenchError: there is no such model, or it is a plain checkpoint and ``like`` is None.
    """
    if like is not None:
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


def of_no_checkpoint() -> dict[str, Any]:
    """`OF_ONE_CHECKPOINT`, each as in a card that does not state it."""
    blank = Card(name="", title="", checkpoint="-", pooling="cls")
    return {name: getattr(blank, name) for name in OF_ONE_CHECKPOINT}


def _card_like(card: Card, checkpoint: str) -> Card:
    """The recipe of a card with another checkpoint; what belongs to the old one is dropped."""
    if card.kind != "transformer" or card.encoder:
        raise BenchError(
            f"--like {card.name}: that card is not of a transformer checkpoint",
            "see `python -m bench list models`",
        )
    if card.query_checkpoint:
        raise BenchError(
            f"--like {card.name}: that model has two encoders, and one checkpoint was given",
            "write a card with checkpoint and query_checkpoint, and name that: path/to/card.toml",
        )
    path = Path(checkpoint).expanduser()
    where = str(path.resolve()) if path.is_dir() else checkpoint
    changes = of_no_checkpoint()
    if (path / CARD_FILE).is_file():
        changes["trained_on"] = load_card(path / CARD_FILE).trained_on
    title = f"{path.name}, like {card.title}"
    return replace_fields(card, changes | {"name": path.name, "title": title, "checkpoint": where})


def _card_of_folder(folder: Path, typed: str) -> Card:
    if not is_st_folder(folder):
        raise _plain_checkpoint(typed)
    content = read_st_folder(folder)
    limit = position_limit(read_config(folder / content.inner))
    length = min((n for n in (content.max_tokens, limit) if n is not None), default=512)
    if length < 1:
        raise BenchError(f"{folder / content.inner / 'config.json'} has no positions for texts")
    similarity = content.similarity or "cos"
    return Card(
        name=Path(typed).name,
        title=f"{typed} (sentence-transformers)",
        checkpoint=str(folder),
        pooling=content.pooling,
        stages=content.stages,
        normalize=content.normalize or similarity == "cos",
        similarity=similarity,
        prompts=content.prompts,
        max_query_tokens=length,
        max_document_tokens=length,
        truncation_side=content.truncation_side,
        lower_case=content.lower_case,
        warning="; ".join(_warnings(content)),
    )


def _warnings(content: StFolder) -> list[str]:
    """Warnings of what is assumed, or set aside, of a sentence-transformers folder."""
    warnings = [] if content.similarity or content.normalize else [COSINE_ASSUMED]
    if content.unused_prompts:
        warnings.append(
            f"its prompts {', '.join(content.unused_prompts)} are not used: retrieval uses those "
            "called query and document, as encode_query and encode_document of "
            "sentence-transformers do; to use others, write a card"
        )
    return warnings


def _card_of_repository(repository: str) -> Card:
    for name, card in all_cards().items():
        if card.checkpoint == repository:
            raise BenchError(f"{repository} has a card", f"name its card: {name}")
    if fetch_file(repository, BRANCH, "modules.json") is None:
        raise _plain_checkpoint(repository)
    card = _card_of_folder(locate(repository, BRANCH, base=Path.cwd()), repository)
    return replace_fields(card, {"checkpoint": repository})


def _plain_checkpoint(typed: str) -> BenchError:
    return BenchError(
        f"{typed} is a plain checkpoint: it does not say how its vectors are made "
        "(pooling, normalisation, prompts, lengths), and a guess gives wrong scores",
        "its page or paper says how it was trained; then add --like CARD, a card that is used in "
        "the same way (`python -m bench list models`), or write card.toml into its folder",
    )


def provenance(checkpoint: str, revision: str, base: Path, resolved: Checkpoint) -> tuple[str, str]:
    """Name and revision to show: a Hub id and its commit, or a folder's name and no revision.

    A branch, whose content changes, is no revision: where the commit is not known, none is shown.
    """
    folder = base / Path(checkpoint).expanduser()
    if folder.is_dir():
        return folder.resolve().name, ""
    return checkpoint, resolved.revision or ("" if revision == BRANCH else revision)


def replace_fields(card: Card, changes: Mapping[str, Any]) -> Card:
    """The card with other values in some fields, checked again as when it was read.

    Raises:
        BenchError: the card contradicts itself.
    """
    try:
        return msgspec.structs.replace(card, **changes)
    except ValueError as error:
        raise BenchError(f"{card.name}: {error}") from error
