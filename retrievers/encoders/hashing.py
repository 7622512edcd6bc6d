"""An encoder without weights: signed feature hashing of words, for tests and documentation."""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError
from retrievers.encoders.document_text import joined
from retrievers.encoders.protocol import Advance
from retrievers.models.recipe import Recipe

_WORD = re.compile(r"\w+")
_NO_WORDS = [""]


class HashingEncoder:
    """Counts of words, hashed to ``dim`` signed places, as a unit vector.

    Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009. The hash is
    BLAKE2b, so a text has the same vector on every machine. A text without words, or whose words
    cancel out, has the vector of the empty word.

    Args:
        recipe: of kind ``hashing``, with ``normalize`` and without options besides ``dim``.
    """

    def __init__(self, recipe: Recipe) -> None:
        if recipe.kind != "hashing" or not recipe.normalize or set(recipe.options) - {"dim"}:
            raise BenchError(
                f"{recipe.model} is not a recipe of the hashing encoder",
                'kind = "hashing", normalize = true, and dim as the only option',
            )
        self.recipe = recipe

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.recipe.dim

    def for_dataset(self, name: str) -> "HashingEncoder":
        """This encoder with the prompts of one dataset."""
        return HashingEncoder(self.recipe.for_dataset(name))

    def encode_queries(self, texts: Sequence[str], advance: Advance | None = None) -> Float32Array:
        """Unit vectors of queries, float32 ``(n, dim)``."""
        prompt = self.recipe.prompts.query
        return self._encode(
            [prompt + text for text in texts], self.recipe.max_query_tokens, advance
        )

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Advance | None = None
    ) -> Float32Array:
        """Unit vectors of documents, float32 ``(n, dim)``."""
        return self._encode(
            joined(self.recipe, titles, texts), self.recipe.max_document_tokens, advance
        )

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Words of each query before it is cut to ``max_query_tokens``."""
        prompt = self.recipe.prompts.query
        return [len(_WORD.findall(prompt + text)) for text in texts]

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Words of each document before it is cut to ``max_document_tokens``."""
        return [len(_WORD.findall(text)) for text in joined(self.recipe, titles, texts)]

    def _encode(
        self, texts: Sequence[str], max_words: int, advance: Advance | None
    ) -> Float32Array:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            words = _WORD.findall(text.lower())[:max_words]
            vectors[row] = self._vector(words)
            if advance:
                advance(1)
        return vectors

    def _vector(self, words: Sequence[str]) -> Float32Array:
        counts = np.zeros(self.dim, np.float32)
        for word in words or _NO_WORDS:
            place, sign = _hash(word)
            counts[place % self.dim] += sign
        if not counts.any():
            return self._vector(_NO_WORDS)
        return counts / np.linalg.norm(counts)


@lru_cache(maxsize=1 << 16)
def _hash(word: str) -> tuple[int, int]:
    """A number below 2^63 and a sign, from independent bits."""
    number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
    return number >> 1, 1 if number & 1 else -1
