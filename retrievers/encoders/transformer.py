"""Open the encoder of a model, and encode by a transformer.

Texts are joined with titles and prompts, tokenised, batched by length, encoded, and put back into
order. The order of work depends on the list of texts alone, so that the same list on the same
machine gives the same bytes. torch is imported with the weights, at the first call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from foundation.files import resolve_inside
from retrievers.adapters.compose import Router
from retrievers.encoders.endpoint import EndpointEncoder
from retrievers.encoders.hashing import HashingEncoder
from retrievers.encoders.objects import open_object
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer, Segments, join_segments
from retrievers.encoders.ready_vectors import ReadyVectors
from retrievers.encoders.tokens import Tokens, hash_tokens
from retrievers.models.adapter_files import ROUTER
from retrievers.models.card import Recipe, Role
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.resolve import Model

if TYPE_CHECKING:
    import torch

    from retrievers.encoders.tower import Tower, VectorBatches

CPU_TOKENS = 1_024  # per batch; each thread computes one batch
CUDA_TOKENS = 65_536
LISTS_IN_FLIGHT = 3  # lists of texts, so that a GPU never waits for the next one
# Attributes of `TransformerEncoder` that adapters do not change.
OF_THE_BASE = (
    *("timer", "unknown_share", "allow_unknown_tokens"),
    *("count_query_tokens", "count_document_tokens"),
)
ROUTING_QUERIES = 1_000  # queries per domain: a mean needs no more


# Networks with adapters, as long as an encoder uses them. Weights must not be changed.
_bases: WeakValueDictionary[tuple[Path, str, str, bool], Any] = WeakValueDictionary()


def _load_shared_base(checkpoint: Checkpoint, recipe: Recipe) -> Any:
    """Return the transformer of ``checkpoint``, whose parameters all adapters of it share.

    Each encoder gets modules of its own, so that an adapter does not affect the others.
    """
    from retrievers.models.loading import load_network

    pooler = recipe.pooling == "pooler"
    key = (checkpoint.folder, checkpoint.weights_sha256, recipe.dtype, pooler)
    base = _bases.get(key)
    if base is None:
        base = _bases[key] = load_network(checkpoint, recipe)
    shared = [*base.parameters(), *base.buffers()]
    own = deepcopy(base, {id(tensor): tensor for tensor in shared})
    vars(own)["shared_base"] = base  # not as a submodule
    return own


def open_encoder(model: Model, device: str = "auto") -> Encoder:
    """Open the encoder of a resolved model. Weights are loaded at its first call.

    Args:
        model: result of `resolve_model`.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        BenchError: the model has no vectors (BM25), or code of the user cannot be used.
    """
    opener = OPENERS.get(model.recipe.kind)
    if opener is None:
        raise BenchError(f"{model.card.name} makes no vectors", "Use a model that encodes texts.")
    return opener(replace(model, recipe=model.recipe.uncompressed), device)


def _open_transformer(model: Model, device: str) -> Encoder:
    if model.routing is None or model.adapter is None:
        return TransformerEncoder(model, device)
    timer = PhaseTimer()
    folders = [resolve_inside(model.adapter, name) for name in model.routing.adapters]
    base, *parts = (
        TransformerEncoder(model.with_adapter(part), device, timer) for part in (None, *folders)
    )
    return RoutedEncoder(model.recipe, base, parts, model.adapter / ROUTER)


# By kind of model; a kind without vectors is not listed.
OPENERS: Mapping[str, Callable[[Model, str], Encoder]] = {
    "transformer": _open_transformer,
    "hashing": lambda model, _: HashingEncoder(model.recipe),
    "python": open_object,
    "endpoint": lambda model, _: EndpointEncoder(model.recipe, model.card).with_dimension(),
    "vectors": lambda model, _: ReadyVectors(
        model.recipe, model.checkpoint.files, model.card.title
    ),
}


class TransformerEncoder(Encoder):
    """A transformer bi-encoder: see `Encoder` for its methods.

    Args:
        model: resolved transformer model.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        timer: timer to share with other encoders; None for a new one.

    Attributes:
        timer: seconds of ``load``, ``tokenise``, ``copy`` and ``forward``, and the number of
            ``tokens``, shared by all results of ``for_dataset``.
    """

    def __init__(self, model: Model, device: str = "auto", timer: PhaseTimer | None = None) -> None:
        self.recipe: Recipe = model.recipe
        self.timer = timer or PhaseTimer()
        self.allow_unknown_tokens = model.allow_unknown_tokens
        self._towers = _Towers(model, device, self.timer)

    def for_dataset(self, name: str) -> "TransformerEncoder":
        """Return this encoder with the prompts of dataset ``name``. Loaded weights are shared."""
        other = copy(self)
        other.recipe = self.recipe.for_dataset(name)
        return other

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries, float32 ``(n, dim)``. ``advance`` counts texts."""
        segments = self._query_segments(texts)
        return self._prepare(self._towers.query, segments, self.recipe.max_query_tokens)(advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts``, float32 ``(n, dim)``. ``advance`` counts documents."""
        return self.prepare_documents(titles, texts)(advance)

    def prepare_documents(self, titles: Sequence[str], texts: Sequence[str]) -> "PreparedTexts":
        """Tokenise documents now, and return an object that encodes them when called.

        Another thread can tokenise the next documents meanwhile. The vectors are equal to those of
        ``encode_documents``.
        """
        segments = self._document_segments(titles, texts)
        return self._prepare(self._towers.document, segments, self.recipe.max_document_tokens)

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each query in ``texts`` before truncation, with special tokens."""
        tokens = self._towers.query.tokenize(self._query_segments(texts), None)
        return list(map(int, tokens.lengths))

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Count the tokens of ``titles`` with ``texts`` before truncation, with special tokens."""
        segments = self._document_segments(titles, texts)
        return list(map(int, self._towers.document.tokenize(segments, None).lengths))

    def unknown_share(self, titles: Sequence[str], texts: Sequence[str]) -> float:
        """Return the share of unknown tokens of ``titles`` with ``texts``, 0 to 1."""
        tower, segments = self._towers.document, self._document_segments(titles, texts)
        return tower.text_tokenizer.unknown_share(segments, tower.tokenizer.unk_token_id)

    def hash_tokens(self, role: Role) -> str:
        """Return a hash of the token ids of fixed texts with the prompt and length of ``role``.

        Roles with equal recipes of their side have equal hashes.
        """
        model = self._towers.model
        checkpoint = model.query if role == "query" and model.query else model.checkpoint
        return hash_tokens(checkpoint, self.recipe.side(role))

    def _query_segments(self, texts: Sequence[str]) -> list[Segments]:
        return [(self.recipe.prompts.query + text, None) for text in texts]

    def _document_segments(self, titles: Sequence[str], texts: Sequence[str]) -> list[Segments]:
        is_separated = self.recipe.title_join == "sep"
        separator = self._towers.document.separator if is_separated else ""
        return join_segments(self.recipe, titles, texts, separator)

    def _prepare(
        self, tower: "Tower", segments: list[Segments], max_tokens: int | None
    ) -> "PreparedTexts":
        distinct: dict[Segments, int] = {}
        rows = [distinct.setdefault(text, len(distinct)) for text in segments]
        tokens = tower.tokenize(list(distinct), max_tokens)
        budget = CUDA_TOKENS if tower.is_asynchronous else CPU_TOKENS
        batches = list(plan_batches(tokens.lengths, budget, tower.is_packed, tower.mixable_length))
        return PreparedTexts(tower, tokens, batches, np.array(rows, np.int64))


class PreparedTexts:
    """Tokenised texts that are encoded when called.

    Args:
        tower: encoder of the texts.
        tokens: token ids of the distinct texts.
        batches: rows of ``tokens`` in each batch.
        rows: int64 ``(n,)``, row of each text in ``tokens``.

    Attributes:
        in_flight: number of such objects to launch before the first is called.
    """

    def __init__(
        self, tower: "Tower", tokens: Tokens, batches: Sequence[Int64Array], rows: Int64Array
    ) -> None:
        self._tower, self._tokens, self._batches, self._rows = tower, tokens, batches, rows
        self._launched: VectorBatches | None = None
        self.in_flight = LISTS_IN_FLIGHT if tower.is_asynchronous else 1

    def launch(self) -> None:
        """Start encoding on a GPU without waiting. On the CPU, do nothing."""
        if self._tower.is_asynchronous:
            self._launched = self._tower.launch(self._tokens, self._batches)

    def __call__(self, advance: Callback | None = None) -> Float32Array:
        """Return the vectors of all texts, float32 ``(n, dim)``. ``advance`` counts texts."""
        vectors = np.empty((len(self._tokens), self._tower.dim), dtype=np.float32)
        launched, self._launched = self._launched, None
        for rows, encoded in launched or self._tower.vectors(self._tokens, self._batches):
            vectors[rows] = encoded
            if advance:
                advance(len(rows))
        repeated = len(self._rows) - len(vectors)
        if advance and repeated:
            advance(repeated)
        return vectors[self._rows] if repeated else vectors


@dataclass(frozen=True)
class _Towers:
    """Encoders of queries and documents, loaded at first use; one object if they share weights."""

    model: Model
    device_name: str
    timer: PhaseTimer

    @cached_property
    def device(self) -> "torch.device":
        from retrievers.encoders.device import pick_device, warn_if_bfloat16_is_slow

        recipe = self.model.recipe
        only_cpu = recipe.backend != "torch" and self.device_name == "auto"
        device = pick_device("cpu" if only_cpu else self.device_name)
        if recipe.dtype == "float16" and device.type == "cpu":  # it is slow there and overflows
            raise BenchError("float16 needs a GPU", "Use --dtype bfloat16 or --dtype float32.")
        warn_if_bfloat16_is_slow(recipe.dtype, device)
        return device

    @cached_property
    def document(self) -> "Tower":
        return self._load(self.model.checkpoint)

    @cached_property
    def query(self) -> "Tower":
        return self._load(self.model.query) if self.model.query else self.document

    def _load(self, checkpoint: Checkpoint) -> "Tower":
        with self.timer.phase("load"):
            from retrievers.encoders.tower import Tower  # importing torch is most of loading

            recipe, adapter = self.model.recipe, self.model.adapter
            load = _load_shared_base if adapter else None
            return Tower(checkpoint, recipe, adapter, self.device, self.timer, load)


def plan_batches(
    lengths: Int64Array,
    tokens_per_batch: int,
    packed: bool = False,
    mixable_length: int | None = None,
) -> Iterator[Int64Array]:
    """Yield the rows of each batch, longest texts first. A longer text is a batch of its own.

    Args:
        lengths: int64 ``(n,)``, tokens of each text.
        tokens_per_batch: most tokens of a batch.
        packed: count tokens without padding; otherwise each text as long as the batch's longest.
        mixable_length: tokens beyond which a batch has texts of one length; None for no such limit.
    """
    order = np.argsort(-lengths, kind="stable")
    ends = lengths[order].cumsum()
    start = 0
    while start < len(order):
        first = int(lengths[order[start]])
        if packed:
            most = ends[start] - first + tokens_per_batch
            stop = int(np.searchsorted(ends, most, side="right"))
        else:
            stop = start + tokens_per_batch // max(1, first)
        if mixable_length is not None and first > mixable_length:
            stop = min(stop, int(np.searchsorted(-lengths[order], -first, side="right")))
        stop = max(start + 1, stop)
        yield order[start:stop]
        start = stop


@dataclass
class RoutedEncoder(Encoder):
    """An encoder that encodes a query by the adapter of its domain, and documents by all adapters.

    A document has the vectors of all adapters, concatenated; a query is 0 outside its adapter's
    block. So the inner product is exactly that of the query and the document by that adapter, and
    every search works. ``base``, without an adapter, finds the domain by the router in ``rule``.
    """

    recipe: Recipe
    base: TransformerEncoder
    parts: Sequence[TransformerEncoder]
    rule: Path

    def __post_init__(self) -> None:
        """Take over what the base alone determines, such as the timer that all parts share."""
        for name in OF_THE_BASE:
            setattr(self, name, getattr(self.base, name))

    def for_dataset(self, name: str) -> "RoutedEncoder":
        """Return this encoder with the prompts of dataset ``name``, which routing ignores."""
        parts = [part.for_dataset(name) for part in self.parts]
        return replace(self, recipe=self.recipe.for_dataset(name), parts=parts)

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


def fit_router_on_queries(
    base: Model, domains: Sequence[Sequence[str]], device: str = "auto"
) -> Router:
    """Fit the rule that finds the domain of a query, from queries of each domain.

    ``base`` has no adapter. Up to `ROUTING_QUERIES` of each domain are drawn with seed 0.
    """
    encoder, vectors = TransformerEncoder(base, device), []
    for texts in domains:
        drawn = np.sort(np.random.default_rng(0).permutation(len(texts))[:ROUTING_QUERIES])
        vectors.append(encoder.encode_queries([texts[row] for row in drawn.tolist()]))
    return Router.fit(vectors)
