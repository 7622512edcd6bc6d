"""Texts to token ids as a checkpoint's fast tokenizer gives them; from a cache of words for BERT's.

Imports neither torch nor transformers, so that processes that only tokenise start at once.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foundation.arrays import Int32Array, Int64Array
from retrievers.encoders.document_text import Segments
from retrievers.encoders.tokens import Tokens, runs
from retrievers.encoders.word_pieces import WordPieceCache, splits_words
from retrievers.models.recipe import TruncationSide


class TextTokenizer:
    """Token ids of single texts and of pairs, cut where asked; safe to share between threads.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, which is not used elsewhere from here on.
        side: where a text that is too long loses its tokens.
        typed: whether the model reads token types.
        split_special_tokens: read what looks like a special token as text.
        cached: False to ask the tokenizer itself always.
    """

    def __init__(
        self,
        tokenizer: Any,
        side: TruncationSide,
        typed: bool,
        *,
        split_special_tokens: bool = False,
        cached: bool = True,
    ) -> None:
        self.tokenizer, self.side, self.typed = tokenizer, side, typed
        self.split_special_tokens = split_special_tokens
        self._lock = threading.Lock()  # the tokenizer is told where to cut, and the cache grows
        tokenizer.encode_special_tokens = split_special_tokens
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._frames = [_frame(tokenizer, paired) for paired in (False, True)]
        usable = cached and all(self._frames) and splits_words(tokenizer)
        self._cache = WordPieceCache(tokenizer) if usable else None

    @property
    def cached(self) -> bool:
        """True where ids come from a cache of words."""
        return self._cache is not None

    def special_tokens(self, paired: bool) -> int:
        """Number of tokens that are put around a text, or a pair of texts."""
        return int(self.tokenizer.num_special_tokens_to_add(paired))

    def __call__(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Token ids of texts and pairs, special tokens included.

        Args:
            max_tokens: of a text with its special tokens, more than ``special_tokens``; the
                longest segment of a pair is cut first. None does not cut.
        """
        paired = np.array([second is not None for _, second in segments], dtype=np.bool_)
        order = np.argsort(paired, kind="stable")  # single texts first
        chosen = [segments[row] for row in order.tolist()]
        singles = len(segments) - int(paired.sum())
        with self._lock:
            parts = [
                self._encode(some, max_tokens) for some in (chosen[:singles], chosen[singles:])
            ]
        together = Tokens.concatenate(parts)
        return together.take(np.argsort(order)) if 0 < singles < len(segments) else together

    def _encode(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Single texts, or pairs."""
        frame = self._frames[bool(segments) and segments[0][1] is not None]
        if self._cache is None or frame is None:
            return self._encode_all(segments, max_tokens)
        self.tokenizer.no_truncation()
        columns = [[first for first, _ in segments]]
        if len(frame.own) > 1:
            columns.append([second for _, second in segments if second is not None])
        try:
            pieces = [self._cache.pieces(texts) for texts in columns]
        except UnicodeEncodeError:  # half a surrogate pair: the tokenizer says what it thinks
            return self._encode_all(segments, max_tokens)
        kept = [lengths for _, lengths in pieces]
        if max_tokens is not None:
            kept = _cut(kept, max_tokens - frame.special)
        return frame.around(pieces, kept, self.side, self.typed)

    def _encode_all(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Tokenise by the tokenizer itself."""
        if max_tokens is None:
            self.tokenizer.no_truncation()
        else:
            self.tokenizer.enable_truncation(max_tokens, direction=self.side)
        encodings = self.tokenizer.encode_batch(
            [first if second is None else (first, second) for first, second in segments]
        )
        types = [encoding.type_ids for encoding in encodings] if self.typed else None
        return Tokens.of([encoding.ids for encoding in encodings], types)


@dataclass(frozen=True)
class _Frame:
    """Special tokens around one text or two, with the token types of all.

    Attributes:
        special: how many special tokens there are.
        between: ids before the first text, after it, and after the second.
        types: of ``between`` in the same form.
        own: token type of each text.
    """

    special: int
    between: list[list[int]]
    types: list[list[int]]
    own: list[int]

    def around(
        self,
        pieces: Sequence[tuple[Int32Array, Int64Array]],
        kept: Sequence[Int64Array],
        side: TruncationSide,
        typed: bool,
    ) -> Tokens:
        """Texts between special tokens.

        Args:
            pieces: ids of the first texts with their lengths, and of the second.
            kept: how many of them stay.
            side: where the others are lost.
        """
        lengths: Int64Array = self.special + np.sum(kept, axis=0)
        place = lengths.cumsum() - lengths
        ids = np.empty(int(lengths.sum()), dtype=np.int32)
        types = np.empty_like(ids) if typed else None
        for number, (between, between_types) in enumerate(
            zip(self.between, self.types, strict=True)
        ):
            for token, kind in zip(between, between_types, strict=True):
                ids[place] = token
                if types is not None:
                    types[place] = kind
                place = place + 1
            if number < len(pieces):
                own, counts = pieces[number]
                starts = counts.cumsum() - counts
                if side == "left":
                    starts += counts - kept[number]
                target = runs(place, kept[number])
                ids[target] = own[runs(starts, kept[number])]
                if types is not None:
                    types[target] = self.own[number]
                place = place + kept[number]
        return Tokens(ids, lengths, types)


def _frame(tokenizer: Any, paired: bool) -> _Frame | None:
    """Special tokens that the tokenizer puts around texts; None where texts change their order."""
    example = tokenizer.encode("a", "a") if paired else tokenizer.encode("a")
    between: list[list[int]] = [[]]
    types: list[list[int]] = [[]]
    own: list[int] = []
    for token, kind, text in zip(example.ids, example.type_ids, example.sequence_ids, strict=True):
        if text is None:
            between[-1].append(token)
            types[-1].append(kind)
        elif text == len(own):
            own.append(kind)
            between.append([])
            types.append([])
        elif text != len(own) - 1 or between[-1]:
            return None
    special = sum(map(len, between))
    known = len(own) == 1 + paired and special == tokenizer.num_special_tokens_to_add(paired)
    return _Frame(special, between, types, own) if known else None


def _cut(lengths: Sequence[Int64Array], most: int) -> list[Int64Array]:
    """Tokens of each text that stay, where ``most`` is of both texts of a pair together.

    Of a pair the longer text is cut to the other's length, then both to half, as the rule
    ``longest_first`` of Hugging Face's tokenizers does at once.
    """
    if len(lengths) == 1:
        return [np.minimum(lengths[0], most)]
    first, second = lengths
    short = np.minimum(first, second)
    long = np.where(short > most, short, np.maximum(short, most - short))
    halved = short + long > most
    short = np.where(halved, most // 2, short)
    long = np.where(halved, most // 2 + most % 2, long)
    swapped = first > second
    fits = first + second <= most
    return [
        np.where(fits, first, np.where(swapped, long, short)),
        np.where(fits, second, np.where(swapped, short, long)),
    ]
