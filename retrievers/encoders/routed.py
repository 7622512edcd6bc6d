"""From a resolved model to its encoder; routed adapters: one for each query.

The vectors of a document by all adapters lie beside each other, and those of a query are 0 but for
its adapter's place: the inner product is that of the query and the document by that adapter,
exactly. So a document costs as much as with each adapter alone, together, and any search serves.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError, first_line
from retrievers.adapters.compose import Router, fit_router
from retrievers.adapters.identify import ROUTER
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer
from retrievers.encoders.python_object import HashingEncoder, ThirdPartyEncoder
from retrievers.encoders.transformer import TransformerEncoder
from retrievers.models.checkpoint import resolve_inside
from retrievers.models.model import Model, SharedNetworks
from retrievers.models.recipe import Recipe

QUERIES = 1_000  # of a domain: a mean, or a linear rule, needs no more


def open_routed_encoder(
    model: Model,
    device: str,
    tokens_per_batch: int | None = None,
    networks: SharedNetworks | None = None,
) -> Encoder:
    """The encoder of a model with routed adapters; arguments as of `open_encoder`."""
    routing, folder = model.routing, model.adapter
    assert routing is not None
    assert folder is not None
    shared, timer = networks or SharedNetworks(), PhaseTimer()

    def opened(own: Model) -> TransformerEncoder:
        return TransformerEncoder(own, device, tokens_per_batch, shared, timer)

    parts = [opened(model.with_adapter(resolve_inside(folder, name))) for name in routing.adapters]
    return RoutedEncoder(model.recipe, opened(model.with_adapter(None)), parts, folder / ROUTER)


def fit_router_on_queries(
    base: Model, domains: Sequence[Sequence[str]], device: str = "auto"
) -> Router:
    """The rule that finds the domain of a query, from queries of each.

    Args:
        domains: queries of each, of which up to `QUERIES` are read, drawn with seed 0.
    """
    encoder = TransformerEncoder(base, device)

    def vectors(texts: Sequence[str]) -> Float32Array:
        drawn = np.sort(np.random.default_rng(0).permutation(len(texts))[:QUERIES])
        return encoder.encode_queries([texts[row] for row in drawn.tolist()])

    return fit_router([vectors(texts) for texts in domains])


@dataclass
class RoutedEncoder(Encoder):
    """Queries by the adapter of their domain, documents by all, see the head of this module.

    Attributes:
        base: without an adapter; it counts the tokens, and finds the domain of a query.
        parts: with one adapter each.
        rule: file of the router.
    """

    recipe: Recipe
    base: TransformerEncoder
    parts: Sequence[TransformerEncoder]
    rule: Path

    @property
    def timer(self) -> PhaseTimer:
        """Of all adapters and the base."""
        return self.base.timer

    def for_dataset(self, name: str) -> "RoutedEncoder":
        """This encoder with the prompts of one dataset; queries are routed without those."""
        parts = [part.for_dataset(name) for part in self.parts]
        return replace(self, recipe=self.recipe.for_dataset(name), parts=parts)

    def route(self, texts: Sequence[str]) -> Int64Array:
        """Number of the adapter of each query, int64 ``(n,)``."""
        router = Router.read(self.rule, len(self.parts), self.base.dim)
        return router.choose(self.base.encode_queries(texts))

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Vectors of queries, float32 ``(n, dim)``."""
        chosen, width = self.route(texts), self.base.dim
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for number, part in enumerate(self.parts):
            rows = np.flatnonzero(chosen == number).tolist()
            if rows:
                own = part.encode_queries([texts[row] for row in rows], advance)
                vectors[rows, number * width : (number + 1) * width] = own
        return vectors

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Vectors of documents, float32 ``(n, dim)``."""
        *others, last = self.parts
        vectors = [part.encode_documents(titles, texts) for part in others]
        return np.hstack([*vectors, last.encode_documents(titles, texts, advance)])

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each query before it is cut, special tokens included."""
        return self.base.count_query_tokens(texts)

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Tokens of each document before it is cut, special tokens included."""
        return self.base.count_document_tokens(titles, texts)


def open_encoder(
    model: Model,
    device: str = "auto",
    tokens_per_batch: int | None = None,
    networks: SharedNetworks | None = None,
) -> Encoder:
    """The encoder of a resolved model. Weights load at its first call.

    Args:
        model: from ``resolve_model``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        tokens_per_batch: most tokens of one batch, padding included where there is some; None
            picks by device.
        bases: what encoders of several adapters are opened with, so that they share one base.

    Raises:
        BenchError: the model has no vectors (BM25), or a third party's class is missing or unfit.
    """
    if model.recipe.kind == "bm25":
        raise BenchError(f"{model.card.name} makes no vectors: it is searched as it is")
    if model.recipe.encoder:
        return _open_third_party(model.recipe, device)
    if model.recipe.kind == "hashing":
        return HashingEncoder(model.recipe)
    if model.routing is not None:
        return open_routed_encoder(model, device, tokens_per_batch, networks)
    return TransformerEncoder(model, device, tokens_per_batch, networks)


def _open_third_party(recipe: Recipe, device: str) -> Encoder:
    """An object of a third party's class, which may raise anything while it is made."""
    module, _, name = recipe.encoder.partition(":")
    try:
        encoder = getattr(importlib.import_module(module), name)(recipe, device)
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(
            f"cannot load the encoder class {recipe.encoder}: {first_line(error)}",
            "it is called with a recipe and a device: Class(recipe, device)",
        ) from error
    needed = ("recipe", "for_dataset", "encode_queries", "encode_documents")
    if missing := [part for part in needed if not hasattr(encoder, part)]:
        raise BenchError(
            f"the encoder class {recipe.encoder} has no {', '.join(missing)}",
            "it needs what retrievers.encoders.protocol.Encoder has",
        )
    return ThirdPartyEncoder(encoder, f"the encoder class {recipe.encoder}")
