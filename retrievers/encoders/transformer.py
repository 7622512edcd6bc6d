"""The encoder of every transformer card: join, tokenise, batch by length, encode, restore order.

The order of work depends on the list of texts alone, so that the same list on the same machine
gives the same bytes. torch is imported with the weights, at the first call.
"""

from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import Callback, Encoder, PhaseTimer, Segments, join
from retrievers.encoders.tokens import Tokens, hash_tokens
from retrievers.models.read_checkpoint import Checkpoint
from retrievers.models.recipe import Recipe, Role
from retrievers.models.resolve import Model

if TYPE_CHECKING:
    import torch

    from retrievers.encoders.tower import Tower, Vectors

CPU_TOKENS = 1_024  # per batch; each thread computes one batch
CUDA_TOKENS = 65_536
LISTS_IN_FLIGHT = 3  # lists of texts, so that a GPU never waits for the next one


class SharedNetworks:
    """Loaded networks that the encoders of several adapters share.

    Each encoder gets its own modules with the parameter tensors of the base: an adapter attached to
    one does not affect the others, and the base is in memory once. Weights must not be changed.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[Path, str, str, bool], Any] = {}

    def network(self, checkpoint: Checkpoint, recipe: Recipe) -> Any:
        """Return the transformer of ``checkpoint`` for ``recipe``, with shared parameters."""
        from retrievers.models.loading import load_network

        pooler = recipe.pooling == "pooler"
        key = (checkpoint.folder, checkpoint.weights_sha256, recipe.dtype, pooler)
        if key not in self._loaded:
            self._loaded[key] = load_network(checkpoint, recipe)
        network = self._loaded[key]
        shared = [*network.parameters(), *network.buffers()]
        return deepcopy(network, {id(tensor): tensor for tensor in shared})


class TransformerEncoder(Encoder):
    """A transformer bi-encoder.

    See `Encoder` for its methods.

    Args:
        model: resolved transformer model.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        tokens_per_batch: most tokens of one batch, padding included; None picks by device.
        networks: networks that the encoders of several adapters share.
        timer: timer to share with other encoders; None for a new one.

    Attributes:
        recipe: everything that determines the vectors.
        timer: seconds of ``load``, ``tokenise``, ``copy`` and ``forward``, and the number of
            ``tokens``, shared by all results of ``for_dataset``.
    """

    def __init__(
        self,
        model: Model,
        device: str = "auto",
        tokens_per_batch: int | None = None,
        networks: SharedNetworks | None = None,
        timer: PhaseTimer | None = None,
    ) -> None:
        self.recipe: Recipe = model.recipe
        self.timer = timer or PhaseTimer()
        self._towers = _Towers(model, device, self.timer, networks)
        self._budget = tokens_per_batch

    def for_dataset(self, name: str) -> "TransformerEncoder":
        """Return this encoder with the prompts of dataset ``name``.

        Loaded weights are shared.
        """
        other = copy(self)
        other.recipe = self.recipe.for_dataset(name)
        return other

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries, float32 ``(n, dim)``.

        ``advance`` counts texts.
        """
        segments = self._query_segments(texts)
        return self._prepare(self._towers.query, segments, self.recipe.max_query_tokens)(advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts``, float32 ``(n, dim)``.

        ``advance`` counts documents.
        """
        return self.prepare_documents(titles, texts)(advance)

    def prepare_documents(self, titles: Sequence[str], texts: Sequence[str]) -> "PreparedTexts":
        """Tokenise documents now, and return an object that encodes them when called.

        Another thread can tokenise the next documents meanwhile. The vectors are equal to those of
        ``encode_documents``.

        Args:
            titles: title of each document.
            texts: text of each document.
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

    @property
    def allow_unknown_tokens(self) -> bool:
        """True if texts may consist mostly of unknown tokens."""
        return self._towers.model.allow_unknown_tokens

    def unknown_share(self, titles: Sequence[str], texts: Sequence[str]) -> float:
        """Return the share of tokens of documents that the tokenizer does not know, 0 to 1.

        Args:
            titles: title of each document.
            texts: text of each document.
        """
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
        if len(titles) != len(texts):
            raise BenchError(f"{len(titles)} titles for {len(texts)} texts")
        rule, prompt = self.recipe.title_join, self.recipe.prompts.document
        separator = self._towers.document.separator if rule == "sep" else ""
        return [
            join(rule, prompt, title, text, separator)
            for title, text in zip(titles, texts, strict=True)
        ]

    def _prepare(
        self, tower: "Tower", segments: list[Segments], max_tokens: int | None
    ) -> "PreparedTexts":
        first = find_first_occurrences(segments)
        distinct = np.flatnonzero(first == np.arange(len(segments)))
        tokens = tower.tokenize([segments[row] for row in distinct.tolist()], max_tokens)
        budget = self._budget or self._towers.default_budget
        batches = list(plan_batches(tokens.lengths, budget, tower.is_packed))
        return PreparedTexts(tower, tokens, batches, distinct, first)


class PreparedTexts:
    """Tokenised texts that are encoded when called.

    Args:
        tower: encoder of the texts.
        tokens: token ids of the distinct texts.
        batches: rows of ``tokens`` in each batch.
        distinct: int64, positions of the distinct texts among all.
        first: int64 ``(n,)``, for each text the position of the first equal one.

    Attributes:
        lists_in_flight: number of such objects to launch before the first is called.
    """

    def __init__(
        self,
        tower: "Tower",
        tokens: Tokens,
        batches: Sequence[Int64Array],
        distinct: Int64Array,
        first: Int64Array,
    ) -> None:
        self._tower, self._tokens, self._batches = tower, tokens, batches
        self._distinct, self._first = distinct, first
        self._launched: Vectors | None = None
        self.lists_in_flight = LISTS_IN_FLIGHT if tower.is_asynchronous else 1

    def launch(self) -> None:
        """Start encoding on a GPU without waiting.

        On the CPU, do nothing.
        """
        if self._tower.is_asynchronous:
            self._launched = self._tower.launch(self._tokens, self._batches)

    def __call__(self, advance: Callback | None = None) -> Float32Array:
        """Return the vectors of all texts, float32 ``(n, dim)``.

        ``advance`` counts texts.
        """
        first, distinct = self._first, self._distinct
        vectors = np.empty((len(first), self._tower.dim), dtype=np.float32)
        launched, self._launched = self._launched, None
        for rows, encoded in launched or self._tower.vectors(self._tokens, self._batches):
            vectors[distinct[rows]] = encoded
            if advance:
                advance(len(rows))
        repeated = np.flatnonzero(first != np.arange(len(first)))
        vectors[repeated] = vectors[first[repeated]]
        if advance and len(repeated):
            advance(len(repeated))
        return vectors


@dataclass(frozen=True)
class _Towers:
    """Encoders of queries and documents, loaded at first use.

    One object if they share weights.
    """

    model: Model
    device_name: str
    timer: PhaseTimer
    networks: SharedNetworks | None

    @cached_property
    def device(self) -> "torch.device":
        from retrievers.encoders.device import pick_device
        from retrievers.encoders.tower import check_dtype

        recipe = self.model.recipe
        only_cpu = recipe.backend != "torch" and self.device_name == "auto"
        device = pick_device("cpu" if only_cpu else self.device_name)
        check_dtype(recipe.dtype, device)
        return device

    @cached_property
    def document(self) -> "Tower":
        return self._load(self.model.checkpoint)

    @cached_property
    def query(self) -> "Tower":
        return self._load(self.model.query) if self.model.query else self.document

    @property
    def default_budget(self) -> int:
        return CUDA_TOKENS if self.device.type == "cuda" else CPU_TOKENS

    def _load(self, checkpoint: Checkpoint) -> "Tower":
        with self.timer.phase("load"):
            from retrievers.encoders.tower import Tower  # importing torch is most of loading

            recipe, adapter = self.model.recipe, self.model.adapter
            load = self.networks.network if self.networks and adapter else None
            return Tower(checkpoint, recipe, adapter, self.device, self.timer, load)


def find_first_occurrences(items: Sequence[Segments]) -> Int64Array:
    """Return for each item of ``items`` the position of the first equal one, int64 ``(n,)``."""
    first: dict[Segments, int] = {}
    return np.array([first.setdefault(item, i) for i, item in enumerate(items)], dtype=np.int64)


def plan_batches(
    lengths: Int64Array, tokens_per_batch: int, packed: bool = False
) -> Iterator[Int64Array]:
    """Yield the rows of each batch, longest texts first.

    A longer text is a batch of its own.

    Args:
        lengths: int64 ``(n,)``, tokens of each text.
        tokens_per_batch: most tokens of a batch.
        packed: count tokens without padding; otherwise each text as long as the batch's longest.
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
        stop = max(start + 1, stop)
        yield order[start:stop]
        start = stop
