"""Interface of every encoder, whatever is behind it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from foundation.arrays import Float32Array
from retrievers.models.recipe import Recipe

Advance = Callable[[int], None]


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
        ...

    def for_dataset(self, name: str) -> "Encoder":
        """This encoder with the prompts of one dataset, sharing what it has loaded."""
        ...

    def encode_queries(self, texts: Sequence[str], advance: Advance | None = None) -> Float32Array:
        """Vectors of queries."""
        ...

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Advance | None = None
    ) -> Float32Array:
        """Vectors of documents, each with its title; an absent title is ``""``."""
        ...
