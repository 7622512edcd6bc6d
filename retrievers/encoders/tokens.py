"""Token ids of texts, as a checkpoint's fast tokenizer gives them."""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from foundation.arrays import Int32Array, Int64Array
from retrievers.encoders.protocol import Segments, join
from retrievers.models.recipe import Recipe, TruncationSide
from retrievers.probe import probe_texts


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token ids of ``n`` texts, one text after another.

    Attributes:
        ids: int32 ``(T,)``, ids of all texts.
        lengths: int64 ``(n,)``, number of tokens of each text.
        types: int32 ``(T,)``, token types; None if the model does not read them.
    """

    ids: Int32Array
    lengths: Int64Array
    types: Int32Array | None = None

    @classmethod
    def of(
        cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> "Tokens":
        """Build from ``ids``, and optionally token ``types``, of each text."""
        lengths = np.array([len(text) for text in ids], dtype=np.int64)
        return cls(_concatenate(ids), lengths, None if types is None else _concatenate(types))

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Int64Array:
        """Position in ``ids`` of each text's first token, int64 ``(n,)``."""
        starts: Int64Array = self.lengths.cumsum() - self.lengths
        return starts

    def take(self, rows: Int64Array) -> "Tokens":
        """Return the texts at ``rows``, in that order."""
        lengths = self.lengths[rows]
        ends = lengths.cumsum()
        places = np.repeat(self.starts[rows] - (ends - lengths), lengths)
        places += np.arange(len(places))
        return Tokens(self.ids[places], lengths, None if self.types is None else self.types[places])

    def filled(self, token: int) -> "Tokens":
        """Return a copy in which each empty text has the one token ``token``."""
        if self.lengths.all():
            return self
        places = self.starts[self.lengths == 0]
        types = None if self.types is None else np.insert(self.types, places, 0)
        return Tokens(np.insert(self.ids, places, token), np.maximum(1, self.lengths), types)


def _concatenate(values: Sequence[Sequence[int]]) -> Int32Array:
    arrays = (np.asarray(value, dtype=np.int32) for value in values)
    return np.concatenate([np.empty(0, np.int32), *arrays])


class TextTokenizer:
    """Tokenizer of texts and pairs of texts, with truncation.

    Safe to share between threads.

    Args:
        tokenizer: a ``tokenizers.Tokenizer`` that is not used elsewhere.
        side: side on which long texts are truncated.
        typed: whether to return token types.
        split_special_tokens: whether to read special tokens in a text as ordinary text.
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
        self._lock = threading.Lock()  # truncation is a state of the tokenizer
        tokenizer.encode_special_tokens = split_special_tokens
        tokenizer.no_padding()

    def special_tokens(self, paired: bool) -> int:
        """Count the special tokens around a text, or around a pair if ``paired``."""
        return int(self.tokenizer.num_special_tokens_to_add(paired))

    def unknown_share(self, segments: Sequence[Segments], unknown: int | None) -> float:
        """Return the share of the tokens of texts that are the token ``unknown``, 0 to 1."""
        texts = [first if second is None else (first, second) for first, second in segments]
        with self._lock:
            self.tokenizer.no_truncation()
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = _concatenate([encoding.ids for encoding in encodings])
        return float((ids == unknown).mean()) if len(ids) and unknown is not None else 0.0

    def __call__(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Return the token ids of texts and pairs, special tokens included.

        Args:
            segments: texts, each a pair or a single segment with None.
            max_tokens: limit including special tokens, above ``special_tokens``. The longest
                segment of a pair is truncated first. None does not truncate.
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


def hash_probe(tokenizer: Any, side: Recipe) -> str:
    """Return the sha256 of the token ids of fixed texts, of which each second has a title.

    Args:
        tokenizer: fast tokenizer of transformers that is not used elsewhere.
        side: one side of a recipe, with its prompt, title rule and length.
    """
    split = bool(getattr(tokenizer, "split_special_tokens", False))
    backend, cut = tokenizer.backend_tokenizer, side.truncation_side
    texts = TextTokenizer(backend, cut, typed=False, split_special_tokens=split)
    prompt, separator = side.prompts.query or side.prompts.document, tokenizer.sep_token or ""
    probe = probe_texts()
    titles = ["" if number % 2 else text[:40] for number, text in enumerate(reversed(probe))]
    segments = [
        join(side.title_join, prompt, title, text, separator)
        for title, text in zip(titles, probe, strict=True)
    ]
    fewest = texts.special_tokens(paired=True) + 1
    tokens = texts(segments, max(side.max_tokens, fewest))
    content = tokens.lengths.astype("<i8").tobytes() + tokens.ids.astype("<i4").tobytes()
    return hashlib.sha256(content).hexdigest()
