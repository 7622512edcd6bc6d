"""Texts to token ids, as a checkpoint's fast tokenizer gives them."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from foundation.arrays import Int32Array, Int64Array
from retrievers.encoders.protocol import Segments
from retrievers.models.recipe import TruncationSide


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token ids of ``n`` texts, text after text.

    Attributes:
        ids: int32 ``(T,)``, of all texts.
        lengths: int64 ``(n,)``, tokens of each text.
        types: token types int32 ``(T,)``, where the model reads them.
    """

    ids: Int32Array
    lengths: Int64Array
    types: Int32Array | None = None

    @classmethod
    def of(
        cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> "Tokens":
        """From the ids of each text."""
        lengths = np.array([len(text) for text in ids], dtype=np.int64)
        return cls(_concatenate(ids), lengths, None if types is None else _concatenate(types))

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Int64Array:
        """Where each text begins in ``ids``; int64 ``(n,)``."""
        starts: Int64Array = self.lengths.cumsum() - self.lengths
        return starts

    def take(self, rows: Int64Array) -> "Tokens":
        """Some of the texts, in the order asked."""
        lengths = self.lengths[rows]
        ends = lengths.cumsum()
        places = np.repeat(self.starts[rows] - (ends - lengths), lengths)
        places += np.arange(len(places))
        return Tokens(self.ids[places], lengths, None if self.types is None else self.types[places])

    def filled(self, token: int) -> "Tokens":
        """The same with one token for each text that has none."""
        if self.lengths.all():
            return self
        places = self.starts[self.lengths == 0]
        types = None if self.types is None else np.insert(self.types, places, 0)
        return Tokens(np.insert(self.ids, places, token), np.maximum(1, self.lengths), types)


def _concatenate(values: Sequence[Sequence[int]]) -> Int32Array:
    arrays = (np.asarray(value, dtype=np.int32) for value in values)
    return np.concatenate([np.empty(0, np.int32), *arrays])


class TextTokenizer:
    """Token ids of single texts and of pairs, cut if asked; safe to share between threads.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, which is not used elsewhere from here on.
        side: where a text that is too long loses its tokens.
        typed: whether the model reads token types.
        split_special_tokens: read what looks like a special token as text.
    """

    def __init__(
        self,
        tokenizer: Any,
        side: TruncationSide,
        typed: bool,
        *,
        split_special_tokens: bool = False,
    ) -> None:
        self.tokenizer, self.side, self.typed = tokenizer, side, typed
        self.split_special_tokens = split_special_tokens
        self._lock = threading.Lock()  # the tokenizer is told where to cut
        tokenizer.encode_special_tokens = split_special_tokens
        tokenizer.no_padding()

    def special_tokens(self, paired: bool) -> int:
        """Number of tokens that are put around a text, or a pair of texts."""
        return int(self.tokenizer.num_special_tokens_to_add(paired))

    def __call__(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Token ids of texts and pairs, special tokens included.

        Args:
            max_tokens: of a text with its special tokens, more than ``special_tokens``; the
                longest segment of a pair is cut first. None does not cut.
        """
        texts = [first if second is None else (first, second) for first, second in segments]
        with self._lock:
            if max_tokens is None:
                self.tokenizer.no_truncation()
            else:
                self.tokenizer.enable_truncation(max_tokens, direction=self.side)
            encodings = self.tokenizer.encode_batch_fast(texts)
        types = [encoding.type_ids for encoding in encodings] if self.typed else None
        return Tokens.of([encoding.ids for encoding in encodings], types)
