"""Base class of encoders, the timer of their phases, and how a title and a text are joined."""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np

from foundation.arrays import Float32Array
from retrievers.models.card import Recipe, Role, TitleJoin

Callback = Callable[[int], None]
EncodeTexts = Callable[[Callback | None], Float32Array]


class Encoder(ABC):
    """Base class of encoders.

    The similarity of two vectors is their inner product. Vectors are float32 ``(n, dim)``,
    C-contiguous and finite; row i belongs to text i. If the similarity is cosine, vectors have unit
    length. Weights are loaded at the first call, so reading ``recipe`` costs nothing.
    ``advance(n)`` is called after every n encoded texts.

    Attributes:
        recipe: everything that determines the vectors.
        allow_unknown_tokens: whether texts may consist mostly of unknown tokens.

    Raises:
        BenchError: a vector is NaN or infinite, or the checkpoint cannot be loaded.
    """

    recipe: Recipe
    allow_unknown_tokens: bool = False

    @cached_property
    def timer(self) -> "PhaseTimer":
        """Seconds by phase and the number of tokens, if the encoder measures them."""
        return PhaseTimer()

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return self.recipe.dim

    @abstractmethod
    def for_dataset(self, name: str) -> "Encoder":
        """Return this encoder with the prompts of dataset ``name``. Loaded weights are shared."""

    @abstractmethod
    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries. ``advance`` gets the number of texts after each batch."""

    @abstractmethod
    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode documents, each with its title or ``""``. ``advance`` counts documents."""

    def prepare_documents(self, titles: Sequence[str], texts: Sequence[str]) -> EncodeTexts:
        """Return a function that encodes documents. Another thread may prepare the next ones.

        It may have an attribute ``launch``, called to begin without waiting, and ``in_flight``, the
        number of such functions to launch ahead.
        """
        return partial(self.encode_documents, titles, texts)

    def count_query_tokens(self, texts: Sequence[str]) -> list[int] | None:
        """Count the tokens of each query before truncation. None without a tokenizer."""
        return None

    def count_document_tokens(
        self, titles: Sequence[str], texts: Sequence[str]
    ) -> list[int] | None:
        """Count the tokens of each document before truncation. None without a tokenizer."""
        return None

    def unknown_share(self, titles: Sequence[str], texts: Sequence[str]) -> float | None:
        """Return the share of unknown tokens, 0 to 1. None without a tokenizer."""
        return None

    def hash_tokens(self, role: Role) -> str:
        """Return a hash of the token ids of fixed texts in a role, "" if no token ids are known."""
        return ""


class PhaseTimer:
    """Busy seconds by phase and counts by name. Threads can share it.

    Attributes:
        seconds: seconds by phase, such as ``tokenise`` or ``forward``.
        counts: number by name, such as ``tokens``.
    """

    def __init__(self) -> None:
        self.seconds: Any = Counter()
        self.counts = Counter[str]()
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the phase ``name``, even if the block fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add({name: time.perf_counter() - start}, {})

    def add(self, seconds: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Add ``seconds`` by phase and ``counts`` by name."""
        with self._lock:
            self.seconds.update(seconds)
            self.counts.update(counts)

    def copy(self) -> "PhaseTimer":
        """Return an independent copy with the current sums."""
        other = PhaseTimer()
        with self._lock:
            other.add(self.seconds, self.counts)
        return other

    def since(self, earlier: "PhaseTimer") -> "PhaseTimer":
        """Return the difference from ``earlier``, a copy that was made of this timer."""
        now = self.copy()
        now.seconds.subtract(earlier.seconds)
        now.counts.subtract(earlier.counts)
        return now


Segments = tuple[str, str | None]


def join(rule: TitleJoin, prompt: str, title: str, text: str, separator: str = "") -> Segments:
    """Join a document's prompt, title and text into one segment or a pair of segments.

    Args:
        rule: how to join; see `Usage`. A document without a title is its text alone.
        prompt: text put first.
        title: title of the document, may be empty.
        text: text of the document.
        separator: the tokenizer's separator token, for the rule ``sep``.
    """
    if rule == "none" or not title:
        return prompt + (text.strip() if rule == "space" else text), None
    if rule == "pair":
        return prompt + title, text
    if rule == "sep":
        return f"{prompt}{title} {separator} {text}", None
    return prompt + f"{title} {text}".strip(), None


def join_segments(
    recipe: Recipe, titles: Sequence[str], texts: Sequence[str], separator: str = ""
) -> list[Segments]:
    """Join documents by the rule and prompt of ``recipe``; see `join`."""
    rule, prompt = recipe.title_join, recipe.prompts.document
    documents = zip(titles, texts, strict=True)
    return [join(rule, prompt, title, text, separator) for title, text in documents]


def join_documents(recipe: Recipe, titles: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Join documents into single texts. The two segments of a pair become two lines."""
    return ["\n".join(filter(None, pair)) for pair in join_segments(recipe, titles, texts)]


def scale_to_unit(vectors: Float32Array) -> Float32Array:
    """Scale ``vectors`` ``(n, dim)`` to length 1 in place, and return them. Zero vectors stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.where(lengths == 0, 1, lengths)
    return vectors
