"""From a resolved model to its encoder; which libraries are imported depends on the model."""

import importlib
from typing import Any

from foundation.errors import BenchError
from retrievers.encoders.protocol import Encoder
from retrievers.models.model import Bases, Model


def open_encoder(
    model: Model,
    device: str = "auto",
    tokens_per_batch: int | None = None,
    bases: Bases | None = None,
) -> Encoder:
    """The encoder of a resolved model. Weights load at its first call.

    Args:
        model: from ``resolve_model``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        tokens_per_batch: most tokens of one batch, padding included where there is some; None
            picks by device.
        bases: what encoders of several adapters are opened with, so that they share one base.

    Raises:
        BenchError: the model has no vectors (BM25), or a third party's class is missing.
    """
    if model.recipe.kind == "bm25":
        raise BenchError(f"{model.card.name} makes no vectors: it is searched as it is")
    if model.recipe.encoder:
        encoder: Encoder = _load_class(model.recipe.encoder)(model.recipe, device)
        return encoder
    if model.recipe.kind == "hashing":
        from retrievers.encoders.hashing import HashingEncoder

        hashing: Encoder = HashingEncoder(model.recipe)
        return hashing
    if model.routing is not None:
        from retrievers.encoders.routed import open_routed

        return open_routed(model, device, tokens_per_batch, bases)
    from retrievers.encoders.transformer import TransformerEncoder

    return TransformerEncoder(model, device, tokens_per_batch, bases)


def _load_class(encoder: str) -> Any:
    module, _, name = encoder.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BenchError(f"cannot load the encoder class {encoder}: {error}") from error
