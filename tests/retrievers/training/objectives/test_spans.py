"""Spans of documents: do not overlap, lie in the text, reach all of it, and are equally likely."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retrievers.training.objectives.condenser import CoCondenser
from retrievers.training.objectives.masking import Context, draw_spans, draw_starts
from retrievers.training.objectives.retromae import CoTMAE
from retrievers.training.pretrain.start import open_start
from tests.support import small_starts as small
from tests.support import tiny_encoders as tiny
from tests.support.examples import with_examples

ALPHABET = "abcdefghijklmnopqrstuvwxyz"  # each letter is a token of the tiny tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("objective", [CoCondenser(), CoTMAE()], ids=["cocondenser", "cotmae"])
@with_examples(12)
@given(st.lists(st.integers(1, 8), max_size=8), st.integers(8, 12), st.integers(0, 99))
def test_every_token_of_a_text_is_read_in_some_draw(
    tokenizer: Any, objective: Any, sizes: list[int], max_tokens: int, seed: int
) -> None:
    """Words of several tokens, each token once in the text, so that its place is known."""
    ends = np.minimum(np.cumsum([0, *sizes]), len(ALPHABET)).tolist()
    words = [ALPHABET[start:end] for start, end in pairwise(ends)]
    letters = "".join(words)
    examples = tiny.examples([" ".join(words)] * 400, first_draw=1_000 * seed)
    batch = objective.collator(tokenizer, max_tokens)(examples)
    original = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    spans = [
        "".join(tokenizer.convert_ids_to_tokens(row[real])[1:-1]).replace("#", "")
        for row, real in zip(original, batch["attention_mask"], strict=True)
    ]
    assert set("".join(spans)) == set(letters)
    assert all(span in letters and len(span) <= max_tokens - 2 for span in spans)
    for first, second in zip(spans[::2], spans[1::2], strict=True):
        if len(letters) < 2:
            assert first == second == letters
        else:
            assert len(first) == len(second) == min(max_tokens - 2, len(letters) // 2)
            assert objective.name == "cotmae" or not set(first) & set(second)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_spans_are_tokens_of_the_text_between_special_tokens(kind: str, tmp_path: Path) -> None:
    start = small.write_start(tmp_path / kind, small.texts(), kind=kind)
    tokenizer = open_start(small.preset(start).start, 0).tokenizer
    texts = ["", "river", *small.texts(), f"{tokenizer.sep_token} river {tokenizer.mask_token} of"]
    rng = np.random.default_rng(0)
    tokens = draw_spans(tokenizer, texts, 8, ["random"], rng)
    for row, (ids, real, words) in enumerate(
        zip(tokens.ids, tokens.real, tokens.words, strict=True)
    ):
        whole = tokenizer(texts[row // 2], add_special_tokens=False)["input_ids"]
        span = ids[real].tolist()
        size = min(6, len(whole) // 2) or len(whole)
        assert (span[0], span[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert span[1:-1] in [whole[i : i + size] for i in range(len(whole) - size + 1)]
        assert words[real].tolist()[:: size + 1] == [-1, -1]
        assert (np.diff(words[1 : size + 1]) <= 1).all()
        assert (ids[~real] == tokenizer.pad_token_id).all()
        assert (words[~real] == -1).all()


PAIRS = [(a, b) for a in range(5) for b in range(a + 2, 5)]
OVERLAPS = {
    (a, a + 4 - shared): 1 / (2 * (2 + shared)) for shared in (1, 2) for a in range(2 + shared)
}


@pytest.mark.parametrize(
    ("tokens", "size", "context", "shares"),
    [
        (6, 2, "random", dict.fromkeys(PAIRS, 1 / len(PAIRS))),
        (9, 4, "nearby", {(0, 4): 1 / 2, (1, 5): 1 / 2}),
        (9, 4, "overlap", OVERLAPS),
    ],
)
def test_every_place_of_spans_is_equally_likely(
    tokens: int, size: int, context: Context, shares: dict[tuple[int, int], float]
) -> None:
    rng = np.random.default_rng(0)
    drawn = Counter(draw_starts(tokens, size, context, rng) for _ in range(6_000))
    assert set(drawn) == set(shares)
    for pair, share in shares.items():
        assert abs(drawn[pair] - 6_000 * share) < 4 * (6_000 * share) ** 0.5
