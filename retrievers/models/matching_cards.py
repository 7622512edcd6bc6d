"""A plain checkpoint: how to find out how it is used, and which cards could say it.

Its files say what its network is, and not how vectors are made of it. Many models share a network
and differ in pooling, so that a network alone never decides for one card; its weights do.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foundation.digests import sha256_of_file
from foundation.errors import BenchError
from retrievers.models.card import Card, Network, all_cards
from retrievers.models.checkpoint import (
    LAYERS,
    WIDTHS,
    find_weights,
    read_config,
)
from retrievers.models.recipe import Pooling
from retrievers.models.st_folder import read_pooling

POOLING_FOLDER = "1_Pooling"
VECTORS = {
    "cls": "first token",
    "mean": "mean",
    "last": "last token",
    "pooler": "pooler",
    "cls+bow": "first token and bag of words",
}


def plain_checkpoint(typed: str, folder: Path | None) -> BenchError:
    """Error for a checkpoint that does not say how its vectors are made, with advice.

    Args:
        typed: by the user.
        folder: of its ``config.json``, with or without its other files; None where it has none.
    """
    problem = (
        f"{typed} is a plain checkpoint: it does not say how its vectors are made "
        "(pooling, normalisation, prompts, lengths), and a guess gives wrong scores"
    )
    cards = {name: card for name, card in all_cards().items() if card.network and not card.missing}
    same = _of_the_same_weights(folder, cards.values())
    if same:
        return BenchError(problem, f"its weights are those of {same}: add --like {same}")
    return BenchError(problem, " ".join(_advice(folder, cards.values())))


def _advice(folder: Path | None, cards: Iterable[Card]) -> list[str]:
    """Advice: how to find out, what the folder gives away, and cards that may fit."""
    network, pooling = _network(folder), _stated_pooling(folder)
    advice = [
        "its page or paper says which pooling, normalisation, prompts and lengths it was trained "
        f"with, and so does {POOLING_FOLDER}/config.json where it was saved by "
        "sentence-transformers; then add --like CARD, a card that is used in the same way "
        "(`python -m bench list models`), or write card.toml into its folder."
    ]
    if pooling is not None:
        advice.append(f"Its {POOLING_FOLDER} says {pooling} pooling.")
    groups: dict[str, list[str]] = defaultdict(list)
    for card in cards:
        if card.network == network and pooling in (None, card.pooling):
            score = "cosine" if card.similarity == "cos" else "inner product"
            groups[f"{VECTORS[card.pooling]}, {score}"].append(card.name)
    if network is not None and groups:
        named = "; ".join(f"{use}: {', '.join(names)}" for use, names in groups.items())
        advice.append(
            f"Cards of its network ({network.type}, {network.layers} layers of {network.width}, "
            f"{network.vocabulary:,} tokens), by what they make of it: {named}"
        )
    return advice


def _of_the_same_weights(folder: Path | None, cards: Iterable[Card]) -> str:
    """Name of the card whose weights these are; empty where there is none."""
    if folder is None:
        return ""
    known = {card.weights_sha256: card.name for card in cards if card.weights_sha256}
    try:
        return known.get(sha256_of_file(folder / find_weights(folder)), "")
    except (BenchError, OSError):
        return ""  # what is wrong with them is said once it is known how they are used


def _network(folder: Path | None) -> Network | None:
    """Kind and sizes of the network by ``config.json``; None where it does not state all."""
    try:
        config = read_config(folder) if folder is not None else {}
    except BenchError:
        return None
    names = (("model_type",), LAYERS, WIDTHS, ("vocab_size",))
    stated: list[Any] = [
        next((config[key] for key in keys if key in config), None) for keys in names
    ]
    complete = isinstance(stated[0], str) and all(isinstance(size, int) for size in stated[1:])
    return Network(*stated) if complete else None


def _stated_pooling(folder: Path | None) -> Pooling | None:
    path = folder / POOLING_FOLDER / "config.json" if folder is not None else None
    try:
        return read_pooling(path) if path is not None and path.is_file() else None
    except BenchError:
        return None
