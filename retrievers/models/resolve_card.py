"""Resolve the card of a model: the one it has, its folder's settings, or another card's for it.

A card's name, a card's file, a folder with a card and a sentence-transformers folder state how
vectors are made. A plain checkpoint does not and is refused, unless it is used like a named card.
"""

import logging
from pathlib import Path
from typing import Any

import msgspec

from foundation.errors import BenchError, format_names
from foundation.records import read_object
from retrievers.models.card import (
    CARD_FILE,
    CLIENT_DECIDES,
    Card,
    CardAdapter,
    all_cards,
    load_card,
    make_card_like,
    replace_fields,
)
from retrievers.models.locate import Place, is_card, is_url, locate_checkpoint, locate_model
from retrievers.models.read_adapter import CONFIG, adapter_name
from retrievers.models.read_settings import lacks_normalize, read_card
from retrievers.models.recipe import Prompts

TRAINING_FILE = "training.json"  # in the folder of a training, whose card comes last
BASE_NAMES = ("base_model_name_or_path", "model_name")  # in files of PEFT and of AdapterHub

logger = logging.getLogger(__name__)


def resolve_card(
    model: str, like: str | None = None, endpoint_model: str | None = None
) -> tuple[Card, Path]:
    """Return the card to use for a model, and the folder that its paths are relative to.

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
    place = locate_model(model)
    return place.card or _declared_card(place), place.base


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


def _declared_card(place: Place) -> Card:
    """Return the card of a checkpoint whose files state how vectors are made."""
    name, folder = place.name, place.folder
    if folder is None:
        known = next((card for card in all_cards().values() if card.checkpoint == name), None)
        if known is not None:
            raise BenchError(f"{name} has a card", f"name its card: {known.name}")
        folder = locate_checkpoint(name, base=place.base, with_weights=False)
    card = read_card(folder, name)
    if card is None:
        raise _explain_missing_settings(folder, name)
    changes = {"name": Path(name).name, "title": f"{name} (sentence-transformers)"}
    where = {} if place.folder else {"checkpoint": name}
    return replace_fields(card, changes | where)


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
    root = locate_checkpoint(checkpoint, base=Path.cwd(), with_weights=False)
    # ANCE's weights state a classifier, and its card a stage instead.
    stated = read_card(root, checkpoint, may_classify=bool(card.stages))
    if stated is not None and not stated.pretrained_only:
        _check_like(card, stated, root)
    return make_card_like(
        card,
        name=path.name,
        title=f"{path.name}, like {card.title}",
        checkpoint=str(root) if path.is_dir() else checkpoint,
        trained_on=stated.trained_on if stated else (),
    )


def _check_like(card: Card, stated: Card, root: Path) -> None:
    """Raise if a card contradicts the folder that is used like it.

    Different lengths only cause a warning, since users choose them. So does a different
    normalisation without a module for it: sentence-transformers writes cosine even if nobody chose
    it.
    """
    used, open_to_choice = _list_settings(card), {"max_query_tokens", "max_document_tokens"}
    if lacks_normalize(root):
        open_to_choice.add("normalize")
    for name, value in _list_settings(stated).items():
        chosen = used.get(name, "none")
        if value == chosen:
            continue
        if name not in open_to_choice:
            raise BenchError(
                f"--like {card.name} contradicts {root}: its {name} is {value}, not {chosen}",
                "leave --like out, or correct the folder's settings",
            )
        logger.warning("%s states %s %s, but %s is used", root, name, value, chosen)


def _list_settings(card: Card) -> dict[str, Any]:
    """Return the settings of a card that change vectors, without empty prompts."""
    names = ("truncation_side", "lower_case", "max_query_tokens", "max_document_tokens")
    prompts = {"query prompt": card.prompts.query, "document prompt": card.prompts.document}
    return {
        "pooling": card.pooling,
        "normalize": card.normalize,
        "stages": [stage.folder or stage.key for stage in card.stages],
        **{name: getattr(card, name) for name in names},
        **{name: repr(text) for name, text in prompts.items() if text},
    }


def _explain_missing_settings(folder: Path, typed: str) -> BenchError:
    """Return the error for a folder that does not state how vectors are made."""
    if (folder / CONFIG).is_file():
        stated = read_object(folder / CONFIG)
        base = next((stated[name] for name in BASE_NAMES if stated.get(name)), "BASE")
        return BenchError(
            f"{typed} is an adapter without its base model",
            f"Give its base as the model, and the folder as --adapter: {base} --adapter {typed}",
        )
    if (folder / TRAINING_FILE).is_file():
        models = Path(typed).glob(f"checkpoints/checkpoint-*/model/{CARD_FILE}")
        latest = max(models, key=lambda path: path.stat().st_mtime, default=None)
        evaluate = f"; or evaluate its last checkpoint: --model {latest.parent}" if latest else ""
        return BenchError(
            f"{typed} is an interrupted training",
            f"Run the same command again to continue it{evaluate}",
        )
    if not (folder / "config.json").exists():
        files = (path for name in ("config.json", CARD_FILE) for path in folder.glob(f"*/{name}"))
        names = [str(Path(typed) / name) for name in sorted({path.parent.name for path in files})]
        return BenchError(
            f"{typed} is not the folder of a model: it has no config.json",
            f"name a model in it: {format_names(names)}" if names else "name the folder of a model",
        )
    return BenchError(
        f"{typed} is a plain checkpoint: it does not state how vectors are made (pooling, "
        "normalisation, prompts, lengths), and a guess gives wrong scores",
        "Look up how it was trained, then add --like CARD with a card that is used in the same "
        "way (`python -m bench list models`), or write card.toml into its folder.",
    )


def with_query_prompt(card: Card, text: str) -> Card:
    """Return the card with one prompt for the queries of all datasets.

    Raises:
        BenchError: the model reads no prompts.
    """
    if card.kind == "bm25":
        raise BenchError(f"{card.name} puts no prompt before queries", "Leave out query_prompt.")
    datasets = {
        name: Prompts(query=text, document=prompts.document)
        for name, prompts in card.prompts.datasets.items()
    }
    prompts = msgspec.structs.replace(card.prompts, query=text, datasets=datasets)
    return replace_fields(card, {"prompts": prompts, "expected": ()})


def with_adapter(card: Card, folder: Path) -> Card:
    """Return the card of a base with the adapter in ``folder`` attached.

    Raises:
        BenchError: the model is not a transformer.
    """
    if card.kind != "transformer" or card.encoder:
        raise BenchError(
            f"{card.name} is not a transformer, so no adapter can be attached",
            "Leave out --adapter, or name the model that it was trained on.",
        )
    name = adapter_name(folder)
    changes = {"name": f"{card.name}+{name}", "title": f"{card.title}, with the adapter {name}"}
    adapter = CardAdapter(path=str(folder.resolve()))
    return replace_fields(card, {**changes, "adapter": adapter, "expected": ()})
