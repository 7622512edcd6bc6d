"""Texts to token ids as a checkpoint's fast tokenizer gives them; BERT's from a cache of words.

BERT's tokenizer (Devlin et al., 2019) normalises a text, cuts it at white space and around
punctuation, and looks for the pieces of each word by itself. Nothing that it does looks across a
space or an ASCII punctuation mark: normalisation replaces or removes characters one by one, and
what decomposing accents (NFD) moves stays between two such marks. So the ids of a text are those
of its words, one after the other, and texts repeat few words.

A word here is what lies between ASCII white space and punctuation, whatever else it holds; the
tokenizer itself finds its pieces, once. Splitting and looking up are a few passes over thousands
of texts at a time, in C. ``tests/benchmarks/tokenise_speed.py`` measures what that gives.
"""

import re
import string
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
        return cls(_joined(ids), lengths, None if types is None else _joined(types))

    @classmethod
    def concatenate(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """The texts of some, one after the other; all have types, or none."""
        types = [part.types for part in parts if part.types is not None]
        return cls(
            np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)]),
            np.concatenate(types) if types else None,
        )

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
        places = runs(self.starts[rows], lengths)
        return Tokens(self.ids[places], lengths, None if self.types is None else self.types[places])


def runs(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """Whole numbers from each start on, as many as its length says; int64 ``(sum(lengths),)``."""
    ends = lengths.cumsum()
    shifts: Int64Array = np.repeat(starts - (ends - lengths), lengths)
    shifts += np.arange(len(shifts))
    return shifts


def _joined(values: Sequence[Sequence[int]]) -> Int32Array:
    arrays = (np.asarray(value, dtype=np.int32) for value in values)
    return np.concatenate([np.empty(0, np.int32), *arrays])


MOST_WORDS = 1 << 19  # then all are forgotten: some 80 MB, and what English repeats is soon back
MOST_BYTES = 1 << 26  # of these words
CHARACTERS = 1 << 20  # of texts that are split together

BETWEEN = 0  # the byte that parts two texts
MARKS = bytes([BETWEEN, *range(1, 9), *range(14, 28)])  # control characters, which BERT removes
OTHER_CONTROL = 28  # takes the place of a mark that stands in a text, and is removed as well
REMOVED = b"\v\f"  # control characters, at which Python would split
PUNCTUATION = [mark.encode() for mark in string.punctuation]
SPECIAL = re.compile(r"\[[^\[\]]+\]")  # such tokens cannot overlap, and no word holds one


class _Numbers(dict[bytes, int]):
    """Numbers of words, in the order in which they were first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[bytes] = []

    def __missing__(self, word: bytes) -> int:
        self[word] = number = len(self)
        self.new.append(word)
        return number


class WordPieceCache:
    """Pieces of texts, without special tokens around them and not cut.

    Args:
        tokenizer: for which `splits_words` holds, and that neither cuts nor pads.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = [
            (token.content.encode(), bytes([mark]), number)
            for mark, (number, token) in zip(MARKS[1:], added.items(), strict=False)
        ]
        lower = tokenizer.normalizer.lowercase
        self._table = bytes(
            ord(" ") if byte in b"\t\n\r" else ord(chr(byte).lower()) if lower else byte
            for byte in range(128)
        ) + bytes(range(128, 256))
        self._forget()

    def _forget(self) -> None:
        self._numbers = _Numbers()
        known = [(bytes([BETWEEN]), []), *((mark, [number]) for _, mark, number in self._special)]
        for word, _ in known:
            self._numbers[word] = len(self._numbers)
        self._ids = np.array([number for _, ids in known for number in ids], dtype=np.int32)
        self._lengths = np.array([len(ids) for _, ids in known], dtype=np.int64)
        self._starts = self._lengths.cumsum() - self._lengths
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def pieces(self, texts: Sequence[str]) -> tuple[Int32Array, Int64Array]:
        """Ids of the pieces of all texts, int32 ``(T,)``, and how many each text has.

        Raises:
            UnicodeEncodeError: a text holds half of a surrogate pair.
        """
        ids, counts = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        for some in _blocks(texts):
            if len(self) > MOST_WORDS or self._bytes > MOST_BYTES:
                self._forget()
            words = self._split(some)
            numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
            self._learn()
            lengths = self._lengths[numbers]
            ids.append(self._ids[runs(self._starts[numbers], lengths)])
            total = np.concatenate([[0], lengths.cumsum()])
            ends = np.append(np.flatnonzero(numbers == self._numbers[bytes([BETWEEN])]), len(words))
            counts.append(np.diff(total[ends], prepend=0))
        return np.concatenate(ids), np.concatenate(counts)

    def _split(self, texts: Sequence[str]) -> list[bytes]:
        """Words, punctuation and marks of all texts, with the mark ``BETWEEN`` two texts."""
        between = bytes([BETWEEN])
        joined = between.decode().join(texts).encode()
        if len(joined) - len(joined.translate(None, MARKS)) != len(texts) - 1:
            other = bytes.maketrans(MARKS, bytes([OTHER_CONTROL]) * len(MARKS))
            joined = between.join(text.encode().translate(other) for text in texts)
        joined = joined.replace(between, b" " + between + b" ")
        for token, mark, _ in self._special:  # before punctuation, which is in them
            joined = joined.replace(token, b" " + mark + b" ")
        for mark in PUNCTUATION:
            joined = joined.replace(mark, b" " + mark + b" ")
        return joined.translate(self._table, REMOVED).split()

    def _learn(self) -> None:
        """Let the tokenizer find the pieces of new words."""
        new, self._numbers.new = self._numbers.new, []
        if not new:
            return
        try:
            encodings = self._tokenizer.encode_batch(
                [word.decode() for word in new], add_special_tokens=False
            )
        except BaseException:
            self._forget()  # words without pieces
            raise
        pieces = [encoding.ids for encoding in encodings]
        lengths = np.array([len(ids) for ids in pieces], dtype=np.int64)
        own = np.array([number for ids in pieces for number in ids], dtype=np.int32)
        self._starts = np.concatenate([self._starts, len(self._ids) + lengths.cumsum() - lengths])
        self._ids = np.concatenate([self._ids, own])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._bytes += sum(map(len, new))


def splits_words(tokenizer: Any) -> bool:
    """True where ``WordPieceCache`` gives this tokenizer's ids: BERT's normaliser and word rule.

    Its added tokens are found in the text as it stands, and look like ``[SEP]``.
    """
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    normalizer = tokenizer.normalizer
    added = list(tokenizer.get_added_tokens_decoder().values())
    return (
        type(normalizer) is BertNormalizer
        and normalizer.clean_text
        and type(tokenizer.pre_tokenizer) is BertPreTokenizer
        and type(tokenizer.model) is WordPiece
        and not tokenizer.encode_special_tokens
        and len(added) < len(MARKS)
        and all(
            SPECIAL.fullmatch(token.content)
            and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
            for token in added
        )
    )


def _blocks(texts: Sequence[str]) -> list[list[str]]:
    """The texts, some at a time: as many as have ``CHARACTERS``, at least one."""
    blocks: list[list[str]] = []
    room = 0
    for text in texts:
        if room < len(text) or not blocks:
            blocks.append([])
            room = CHARACTERS
        blocks[-1].append(text)
        room -= len(text)
    return blocks


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
