"""The interface of every encoder, its clock, and the join of a document's title and text."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from foundation.arrays import Float32Array
from foundation.errors import BenchError
from retrievers.models.recipe import Recipe, TitleJoin

Callback = Callable[[int], None]


class Encoder(Protocol):
    """Texts to vectors; the similarity of two vectors is their inner product.

    Returned arrays are float32 ``(n, dim)``, C-contiguous and finite, row i for text i. An
    encoder whose similarity is cosine returns unit vectors. Weights load at the first call, so
    that reading ``recipe`` costs nothing. ``advance(n)`` is called as texts are done.

    Raises:
        BenchError: a vector is NaN or infinite, or the checkpoint cannot be loaded.
    """

    recipe: Recipe

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.recipe.dim

    def for_dataset(self, name: str) -> "Encoder":
        """This encoder with the prompts of one dataset, sharing what it has loaded."""
        ...

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Vectors of queries."""
        ...

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Vectors of documents, each with its title; an absent title is ``""``."""
        ...


class PhaseTimer:
    """Busy seconds by phase and counts by name; safe to share between threads.

    Attributes:
        seconds: by phase, for example ``tokenise`` or ``forward``.
        counts: by name, for example ``tokens``.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase, also where the block fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def count(self, name: str, number: int) -> None:
        """Add to a count."""
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + number

    def add(self, seconds: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Add what was measured elsewhere, such as in another process."""
        with self._lock:
            for name, spent in seconds.items():
                self.seconds[name] = self.seconds.get(name, 0.0) + spent
        for name, number in counts.items():
            self.count(name, number)

    def copy(self) -> "PhaseTimer":
        """Copy with the sums so far, which goes on by itself."""
        other = PhaseTimer()
        with self._lock:
            other.seconds, other.counts = dict(self.seconds), dict(self.counts)
        return other

    def since(self, earlier: "PhaseTimer") -> "PhaseTimer":
        """Timer with what was added after ``earlier``, a copy of this clock, was made."""
        now = self.copy()
        for name, seconds in earlier.seconds.items():
            now.seconds[name] -= seconds
        for name, number in earlier.counts.items():
            now.counts[name] -= number
        return now


Segments = tuple[str, str | None]


def join(rule: TitleJoin, prompt: str, title: str, text: str, separator: str = "") -> Segments:
    """A document as one or two segments; without a title it is its text alone."""
    if rule == "none" or not title:
        return prompt + (text.strip() if rule == "space" else text), None
    if rule == "pair":
        return prompt + title, text
    if rule == "sep":
        return f"{prompt}{title} {separator} {text}", None
    return prompt + f"{title} {text}".strip(), None


def join_documents(recipe: Recipe, titles: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Prompt, title and text of each document by the recipe's rule; a pair is two lines.

    Raises:
        BenchError: not as many titles as texts.
    """
    if len(titles) != len(texts):
        raise BenchError(f"{len(titles)} titles for {len(texts)} texts")
    rule, prompt = recipe.title_join, recipe.prompts.document
    pairs = (join(rule, prompt, title, text) for title, text in zip(titles, texts, strict=True))
    return ["\n".join(filter(None, pair)) for pair in pairs]
