"""The encoder of every transformer card: join, tokenise, batch by length, encode, restore order.

The order of work is a pure function of the list of texts, so that the same list on the same
machine gives the same bytes. torch is imported with the weights, at the first call.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from retrievers.checkpoint import Checkpoint
from retrievers.encoder import Advance, Vectors
from retrievers.errors import RetrieverError
from retrievers.recipe import Recipe, TitleJoin

if TYPE_CHECKING:
    import torch

    from retrievers.model import Model
    from retrievers.tower import Segments, Tokens, Tower

CPU_TOKENS = 2_048
CUDA_TOKENS = 65_536


class TransformerEncoder:
    """A transformer bi-encoder; see ``Encoder`` for what its methods promise.

    Args:
        model: a resolved transformer model.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        tokens_per_batch: most tokens, padding included, of one batch; None picks by device.
    """

    def __init__(
        self, model: "Model", device: str = "auto", tokens_per_batch: int | None = None
    ) -> None:
        self.recipe: Recipe = model.recipe
        self._towers = _Towers(model, device)
        self._budget = tokens_per_batch

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.recipe.dim

    def for_dataset(self, name: str) -> "TransformerEncoder":
        """This encoder with the prompts of one dataset, sharing the loaded weights."""
        other = object.__new__(TransformerEncoder)
        other.recipe = self.recipe.for_dataset(name)
        other._towers, other._budget = self._towers, self._budget
        return other

    def encode_queries(self, texts: Sequence[str], advance: Advance | None = None) -> Vectors:
        """Vectors of queries, float32 ``(n, dim)``."""
        segments = self._query_segments(texts)
        return self._encode(self._towers.query, segments, self.recipe.max_query_tokens, advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Advance | None = None
    ) -> Vectors:
        """Vectors of documents, float32 ``(n, dim)``."""
        segments = self._document_segments(titles, texts)
        limit = self.recipe.max_document_tokens
        return self._encode(self._towers.document, segments, limit, advance)

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each query before it is cut, special tokens included."""
        tokens = self._towers.query.tokenize(self._query_segments(texts), None)
        return [len(ids) for ids in tokens.ids]

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Tokens of each document before it is cut, special tokens included."""
        segments = self._document_segments(titles, texts)
        return [len(ids) for ids in self._towers.document.tokenize(segments, None).ids]

    def _query_segments(self, texts: Sequence[str]) -> "list[Segments]":
        return [(self.recipe.prompts.query + text, None) for text in texts]

    def _document_segments(self, titles: Sequence[str], texts: Sequence[str]) -> "list[Segments]":
        if len(titles) != len(texts):
            raise RetrieverError(f"{len(titles)} titles for {len(texts)} texts")
        rule, prompt = self.recipe.title_join, self.recipe.prompts.document
        separator = self._towers.document.separator if rule == "sep" else ""
        return [
            join(rule, prompt, title, text, separator)
            for title, text in zip(titles, texts, strict=True)
        ]

    def _encode(
        self,
        tower: "Tower",
        segments: "Sequence[Segments]",
        max_tokens: int,
        advance: Advance | None,
    ) -> Vectors:
        first = first_occurrences(segments)
        distinct = np.flatnonzero(first == np.arange(len(segments)))
        tokens = tower.tokenize([segments[row] for row in distinct.tolist()], max_tokens)
        vectors = np.empty((len(segments), self.dim), dtype=np.float32)
        budget = self._budget or self._towers.default_budget
        for batch in plan_batches(_lengths(tokens), budget):
            vectors[distinct[batch]] = tower.vectors(tokens, batch.tolist())
            if advance:
                advance(len(batch))
        if len(distinct) < len(segments):
            repeated = np.flatnonzero(first != np.arange(len(segments)))
            vectors[repeated] = vectors[first[repeated]]
            if advance:
                advance(len(repeated))
        return vectors


@dataclass(frozen=True)
class _Towers:
    """The encoders of queries and documents, loaded at first use; one for both when tied."""

    model: "Model"
    device_name: str

    @cached_property
    def device(self) -> "torch.device":
        from retrievers.tower import check_dtype, pick_device

        device = pick_device(self.device_name)
        check_dtype(self.model.recipe.dtype, device)
        return device

    @cached_property
    def document(self) -> "Tower":
        return self._load(self.model.document)

    @cached_property
    def query(self) -> "Tower":
        return self._load(self.model.query) if self.model.query else self.document

    @property
    def default_budget(self) -> int:
        return CUDA_TOKENS if self.device.type == "cuda" else CPU_TOKENS

    def _load(self, checkpoint: Checkpoint | None) -> "Tower":
        from retrievers.tower import Tower

        if checkpoint is None:
            raise RetrieverError(f"{self.model.card.name} has no checkpoint")
        return Tower(checkpoint, self.model.recipe, self.model.adapter, self.device)


def join(rule: TitleJoin, prompt: str, title: str, text: str, separator: str = "") -> "Segments":
    """A document as one or two segments; without a title it is its text alone."""
    if rule == "none" or not title:
        return prompt + (text.strip() if rule == "space" else text), None
    if rule == "pair":
        return prompt + title, text
    if rule == "sep":
        return f"{prompt}{title} {separator} {text}", None
    return prompt + f"{title} {text}".strip(), None


def first_occurrences(items: "Sequence[Segments]") -> npt.NDArray[np.int64]:
    """For each item, the position of the first equal one; int64 ``(n,)``."""
    seen: dict[Segments, int] = {}
    return np.array([seen.setdefault(item, i) for i, item in enumerate(items)], dtype=np.int64)


def plan_batches(
    lengths: npt.NDArray[np.int64], tokens_per_batch: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Rows of each batch, longest texts first, at most ``tokens_per_batch`` with padding.

    A text longer than that is a batch of its own.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, tokens_per_batch // max(1, int(lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


def _lengths(tokens: "Tokens") -> npt.NDArray[np.int64]:
    return np.array([len(ids) for ids in tokens.ids], dtype=np.int64)
