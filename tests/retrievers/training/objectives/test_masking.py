"""Whole-word masks and contexts: rates, and the same distribution as one token at a time."""

import random
from collections import Counter

import numpy as np
import pytest
import tokenizers
import transformers

from foundation.errors import BenchError
from retrievers.training.objectives.masking import (
    IGNORED,
    NOT_A_WORD,
    TokenBatch,
    Vocabulary,
    context_mask,
    mask_tokens,
    replace_masked,
    tokenize,
    whole_word_mask,
)
from tests.support import slow_masking as slow
from tests.support import tiny_encoders as tiny

DRAWS = 4_000
TEXT = [-1, 0, 1, 1, 2, 3, 3, 3, -1, -1]  # two words of one token, one of two, one of three
SHORT = [-1, 0, 0, 1, -1, -1, -1, -1, -1, -1]


def tokens_of(words: list[int], copies: int = 1) -> TokenBatch:
    """Copies of a text; one special token follows its words, then padding."""
    repeated = np.array([words] * copies)
    ids = 100 + np.arange(repeated.size).reshape(repeated.shape)
    end = max(place for place, word in enumerate(words) if word != NOT_A_WORD) + 1
    real = np.broadcast_to(np.arange(len(words)) <= end, repeated.shape)
    return TokenBatch(ids, real, repeated)


def frequencies(found: list[tuple[bool, ...]]) -> dict[tuple[bool, ...], float]:
    return {mask: count / len(found) for mask, count in Counter(found).items()}


def assert_same_distribution(one: list[tuple[bool, ...]], other: list[tuple[bool, ...]]) -> None:
    """Each outcome is as frequent in both, within 5 standard deviations of the difference."""
    left, right = frequencies(one), frequencies(other)
    for mask in left.keys() | right.keys():
        p, q = left.get(mask, 0.0), right.get(mask, 0.0)
        mean = (p + q) / 2
        assert abs(p - q) <= 5 * (2 * mean * (1 - mean) / len(one)) ** 0.5 + 1e-12, mask


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_have_the_distribution_of_a_loop_over_tokens(rate: float) -> None:
    draw = random.Random(0)
    masks = whole_word_mask(np.array([TEXT, SHORT] * DRAWS), rate, np.random.default_rng(0))
    for text, found in ((TEXT, masks[::2]), (SHORT, masks[1::2])):
        expected = [tuple(slow.whole_word_mask(text, rate, draw)) for _ in range(DRAWS)]
        assert_same_distribution(expected, [tuple(row) for row in found.tolist()])


def test_replacements_have_the_distribution_of_a_loop_over_tokens() -> None:
    draw = random.Random(0)
    ids, masked = [7, 8, 9], [True, False, True]
    one = [tuple(slow.replace_masked(ids, masked, 0, 3, draw)) for _ in range(DRAWS)]
    many = np.array([ids] * DRAWS), np.array([masked] * DRAWS)
    other = replace_masked(*many, Vocabulary(0, 3), np.random.default_rng(0))
    assert_same_distribution(one, [tuple(row) for row in other.tolist()])


def test_labels_are_the_masked_tokens_and_nothing_else() -> None:
    tokens = tokens_of(TEXT, 50)
    inputs, labels = mask_tokens(tokens, 0.5, Vocabulary(0, 9), np.random.default_rng(0))
    chosen = labels != IGNORED
    assert (labels[chosen] == tokens.ids[chosen]).all()
    assert (inputs[~chosen] == tokens.ids[~chosen]).all()


def test_rows_have_one_of_256_masks_of_their_text() -> None:
    words = [-1, *range(400), -1]
    seen = context_mask(tokens_of(words, 1), 0.5, np.random.default_rng(0))[0, 1:-1, 1:-1]
    seen[np.arange(400), np.arange(400)] = False
    agree = (seen[:, None] == seen[None]).sum(axis=2) >= 398  # but for the two rows' own tokens
    masks = len({tuple(np.flatnonzero(row)) for row in agree})
    # 400 rows draw from 256 masks: 256 (1 - (255 / 256)^400) of them are drawn on average.
    assert masks == pytest.approx(202, abs=25)


def test_contexts_have_the_distribution_of_a_loop_over_tokens() -> None:
    draw, text = random.Random(0), [-1, 0, 0, 1, -1, -1]
    tokens = tokens_of(text, DRAWS)
    real = tokens.real[0].tolist()
    drawn = [slow.context_mask(text, real, 0.3, draw) for _ in range(DRAWS)]
    one = [(*rows[1], *rows[2]) for rows in drawn]
    other = context_mask(tokens, 0.3, np.random.default_rng(0))[:, 1:3].reshape(DRAWS, -1)
    assert_same_distribution(one, [tuple(row) for row in other.tolist()])


def test_pieces_of_a_word_share_its_number(tmp_path) -> None:
    tokens = tokenize(tiny.tokenizer(tmp_path), ["the clouds of", "a"], 20)
    assert tokens.words[0].tolist() == [-1, 0, 1, 1, 2, -1]
    assert tokens.words[1].tolist() == [-1, 0, -1, -1, -1, -1]
    assert tokens.real.sum(axis=1).tolist() == [6, 3]


def test_words_of_byte_level_tokenizers_are_separated() -> None:
    inner = tokenizers.ByteLevelBPETokenizer()
    inner.train_from_iterator(
        ["a river"], vocab_size=260, special_tokens=["<s>", "<mask>", "<pad>"]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner._tokenizer, mask_token="<mask>", pad_token="<pad>"
    )
    tokens = tokenize(tokenizer, ["a cat."], 20)
    assert tokens.words[0].tolist() == [0, 1, 1, 1, 1, 2]


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    class NoMask:
        mask_token_id = None

    with pytest.raises(BenchError, match="no mask token"):
        Vocabulary.of(NoMask())
