"""Spans of documents: do not overlap, lie in the text, and are equally likely."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retrievers.training.objectives.spans import adjoining_spans, sentence_and_rest, two_spans

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


@given(st.integers(0, 30), st.integers(1, 10), st.integers(0, 60), st.booleans(), st.integers(0, 9))
def test_an_adjoining_span_begins_where_the_first_is_no_longer_read(
    count: int, most: int, room: int, overlap: bool, seed: int
) -> None:
    text = " ".join(f"w{place:02}" for place in range(count))  # each word once: four characters
    rng = np.random.default_rng(seed)
    first, second = adjoining_spans(text, most, lambda span: room, overlap, rng)
    if count < 2:
        assert first == second == text
        return
    words = text.split()
    starts = [words.index(span.split()[0]) for span in (first, second)]
    for span, start in zip((first, second), starts, strict=True):
        assert span.split() == words[start : start + min(most, count // 2)]
    length = len(first[:room].split())
    shared = starts[0] + length - starts[1]
    if overlap and length > 1:
        assert 1 <= shared <= length / 2
    else:
        assert shared == 0


def test_every_place_and_every_overlap_is_equally_likely() -> None:
    rng = np.random.default_rng(0)
    drawn = Counter(adjoining_spans("a b c d e f g h i j", 4, len, True, rng) for _ in range(6_000))
    letters = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
    assert set(drawn) == {
        (" ".join(letters[a : a + 4]), " ".join(letters[a + 4 - shared : a + 8 - shared]))
        for a in range(3)
        for shared in (1, 2)
    }
    # 4 standard deviations of a count of 1,000
    assert all(abs(count - 1_000) < 4 * (1_000 * 5 / 6) ** 0.5 for count in drawn.values())


TEXT = "The river rose. Was it e.g. the rain? A bridge fell!\n\nStones at 3.5 m"
SENTENCES = ["The river rose.", "Was it e.g.", "the rain?", "A bridge fell!", "Stones at 3.5 m"]


def test_a_sentence_is_taken_out_of_its_text() -> None:
    rng = np.random.default_rng(0)
    found = Counter(sentence_and_rest(TEXT, 99, 0.0, rng)[0] for _ in range(500))
    assert set(found) == set(SENTENCES)
    for _ in range(20):
        sentence, rest = sentence_and_rest(TEXT, 99, 0.0, rng)
        assert sentence not in rest
        others = [one for one in SENTENCES if one != sentence]
        assert rest.split() == " ".join(others).split()


def test_a_share_of_the_texts_keeps_its_sentence() -> None:
    rng = np.random.default_rng(0)
    assert {sentence_and_rest(TEXT, 99, 1.0, rng)[1] for _ in range(20)} == {TEXT}
    kept = sum(sentence_and_rest(TEXT, 99, 0.1, rng)[1] == TEXT for _ in range(1_000))
    assert abs(kept - 100) < 4 * 90**0.5


def test_sentences_are_drawn_from_what_the_encoder_will_read() -> None:
    rng = np.random.default_rng(0)
    found = {sentence_and_rest(TEXT, 4, 1.0, rng) for _ in range(50)}
    assert found == {(one, "The river rose. Was") for one in ("The river rose.", "Was")}


def test_a_text_of_one_sentence_gives_its_halves() -> None:
    found = sentence_and_rest("a river of stones", 99, 0.1, np.random.default_rng(0))
    assert found == ("a river", "of stones")
    assert sentence_and_rest("river", 99, 0.0, np.random.default_rng(0)) == ("river", "river")
