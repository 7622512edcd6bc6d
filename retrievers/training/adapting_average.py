"""The average of the weights of adapters, as an adapter of its own, which costs nothing to use.

Chronopoulou et al., AdapterSoup, EACL Findings 2023; the averaging is AdapterHub's.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from retrievers.adapters import ATTACH_ERRORS, NAME, load_adapterhub
from retrievers.card import load_card
from retrievers.errors import RetrieverError
from retrievers.loading import load_network
from retrievers.lookup import CARD_FILE, replace_fields
from retrievers.model import Model
from retrievers.training.adapting import library_of
from retrievers.training.adapting_folder import Adapted, adapter_inside
from retrievers.training.adapting_hub import save_one


def average_adapters(
    base: Model, folders: Sequence[Path], out: Path, weights: Sequence[float] | None = None
) -> None:
    """Write the weighted mean of trained adapters as one that ``--model OUT`` takes.

    Args:
        base: that all were trained on.
        folders: of finished trainings, each with its card; the first says how vectors are made.
        weights: one for each, of any sum; None for equal ones.

    Raises:
        RetrieverError: adapters of different methods or sizes, or one of another base.
    """
    library_of("adapters")
    import adapters

    shares = list(weights) if weights is not None else [1.0] * len(folders)
    if len(shares) != len(folders) or len(folders) < 2 or sum(shares) == 0:
        raise RetrieverError(f"{len(shares)} weights for {len(folders)} adapters", "two or more")
    inside = [adapter_inside(folder, base) for folder in folders]
    cards = [load_card(folder / CARD_FILE) for folder in folders]
    if base.document is None:
        raise RetrieverError(f"{base.card.name} has no checkpoint")
    network = load_network(base.document, base.recipe)
    network.config._name_or_path = base.card.name
    adapters.init(network)
    names = [f"part_{place}" for place in range(len(inside))]
    try:
        for name, folder in zip(names, inside, strict=True):
            load_adapterhub(network, folder, name)
        with torch.no_grad():
            network.average_adapter(NAME, names, weights=shares)
    except ATTACH_ERRORS as error:
        raise RetrieverError(
            f"these adapters cannot be averaged: {str(error).partition(chr(10))[0]}",
            "average adapters of one method and one size",
        ) from error
    trained_on = tuple(dict.fromkeys(name for card in cards for name in card.trained_on))
    card = replace_fields(
        cards[0], {"title": f"average of {len(cards)} adapters", "trained_on": trained_on}
    )
    Adapted(base, "adapterhub", lambda folder: save_one(network, folder, NAME)).save(out, card)
