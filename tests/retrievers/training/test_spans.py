"""Spans of documents: do not overlap, lie in the text, and are equally likely."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retrievers.training.spans import two_spans

words = st.text("abc\u00e9", min_size=1, max_size=4)
gaps = st.sampled_from([" ", "\n", "\t  "])


@given(st.lists(st.tuples(words, gaps), max_size=30), st.integers(1, 10), st.integers(0, 99))
def test_spans_are_two_parts_of_the_text_in_order(
    pieces: list[tuple[str, str]], most: int, seed: int
) -> None:
    text = "".join(word + gap for word, gap in pieces)
    first, second = two_spans(text, most, np.random.default_rng(seed))
    if len(pieces) < 2:
        assert first == second == text
        return
    assert len(first.split()) == len(second.split()) == min(most, len(pieces) // 2)
    assert second in text[text.index(first) + len(first) :]


def test_every_pair_of_spans_is_equally_likely() -> None:
    rng = np.random.default_rng(0)
    found = Counter(two_spans("a b c d e f", 2, rng) for _ in range(6_000))
    pairs = {(a, b) for a in range(5) for b in range(a + 2, 5)}
    letters = "abcdef"
    assert set(found) == {
        (f"{letters[a]} {letters[a + 1]}", f"{letters[b]} {letters[b + 1]}") for a, b in pairs
    }
    # 4 standard deviations of a count of 1,000
    assert all(abs(count - 1_000) < 4 * (1_000 * 5 / 6) ** 0.5 for count in found.values())
