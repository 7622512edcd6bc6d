"""Task arithmetic: what trainings of one model changed, added up without training.

Ilharco et al., "Editing Models with Task Arithmetic", ICLR 2023, https://arxiv.org/abs/2212.04089.
With θ_0 the model that all trainings began from, and τ_i = θ_i − θ_0 the task vector of one:

    θ = θ_0 + Σ_i λ_i τ_i = (1 − Σ_i λ_i) θ_0 + Σ_i λ_i θ_i

λ_i < 0 takes back what a training learnt. Where the λ are of sum 1, θ_0 drops out, and θ is the
weighted mean of the trained models: the merge of branch-train-merge (Li et al., 2022,
https://arxiv.org/abs/2208.03306).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from foundation.errors import BenchError
from retrievers.models.card import Card, of_no_checkpoint, replace_fields
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.loading import load_network, load_tokenizer, weighted_sum
from retrievers.models.model import Model, resolve_model
from retrievers.training.engine.save import save_checkpoint

OF_VECTORS = ("pooling", "normalize", "similarity", "prompts", "title_join", "lower_case")


def add_tasks(
    base: str, folders: Sequence[Path], out: Path, weights: Sequence[float] | None = None
) -> None:
    """Write the sum of a model and of what trainings changed of it, as ``--model OUT`` takes it.

    Args:
        base: card, folder or Hub id that every training began from.
        folders: of the trained models, one or more; the card of the first says how vectors are
            made.
        weights: λ of each; None for equal ones of sum 1.

    Raises:
        BenchError: a model that is no plain encoder or is of another network or vocabulary, models
            whose vectors are made in different ways, or weights that are not one number for each.
    """
    shares = _shares(weights, len(folders))
    trained = [resolve_model(str(folder)) for folder in folders]
    start = resolve_model(base)
    for model in trained[1:]:
        _check_vectors(trained[0].card, model.card)
    tokenizers = [
        load_tokenizer(_plain(model), model.recipe.truncation_side, model.recipe.lower_case)
        for model in (start, *trained)
    ]
    if any(other.get_vocab() != tokenizers[0].get_vocab() for other in tokenizers[1:]):
        raise BenchError(
            "these models have different vocabularies, so that their weights are of other words",
            "name the model that all trainings began from with --base",
        )
    networks = [load_network(_plain(model), model.recipe) for model in (start, *trained)]
    add_changes(networks[0], networks[1:], shares)
    network: Any = networks[1]
    save_checkpoint(network, tokenizers[1], out, _card(trained, start))


def add_changes(start: nn.Module, trained: Sequence[nn.Module], weights: Sequence[float]) -> None:
    """Give the first trained module the weights θ of the sum; the others stay as they are.

    Args:
        start: θ_0.
        trained: θ_i, one or more.
        weights: λ_i, one for each.

    Raises:
        BenchError: they are not of one network.
    """
    total = weighted_sum(
        [dict(module.named_parameters()) for module in (start, *trained)],
        [1 - math.fsum(weights), *weights],
    )
    for name, weight in trained[0].named_parameters():
        weight.data.copy_(total[name])


def _shares(weights: Sequence[float] | None, count: int) -> Sequence[float]:
    if weights is None:
        return [1 / count] * count
    if len(weights) != count or not all(map(math.isfinite, weights)):
        raise BenchError(f"{len(weights)} weights for {count} models", "one number for each")
    return weights


def _plain(model: Model) -> Checkpoint:
    """The checkpoint of a model that is one encoder and nothing else.

    Raises:
        BenchError: it is more than that, or another kind of model.
    """
    if model.document is None or model.query or model.adapter or model.recipe.kind != "transformer":
        raise BenchError(
            f"{model.card.name} is no plain encoder, whose weights could be added",
            "adapters are averaged: compose average",
        )
    return model.document


def _check_vectors(first: Card, other: Card) -> None:
    different = [name for name in OF_VECTORS if getattr(first, name) != getattr(other, name)]
    if different:
        raise BenchError(
            f"{first.name} and {other.name} make vectors in different ways: {', '.join(different)}",
            "add models that were trained to be used alike",
        )


def _card(trained: Sequence[Model], start: Model) -> Card:
    cards = [model.card for model in (start, *trained)]
    seen = tuple(dict.fromkeys(name for card in cards for name in card.trained_on))
    names = ", ".join(model.card.name for model in trained)
    own = {
        "title": f"{start.card.name} and what was learnt by {names}",
        "checkpoint": ".",
        "trained_on": seen,
        "dtype": "float32",
    }
    return replace_fields(trained[0].card, of_no_checkpoint() | own)
