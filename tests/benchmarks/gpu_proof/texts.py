"""A synthetic language: words of syllables, as frequent as Zipf's law says, and its tokenizers.

Frequent words are short and one WordPiece each; others are split. So tokenizers have about as
much to do as with English, and nothing has to be downloaded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SYLLABLES = [one + other for one in "bcdfghjklmnprstvwxyz" for other in "aeiou"]
MARKS = 0.12  # share of the words before a comma
PIECE = 32  # tokens of the pieces that many texts are put together from
PIECES = 4_096
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

SPACE = "Ġ"  # how byte-level tokenizers write a space

Ints = npt.NDArray[np.int64]


@cache
def words_of(types: int) -> tuple[str, ...]:
    """So many different words, the most frequent first."""

    def word(number: int) -> str:
        syllables = []
        while number >= 0:
            number, last = divmod(number, len(SYLLABLES))
            syllables.append(SYLLABLES[last])
            number -= 1
        return "".join(reversed(syllables))

    return tuple(word(number) for number in range(types))


def wordpiece_tokenizer(types: int, vocabulary: int) -> Any:
    """BERT's tokenizer, whose vocabulary holds the most frequent words and all syllables."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [*BERT_SPECIAL, *LETTERS, ",", ".", *(f"##{letter}" for letter in LETTERS)]
    pieces += [f"##{syllable}" for syllable in SYLLABLES]
    pieces += words_of(types)[: vocabulary - len(pieces)]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = (("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"]))
    tokenizer.post_processor = processors.BertProcessing(last, first)
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = dict(zip(names, BERT_SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level_tokenizer(types: int, vocabulary: int) -> Any:
    """RoBERTa's tokenizer, whose merges give the most frequent words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [*ROBERTA_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *SYLLABLES]
    merges = [(syllable[0], syllable[1]) for syllable in SYLLABLES]
    for word in words_of(types)[: vocabulary - len(pieces)]:  # longer ones extend shorter ones
        merges.append((f"{SPACE}{word[:-2]}", word[-2:]))
        pieces.append(f"{SPACE}{word}")
    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(numbers, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    first, last = (("<s>", numbers["<s>"]), ("</s>", numbers["</s>"]))
    tokenizer.post_processor = processors.RobertaProcessing(last, first)
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    special = dict(zip(names, ROBERTA_SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **special
    )


@dataclass(frozen=True, eq=False)
class TextMaker:
    """Makes texts of stated lengths.

    Attributes:
        words: the most frequent first.
        pieces: tokens of each, int64 ``(words,)``.
    """

    words: Sequence[str]
    pieces: Ints

    @classmethod
    def of(cls, checkpoint: Path, types: int) -> "TextMaker":
        """Words that a WordPiece tokenizer knows: those of its vocabulary, and of the language."""
        from tokenizers import Tokenizer

        content = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
        known = [word for word in content["model"]["vocab"] if word.isascii() and word.isalpha()]
        own = set(known)
        words = [word for word in known if len(word) > 1]
        words += [word for word in words_of(types) if word not in own]
        tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        rows = tokenizer.encode_batch(words, add_special_tokens=False)
        return cls(words, np.array([len(row.ids) for row in rows]))

    def many(self, lengths: Ints, seed: int = 0) -> list[str]:
        """Texts as of ``texts``, all put together from the same pieces: millions of tokens soon."""
        pieces = self.texts(np.full(PIECES, PIECE), seed)
        rests = self.texts(lengths % PIECE, seed + 1)
        counts = lengths // PIECE
        drawn = np.random.default_rng(seed).integers(0, PIECES, int(counts.sum())).tolist()
        ends = counts.cumsum()
        return [
            " ".join([*(pieces[row] for row in drawn[end - count : end]), *filter(None, [rest])])
            for rest, count, end in zip(rests, counts.tolist(), ends.tolist(), strict=True)
        ]

    def texts(self, lengths: Ints, seed: int = 0) -> list[str]:
        """Texts of so many tokens each, special tokens not counted; the same for the same seed."""
        draw = np.random.default_rng(seed)
        total = int(lengths.sum())
        shares = np.cumsum(1 / (np.arange(len(self.words)) + 2.7))  # Zipf and Mandelbrot
        drawn = np.searchsorted(shares, draw.random(total) * shares[-1]).tolist()
        marked = (draw.random(total) < MARKS).tolist()
        filler = self.words[int(np.flatnonzero(self.pieces == 1)[0])]
        pieces, texts, place = self.pieces.tolist(), [], 0
        for length in lengths.tolist():
            text, left = [], length
            while left:
                row = drawn[place % total]
                size = pieces[row] + marked[place % total]
                fits = size <= left
                text.append(self.words[row] + "," * marked[place % total] if fits else filler)
                left -= size if fits else 1
                place += 1
            texts.append(" ".join(text))
        return texts
