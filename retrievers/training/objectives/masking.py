"""Tokens of texts and spans, and vectorised whole-word masks.

All pieces of a word (of the pre-tokenization) are masked together
(https://github.com/google-research/bert, release of May 2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from foundation.arrays import BoolArray, Int64Array
from foundation.errors import BenchError

NOT_A_WORD = -1
IGNORED = -100  # label that cross-entropy ignores
KEPT, RANDOM = 0.1, 0.1  # shares of masked tokens: unchanged, replaced by a random token
Context = Literal["nearby", "overlap", "random"]
CONTEXTS = 256  # masks of a text that the rows of enhanced decoding choose from


@dataclass(frozen=True)
class TokenBatch:
    """Batch of texts, padded on the right to the longest.

    All arrays are ``(texts, length)``: token ``ids``, int64, ``real``, False at padding, and
    ``words``, the number of the word in its text, int64, from 0 without gaps, -1 at special tokens
    and padding.
    """

    ids: Int64Array
    real: BoolArray
    words: Int64Array

    def take(self, rows: Int64Array) -> "TokenBatch":
        """Return the texts at ``rows``, in that order."""
        return TokenBatch(self.ids[rows], self.real[rows], self.words[rows])


@dataclass(frozen=True)
class Vocabulary:
    """Properties of a tokenizer that masking needs: id of the mask token, number of token ids."""

    mask_id: int
    size: int

    @classmethod
    def of(cls, tokenizer: Any) -> "Vocabulary":
        """Return the properties of ``tokenizer``, or raise if it has no mask token."""
        if tokenizer.mask_token_id is None:
            raise BenchError(
                "the tokenizer has no mask token", "Start from a checkpoint such as BERT."
            )
        return cls(tokenizer.mask_token_id, len(tokenizer))


def tokenize(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> TokenBatch:
    """Tokenize ``texts`` with a fast tokenizer, each up to ``max_tokens`` with special tokens."""
    encodings = tokenizer(
        list(texts), truncation=True, max_length=max_tokens, padding=True
    ).encodings  # the tokenizer's own tensors are built token by token in Python
    words = np.array([encoding.word_ids for encoding in encodings], dtype=np.float64)
    return TokenBatch(
        ids=np.array([encoding.ids for encoding in encodings], dtype=np.int64),
        real=np.array([encoding.attention_mask for encoding in encodings], dtype=bool),
        words=renumber(np.nan_to_num(words, nan=NOT_A_WORD).astype(np.int64)),
    )


def pad_rows(rows: Sequence[NDArray[Any]], fill: float) -> NDArray[Any]:
    """Return one or more ``rows`` of any length as one array ``(rows, longest or 1)``."""
    lengths = np.array([len(row) for row in rows])
    filled = np.arange(max(1, lengths.max())) < lengths[:, None]
    padded = np.full(filled.shape, fill, rows[0].dtype)
    padded[filled] = np.concatenate(rows)
    return padded


def renumber(words: Int64Array) -> Int64Array:
    """Renumber ``words`` in each row from 0 without gaps. Entries of -1 are kept."""
    before = np.concatenate([np.full_like(words[:, :1], NOT_A_WORD), words[:, :-1]], axis=1)
    begins = (words != before) & (words != NOT_A_WORD)
    return np.where(words == NOT_A_WORD, NOT_A_WORD, begins.cumsum(axis=1) - 1)


def draw_spans(
    tokenizer: Any,
    texts: Sequence[str],
    max_tokens: int,
    contexts: Sequence[Context],
    rng: np.random.Generator,
) -> TokenBatch:
    """Draw two spans from each text and tokenize them: rows 2i and 2i + 1 of the result.

    The two spans of a text are equally long: the maximal length or, for a short text, half of its
    tokens. They are cut between tokens. A text with fewer than two tokens is both spans itself. One
    of ``contexts`` is drawn for each text, see `draw_starts`.
    """
    limit = max_tokens - tokenizer.num_special_tokens_to_add()
    encoded = tokenizer(list(texts), truncation=False, verbose=False)
    ids, words = [], []
    for encoding in encoded.encodings:
        text_ids = np.array(encoding.ids)
        text_words = np.array([NOT_A_WORD if word is None else word for word in encoding.word_ids])
        special = np.array(encoding.special_tokens_mask, dtype=bool)
        (positions,) = np.nonzero(~special)
        size = min(limit, len(positions) // 2)
        context = contexts[int(rng.integers(len(contexts)))]
        starts = draw_starts(len(positions), size, context, rng) if size else (0, 0)
        for start in starts:
            kept = special.copy()  # a span keeps the special tokens of its text
            kept[positions[start : start + max(size, 1)]] = True
            ids.append(text_ids[kept])
            words.append(text_words[kept])
    return TokenBatch(
        ids=pad_rows(ids, tokenizer.pad_token_id),
        real=pad_rows([np.ones(len(row), bool) for row in ids], False),
        words=renumber(pad_rows(words, NOT_A_WORD)),
    )


def draw_starts(
    tokens: int, size: int, context: Context, rng: np.random.Generator
) -> tuple[int, int]:
    """Draw the first token of each span of ``size`` tokens of a text with at least twice as many.

    ``nearby``: the second span follows the first. ``overlap``: it begins in the second half of the
    first; the number of shared tokens is drawn before the position, and spans of one token do not
    overlap. ``random``: it lies anywhere after the first. Allowed positions are equally likely.
    """
    if context == "random":
        first, second = sorted(rng.choice(tokens - 2 * size + 2, 2, replace=False).tolist())
        return first, second - 1 + size
    shared = int(rng.integers(1, size // 2 + 1)) if context == "overlap" and size > 1 else 0
    first = int(rng.integers(tokens - 2 * size + shared + 1))
    return first, first + size - shared


def whole_word_mask(words: Int64Array, rate: float, rng: np.random.Generator) -> BoolArray:
    """Mask whole words until a share ``rate`` of the tokens of each text is masked.

    Words are taken in random order while they fit into ``rate`` times the text's tokens (special
    tokens are not counted). The word that would exceed this number is taken with a probability
    equal to the fraction of it that fits, so that the expected share is ``rate`` for every text. If
    no word was taken, the first one is.

    Returns:
        bool ``(texts, length)`` like ``words``, True if masked. A text without words has no masked
        token.
    """
    sizes = _word_sizes(words)
    masked = _masked_words(sizes, rate, rng)
    chosen: BoolArray = np.take_along_axis(masked, words, axis=1) & (words != NOT_A_WORD)
    return chosen


def _masked_words(sizes: Int64Array, rate: float, rng: np.random.Generator) -> BoolArray:
    """Return a mask over the words of each text, see `whole_word_mask`. ``sizes`` are in tokens."""
    keys = rng.random(sizes.shape, np.float32)
    keys[sizes == 0] = 2  # missing words come last
    order = keys.argsort(axis=1)
    rows = np.arange(len(sizes))
    ordered = sizes[rows[:, None], order]
    ends = ordered.cumsum(axis=1)
    target = rate * ends[:, -1]
    taken = ends <= target[:, None]
    last = np.minimum(taken.sum(axis=1), sizes.shape[1] - 1)  # the word that would exceed it
    part = (target - ends[rows, last]) / np.maximum(ordered[rows, last], 1) + 1
    taken[rows, last] = rng.random(len(sizes)) < part
    taken[:, 0] = True
    masked = np.empty_like(taken)
    masked[rows[:, None], order] = taken
    masked &= sizes > 0
    return masked


def _word_sizes(words: Int64Array) -> Int64Array:
    """Return the tokens of each word, int64 ``(texts, words)``, with at least one column."""
    count = max(int(words.max(initial=NOT_A_WORD)), 0) + 1
    rows = np.arange(len(words))[:, None] * count
    real = words != NOT_A_WORD
    sizes = np.bincount((words + rows)[real], minlength=len(words) * count)
    return sizes.reshape(len(words), count)


def replace_masked(
    ids: Int64Array, masked: BoolArray, vocabulary: Vocabulary, rng: np.random.Generator
) -> Int64Array:
    """Replace masked tokens: 80 % by the mask token, 10 % by a random token, 10 % by themselves.

    Ids, int64, and ``masked``, bool, are ``(texts, length)``.
    """
    shown = ids.copy()
    texts, columns = masked.nonzero()
    draws = rng.random(len(texts), dtype=np.float32)
    said = np.where(draws < RANDOM + KEPT, ids[texts, columns], vocabulary.mask_id)
    random = draws < RANDOM
    said[random] = rng.integers(0, vocabulary.size, int(random.sum()))
    shown[texts, columns] = said
    return shown


def mask_tokens(
    tokens: TokenBatch, rate: float, vocabulary: Vocabulary, rng: np.random.Generator
) -> tuple[Int64Array, Int64Array]:
    """Return input ids and labels of a masked language model, int64 ``(texts, length)``.

    Labels are -100 at tokens that are not masked.
    """
    masked = whole_word_mask(tokens.words, rate, rng)
    inputs = replace_masked(tokens.ids, masked, vocabulary, rng)
    return inputs, np.where(masked, tokens.ids, IGNORED)


def masked_lm_batch(
    tokens: TokenBatch, rate: float, vocabulary: Vocabulary, rng: np.random.Generator
) -> dict[str, Int64Array | BoolArray]:
    """Return the batch of a masked language model, see `mask_tokens`."""
    inputs, labels = mask_tokens(tokens, rate, vocabulary, rng)
    return {"input_ids": inputs, "attention_mask": tokens.real, "labels": labels}


def context_mask(tokens: TokenBatch, rate: float, rng: np.random.Generator) -> BoolArray:
    """Draw the context from which RetroMAE's enhanced decoding reconstructs each token.

    For each text, as many whole-word masks are drawn as it has tokens, at most `CONTEXTS`. Each
    hides a share ``rate`` of the tokens. Every row uses one of them at random, as in the authors'
    collator (https://github.com/staoxiao/RetroMAE, src/pretrain/data.py). A row never sees its own
    token or padding. Special tokens, including position 0, are never hidden from other rows, and
    position 0 also sees itself.

    Returns:
        bool ``(texts, length, length)``, True if the row may attend to the column.
    """
    texts, length = tokens.words.shape
    sizes = _word_sizes(tokens.words)
    visible = np.empty((texts, length, length), dtype=bool)
    for text in range(texts):
        draws = min(int(tokens.real[text].sum()), CONTEXTS)
        shown = ~_masked_words(np.repeat(sizes[text : text + 1], draws, axis=0), rate, rng)
        shown = np.pad(shown, ((0, 0), (0, 1)), constant_values=True)  # column -1: not a word
        drawn = shown[:, tokens.words[text]]
        np.take(drawn, rng.integers(draws, size=length), axis=0, out=visible[text])
    visible &= tokens.real[:, None, :]
    columns = np.arange(length)
    visible[:, columns, columns] = False
    visible[:, :, 0] = True
    return visible
