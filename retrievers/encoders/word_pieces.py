"""WordPieces of texts from a cache of words, with the ids that the tokenizer itself gives.

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
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from foundation.arrays import Int32Array, Int64Array
from retrievers.encoders.tokens import runs

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
