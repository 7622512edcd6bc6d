"""Routing of each query to one of several adapters: the rule, its model and its encoder.

A query takes the adapter of the closest domain, among the training queries of each domain as the
base encodes them. The rule is linear in the unit vector x of the query: the largest w_i x + b_i,
and the first of equal ones. ``centroid`` is the nearest mean (AdapterSoup, see
`retrievers.adapters.compose`, chooses a corpus's adapters by the similarity of mean vectors).

A routed document has the vectors of all adapters, concatenated; a routed query is 0 outside its
adapter's block. So the inner product is exactly that of the query and the document by that
adapter, and every search works. A document costs one encoding for each adapter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from foundation.arrays import Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError
from foundation.files import resolve_inside
from foundation.records import write_json
from retrievers.adapters.folder import AdaptedNetwork, find_adapters
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer
from retrievers.encoders.transformer import SharedNetworks, TransformerEncoder
from retrievers.models.read_adapter import ROUTER, ROUTING, Routing
from retrievers.models.recipe import Recipe, Role
from retrievers.models.resolve import Model

QUERIES = 1_000  # queries per domain: a mean needs no more


@dataclass(frozen=True, eq=False)
class Router:
    """Linear rule that chooses an adapter for a query.

    Attributes:
        weight: float64 ``(adapters, dim)``.
        bias: float64 ``(adapters,)``.
    """

    weight: Float64Array
    bias: Float64Array

    def choose(self, vectors: Float32Array) -> Int64Array:
        """Return the adapter's number for each of the base's ``vectors`` ``(n, dim)``, as int64."""
        chosen: Int64Array = np.argmax(normalize_rows(vectors) @ self.weight.T + self.bias, axis=1)
        return chosen

    def save(self, path: Path) -> None:
        """Write the rule to ``path`` as safetensors."""
        save_file({"weight": self.weight, "bias": self.bias}, path)

    @classmethod
    def read(cls, path: Path, adapters: int, dim: int) -> "Router":
        """Read a rule.

        Args:
            path: file that ``save`` wrote.
            adapters: expected number of adapters.
            dim: expected dimension.

        Raises:
            BenchError: the file is damaged, or its shapes differ.
        """
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise BenchError(f"{path} is damaged", "compose the adapters again") from error
        shapes = {name: value.shape for name, value in tensors.items()}
        if shapes != {"weight": (adapters, dim), "bias": (adapters,)}:
            raise BenchError(f"{path} is not for {adapters} adapters and {dim} dimensions")
        return cls(tensors["weight"], tensors["bias"])


def fit_router(domains: Sequence[Float32Array]) -> Router:
    """Fit the rule that finds the domain of a text: the nearest mean.

    Args:
        domains: for each domain, the base's vectors of one or more texts, float32 ``(n_i, dim)``.
    """
    means = np.stack([normalize_rows(vectors).mean(axis=0) for vectors in domains])
    return Router(means, -0.5 * (means**2).sum(axis=1))  # |x - m|^2 = |x|^2 - 2 (x m - |m|^2/2)


def normalize_rows(vectors: Float32Array) -> Float64Array:
    """Scale ``vectors`` ``(n, dim)`` to length 1 in float64. Zero vectors stay."""
    doubles = vectors.astype(np.float64)
    lengths = np.linalg.norm(doubles, axis=1, keepdims=True)
    return doubles / np.where(lengths > 0, lengths, 1)


def route_adapters(
    base: Model,
    folders: Sequence[Path],
    out: Path,
    domains: Sequence[Sequence[str]],
    router: Router,
) -> None:
    """Write trained adapters as one model that chooses an adapter for each query.

    Args:
        base: model that all were trained on.
        folders: folders of finished trainings or of adapters. The first card among them determines
            how vectors are made.
        out: folder to write.
        domains: for each adapter, the collections that it is for.
        router: rule that chooses an adapter for a query.

    Raises:
        BenchError: fewer than two adapters, or one belongs to another base.
    """
    parts = find_adapters(base, folders, composed=True)
    names = tuple(f"part_{place}" for place in range(1, len(parts.folders) + 1))
    routing = Routing(adapters=names, domains=tuple(map(tuple, domains)))
    card = parts.card(0, f"{len(names)} adapters, routed by {routing.by}")

    def write(folder: Path) -> None:
        parts.copy(folder, names)
        router.save(folder / ROUTER)
        write_json(folder / ROUTING, routing)

    AdaptedNetwork(base, "routed", write).save(out, card)


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
