"""The encoder that routes each query to one of several adapters.

A routed document has the vectors of all adapters, concatenated; a routed query is 0 outside its
adapter's block. So the inner product is exactly that of the query and the document by that
adapter, and every search works. A document costs one encoding for each adapter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.files import resolve_inside
from retrievers.adapters.compose import Router, fit_router
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer
from retrievers.encoders.transformer import SharedNetworks, TransformerEncoder
from retrievers.models.read_adapter import ROUTER
from retrievers.models.recipe import Recipe
from retrievers.models.resolve import Model

QUERIES = 1_000  # queries per domain: a mean needs no more


def open_routed_encoder(
    model: Model,
    device: str,
    tokens_per_batch: int | None = None,
    networks: SharedNetworks | None = None,
) -> Encoder:
    """Open the encoder of a model with routed adapters.

    See `open_encoder` for the arguments.

    Args:
        model: resolved model with a routing.
        device: device of all its networks.
        tokens_per_batch: most tokens of one batch; None picks by device.
        networks: loaded bases to share.
    """
    routing, folder = model.routing, model.adapter
    assert routing is not None
    assert folder is not None
    shared, timer = networks or SharedNetworks(), PhaseTimer()

    def load(part: Model) -> TransformerEncoder:
        return TransformerEncoder(part, device, tokens_per_batch, shared, timer)

    parts = [load(model.with_adapter(resolve_inside(folder, name))) for name in routing.adapters]
    return RoutedEncoder(model.recipe, load(model.with_adapter(None)), parts, folder / ROUTER)


def fit_router_on_queries(
    base: Model, domains: Sequence[Sequence[str]], device: str = "auto"
) -> Router:
    """Fit the rule that finds the domain of a query, from queries of each domain.

    Args:
        base: the model without an adapter.
        domains: queries of each domain, of which up to `QUERIES` are drawn with seed 0.
        device: device to encode on.
    """
    encoder = TransformerEncoder(base, device)

    def vectors(texts: Sequence[str]) -> Float32Array:
        drawn = np.sort(np.random.default_rng(0).permutation(len(texts))[:QUERIES])
        return encoder.encode_queries([texts[row] for row in drawn.tolist()])

    return fit_router([vectors(texts) for texts in domains])


@dataclass
class RoutedEncoder(Encoder):
    """An encoder that encodes a query by the adapter of its domain, and documents by all adapters.

    Attributes:
        recipe: recipe of the routed model.
        base: encoder without an adapter; it counts tokens and finds the domain of a query.
        parts: one encoder for each adapter.
        rule: file of the router.
    """

    recipe: Recipe
    base: TransformerEncoder
    parts: Sequence[TransformerEncoder]
    rule: Path

    @property
    def timer(self) -> PhaseTimer:
        """Timer shared by the base and all adapters."""
        return self.base.timer

    def for_dataset(self, name: str) -> "RoutedEncoder":
        """Return this encoder with the prompts of dataset ``name``.

        Routing ignores those prompts.
        """
        parts = [part.for_dataset(name) for part in self.parts]
        return replace(self, recipe=self.recipe.for_dataset(name), parts=parts)

    def route(self, texts: Sequence[str]) -> Int64Array:
        """Return the adapter's number for each query in ``texts``, int64 ``(n,)``."""
        router = Router.read(self.rule, len(self.parts), self.base.dim)
        return router.choose(self.base.encode_queries(texts))

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries, float32 ``(n, dim)``.

        ``advance`` counts texts.
        """
        chosen, width = self.route(texts), self.base.dim
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for number, part in enumerate(self.parts):
            rows = np.flatnonzero(chosen == number).tolist()
            if rows:
                encoded = part.encode_queries([texts[row] for row in rows], advance)
                vectors[rows, number * width : (number + 1) * width] = encoded
        return vectors

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts``, float32 ``(n, dim)``.

        ``advance`` counts documents.
        """
        *others, last = self.parts
        vectors = [part.encode_documents(titles, texts) for part in others]
        return np.hstack([*vectors, last.encode_documents(titles, texts, advance)])

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each query in ``texts`` before truncation, with special tokens."""
        return self.base.count_query_tokens(texts)

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Count the tokens of ``titles`` with ``texts`` before truncation, with special tokens."""
        return self.base.count_document_tokens(titles, texts)
