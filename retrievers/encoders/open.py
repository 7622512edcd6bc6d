"""Open the encoder of a resolved model, the last step from a name to an encoder.

A routed document has the vectors of all adapters, concatenated; a routed query is 0 outside its
adapter's block. So the inner product is exactly that of the query and the document by that
adapter, and every search works. A document costs one encoding for each adapter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.files import resolve_inside
from retrievers.adapters.compose import Router
from retrievers.encoders.endpoint import EndpointEncoder
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer
from retrievers.encoders.python_object import HashingEncoder, open_third_party
from retrievers.encoders.transformer import SharedNetworks, TransformerEncoder
from retrievers.models.read_checkpoint import ROUTER
from retrievers.models.recipe import Recipe, Role
from retrievers.models.resolve import Model

ROUTING_QUERIES = 1_000  # queries per domain: a mean needs no more


def open_encoder(
    model: Model,
    device: str = "auto",
    tokens_per_batch: int | None = None,
    networks: SharedNetworks | None = None,
) -> Encoder:
    """Open the encoder of a resolved model. Weights are loaded at its first call.

    Args:
        model: result of `resolve_model`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        tokens_per_batch: most tokens of one batch, padding included; None picks by device.
        networks: loaded bases, so that encoders of several adapters share one.

    Raises:
        BenchError: the model has no vectors (BM25), or a third party's class is missing or unfit.
    """
    if model.recipe.kind == "bm25":
        raise BenchError(f"{model.card.name} makes no vectors")
    if model.recipe.encoder:
        return open_third_party(model.recipe, device)
    if model.recipe.kind == "hashing":
        return HashingEncoder(model.recipe)
    if model.recipe.kind == "endpoint":
        return EndpointEncoder(model.recipe, model.card).with_dimension()
    if model.routing is None or model.adapter is None:
        return TransformerEncoder(model, device, tokens_per_batch, networks)
    networks, timer = networks or SharedNetworks(), PhaseTimer()
    folders = [resolve_inside(model.adapter, name) for name in model.routing.adapters]
    base, *parts = (
        TransformerEncoder(model.with_adapter(part), device, tokens_per_batch, networks, timer)
        for part in (None, *folders)
    )
    return RoutedEncoder(model.recipe, base, parts, model.adapter / ROUTER)


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
        """Return this encoder with the prompts of dataset ``name``, which routing ignores."""
        parts = [part.for_dataset(name) for part in self.parts]
        return replace(self, recipe=self.recipe.for_dataset(name), parts=parts)

    @property
    def allow_unknown_tokens(self) -> bool:
        """See `TransformerEncoder`."""
        return self.base.allow_unknown_tokens

    def unknown_share(self, titles: Sequence[str], texts: Sequence[str]) -> float:
        """Return the share of unknown tokens of ``titles`` with ``texts``, 0 to 1."""
        return self.base.unknown_share(titles, texts)

    def hash_tokens(self, role: Role) -> str:
        """Return the hash of token ids for ``role`` of an adapter's encoder: all have the same."""
        return self.parts[0].hash_tokens(role)

    def route(self, texts: Sequence[str]) -> Int64Array:
        """Return the adapter's number for each query in ``texts``, int64 ``(n,)``."""
        router = Router.read(self.rule, len(self.parts), self.base.dim)
        return router.choose(self.base.encode_queries(texts))

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries, float32 ``(n, dim)``."""
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
        """Encode ``titles`` with ``texts``, float32 ``(n, dim)``."""
        *others, last = self.parts
        vectors = [part.encode_documents(titles, texts) for part in others]
        return np.hstack([*vectors, last.encode_documents(titles, texts, advance)])

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each query in ``texts`` before truncation, with special tokens."""
        return self.base.count_query_tokens(texts)

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Count the tokens of ``titles`` with ``texts`` before truncation, with special tokens."""
        return self.base.count_document_tokens(titles, texts)


def fit_router_on_queries(
    base: Model, domains: Sequence[Sequence[str]], device: str = "auto"
) -> Router:
    """Fit the rule that finds the domain of a query, from queries of each domain.

    Args:
        base: the model without an adapter.
        domains: queries of each domain, of which up to `ROUTING_QUERIES` are drawn with seed 0.
        device: device to encode on.
    """
    encoder, vectors = TransformerEncoder(base, device), []
    for texts in domains:
        drawn = np.sort(np.random.default_rng(0).permutation(len(texts))[:ROUTING_QUERIES])
        vectors.append(encoder.encode_queries([texts[row] for row in drawn.tolist()]))
    return Router.fit(vectors)
