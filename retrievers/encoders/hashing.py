"""An encoder without weights, for tests and documentation: counts of hashed words."""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from foundation.arrays import Float32Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import Callback, Encoder, join_documents
from retrievers.models.card import Recipe

_WORD = re.compile(r"\w+")
_NO_WORDS = [""]


class HashingEncoder(Encoder):
    """Counts of words, hashed to ``dim`` signed features and scaled to unit length.

    Weinberger et al., Feature Hashing for Large Scale Multitask Learning, 2009. The hash is
    BLAKE2b, so vectors are equal on every machine. A text without words, or whose words cancel out,
    has the vector of the empty word.
    """

    def __init__(self, recipe: Recipe) -> None:
        if recipe.kind != "hashing" or not recipe.normalize or set(recipe.options) - {"dim"}:
            problem = f"{recipe.model} is not a recipe of the hashing encoder"
            raise BenchError(problem, 'Use kind = "hashing", normalize = true and the option dim.')
        self.recipe = recipe

    def for_dataset(self, name: str) -> "HashingEncoder":
        """Return this encoder with the prompts of dataset ``name``."""
        return HashingEncoder(self.recipe.for_dataset(name))

    def encode_queries(self, texts: Sequence[str], advance: Callback | None = None) -> Float32Array:
        """Encode ``texts`` as queries to unit vectors."""
        texts = [self.recipe.prompts.query + text for text in texts]
        return self._encode(texts, self.recipe.max_query_tokens, advance)

    def encode_documents(
        self, titles: Sequence[str], texts: Sequence[str], advance: Callback | None = None
    ) -> Float32Array:
        """Encode ``titles`` with ``texts`` to unit vectors."""
        texts = join_documents(self.recipe, titles, texts)
        return self._encode(texts, self.recipe.max_document_tokens, advance)

    def count_query_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the words of each query in ``texts`` before truncation."""
        prompt = self.recipe.prompts.query
        return [len(_WORD.findall(prompt + text)) for text in texts]

    def count_document_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> list[int]:
        """Count the words of ``titles`` with ``texts`` before truncation."""
        return [len(_WORD.findall(text)) for text in join_documents(self.recipe, titles, texts)]

    def _encode(
        self, texts: Sequence[str], max_words: int | None, advance: Callback | None
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
    """Hash ``word`` to a number below 2^63 and a sign, which come from different bits."""
    number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
    return number >> 1, 1 if number & 1 else -1
