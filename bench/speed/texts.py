"""Texts of stated lengths: all of n tokens, or as long as real ones are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from bench.speed.records import Lengths
from foundation.arrays import BoolArray, Int64Array
from retrievers.encoders.protocol import Encoder

CONSTANT_TOKENS = (32, 128, 256)
FILLER = "the"  # one token for every tokenizer of English


@dataclass(frozen=True)
class Texts:
    """Distinct documents without titles: equal ones would be encoded once.

    Attributes:
        tokens: of each as it is encoded, int64 ``(n,)``.
        counted_in: ``tokens``, or ``words`` for an encoder without a tokenizer.
    """

    name: str
    texts: tuple[str, ...]
    tokens: Int64Array
    counted_in: str

    @property
    def titles(self) -> list[str]:
        """Empty, one for each text."""
        return [""] * len(self.texts)

    @property
    def lengths(self) -> Lengths:
        """Summary of the lengths, which is stated beside a measurement."""
        p50, p95 = np.percentile(self.tokens, [50, 95])
        total = int(self.tokens.sum())
        return Lengths(
            self.name,
            len(self.texts),
            total,
            total / len(self.texts),
            float(p50),
            float(p95),
            self.counted_in,
        )

    def first(self, count: int) -> "Texts":
        """The first ``count`` of them."""
        return Texts(self.name, self.texts[:count], self.tokens[:count], self.counted_in)


def natural(encoder: Encoder, name: str, sources: Sequence[str]) -> Texts:
    """Real texts, as they are."""
    return _texts(encoder, name, list(dict.fromkeys(sources)))


def of_length(encoder: Encoder, sources: Sequence[str], count: int, tokens: int) -> Texts:
    """``count`` documents of ``tokens`` tokens each, special tokens included.

    A document is a number, which makes it distinct, as many words of the sources as fit, and
    filler words for what is left.
    """
    words = [word for source in sources for word in source.split()]
    starts = np.random.default_rng(0).integers(0, len(words), count).tolist()
    cyclic = words + words[:tokens]

    def cut(sizes: Int64Array) -> list[str]:
        return [
            " ".join([str(number), *cyclic[start : start + size]])
            for number, (start, size) in enumerate(zip(starts, sizes.tolist(), strict=True))
        ]

    sizes = _largest(lambda tried: _counts(encoder, cut(tried)) <= tokens, count, tokens)
    texts = cut(sizes)
    missing = np.maximum(tokens - _counts(encoder, texts), 0).tolist()
    texts = [text + f" {FILLER}" * more for text, more in zip(texts, missing, strict=True)]
    return _texts(encoder, f"{tokens} tokens", texts)


def _largest(fits: Callable[[Int64Array], BoolArray], count: int, limit: int) -> Int64Array:
    """For each of ``count``, the largest size up to ``limit`` that fits; 0 where none does."""
    low, high = np.zeros(count, np.int64), np.full(count, limit)
    while (low < high).any():
        middle = (low + high + 1) // 2
        good = fits(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle - 1)
    return low


def _texts(encoder: Encoder, name: str, texts: list[str]) -> Texts:
    cut = np.minimum(_counts(encoder, texts), encoder.recipe.max_document_tokens)
    unit = "tokens" if encoder.recipe.kind == "transformer" else "words"
    return Texts(name, tuple(texts), cut, unit)


def _counts(encoder: Encoder, texts: list[str]) -> Int64Array:
    """Tokens of each text before it is cut; words where there is no tokenizer."""
    count = getattr(encoder, "count_document_tokens", None)
    if count is None:
        return np.array([len(text.split()) for text in texts], dtype=np.int64)
    return np.array(cast("list[int]", count([""] * len(texts), texts)), dtype=np.int64)
