"""Token ids from a cache of words against those of the tokenizer itself."""

import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.processors import BertProcessing

from retrievers.encoders import tokens as word_pieces
from retrievers.encoders.protocol import Segments, join
from retrievers.encoders.tokens import TextTokenizer, Tokens, splits_words
from retrievers.models.model import resolve_model
from retrievers.models.recipe import TitleJoin

ROOT = Path(__file__).parents[3]
NORMALIZERS = [
    {"lowercase": lowercase, "strip_accents": accents, "handle_chinese_chars": chinese}
    for lowercase, accents, chinese in [
        (True, None, True),
        (True, False, True),
        (False, None, True),
        (False, True, False),
    ]
]
# What the rules of the tokenizer treat in a way of its own, and what Python splits otherwise.
ODD = [
    *("[SEP]", "[MASK]", "[CLS]", "[PAD]", "[UNK]", "[sep]", "[SE", "P]", "[", "]", "[[SEP]]"),
    *(" ", "\t", "\n", "\r", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u2028", "\u3000"),
    *("\0", "\x01", "\x08", "\x0e", "\x1b", "\x7f", "\xad", "\u200b", "\ufeff", "\ufffd", "\ue000"),
    *(
        "\u0301",
        "\u0338",
        "é",
        "É",
        "≯",
        "İ",
        "ß",
        "ﬁ",
        "Σ",
        "ς",
        "ǅ",
        "中",
        "文",
        "が",
        "각",
        "ᄀ",
    ),
    *("—", "“", "’", "…", "‿", "€", "½", "Ⅷ", "𝔄", "😀", "👩\u200d💻", "\U0001f1e9", "نص", "हिन्दी"),
    *("##ing", "unaffable", "word", "Word", "x" * 101, "don't", "3.14", "a-b", "U.S.", "don", "t"),
]
odd_texts = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=4)), max_size=12).map("".join)
texts = st.one_of(odd_texts, st.text(max_size=30))


def real_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Title and text of every document and query of the collections in a folder."""
    for path in sorted(folder.glob("*/*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            yield record.get("title", ""), record["text"]
    for path in sorted(folder.glob("msmarco-sample/[cq]*.tsv")):
        if not path.name.startswith("qrels"):
            for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
                yield "", line.split("\t", 1)[1]


def segments_of(rule: TitleJoin, documents: Sequence[tuple[str, str]]) -> list[Segments]:
    """What a tokenizer is given."""
    return [join(rule, "", title, text, "[SEP]") for title, text in documents]


segments = st.lists(st.tuples(texts, st.one_of(st.none(), texts)), max_size=6)


def minilm() -> str:
    checkpoint = resolve_model("minilm").document
    assert checkpoint
    return (checkpoint.folder / "tokenizer.json").read_text(encoding="utf-8")


@cache
def both(choice: int, side: Any) -> tuple[TextTokenizer, TextTokenizer]:
    """From the cache of words, and by the tokenizer itself."""

    def tokenizer() -> Any:
        own = Tokenizer.from_str(minilm())
        own.normalizer = normalizers.BertNormalizer(**NORMALIZERS[choice])
        return own

    cached = TextTokenizer(tokenizer(), side, True)
    assert cached.cached
    return cached, TextTokenizer(tokenizer(), side, True, cached=False)


def assert_same(found: Tokens, expected: Tokens) -> None:
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert found.ids.tolist() == expected.ids.tolist()
    assert (found.types is None) == (expected.types is None)
    if found.types is not None and expected.types is not None:
        assert found.types.tolist() == expected.types.tolist()


@settings(max_examples=400, deadline=None)
@given(segments, st.one_of(st.none(), st.integers(4, 20)), st.integers(0, 3), st.booleans())
@example([("a\0b \0 c", None), ("[S\x01EP]", "[S\vEP]"), ("ma[SEP]de", None)], None, 0, True)
@example([("\x01 \x02", None), ("", ""), ("", None), ("a b c d e f g", "h")], 6, 0, False)
def test_ids_from_words_are_those_of_the_tokenizer(
    pairs: list[tuple[str, str | None]], most: int | None, choice: int, right: bool
) -> None:
    found, expected = both(choice, "right" if right else "left")
    assert_same(found(pairs, most), expected(pairs, most))


def test_every_character_alone_and_between_letters_has_the_ids_of_the_tokenizer() -> None:
    found, expected = both(0, "right")
    characters = [
        chr(code) for code in (*range(0x3100), *range(0xA000, 0xD800, 7), *range(0xF900, 0x10000))
    ]
    pairs = [(f"a{character}b {character}", None) for character in characters]
    assert_same(found(pairs, None), expected(pairs, None))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 12), st.integers(0, 12), st.integers(4, 20), st.sampled_from(["left", "right"])
)
def test_pairs_are_cut_as_the_tokenizer_cuts_them(
    first: int, second: int, most: int, side: str
) -> None:
    found, expected = both(0, side)
    pairs = [(" ".join("abcdefghijkl"[:first]), " ".join("mnopqrstuvwx"[:second]))]
    assert_same(found(pairs, most), expected(pairs, most))


def test_a_cache_that_is_full_is_emptied_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_pieces, "MOST_WORDS", 40)
    monkeypatch.setattr(word_pieces, "CHARACTERS", 50)
    own = TextTokenizer(Tokenizer.from_str(minilm()), "right", False)
    _, expected = both(0, "right")
    pairs = [(f"word{n} and {n * 17} [SEP] others", None) for n in range(200)]
    found = own(pairs, None)
    assert_same(found, Tokens(expected(pairs, None).ids, expected(pairs, None).lengths))
    assert own._cache is not None
    assert len(own._cache) < 80


def test_half_a_surrogate_pair_is_what_the_tokenizer_makes_of_it() -> None:
    found, expected = both(0, "right")
    answers = []
    for tokenizer in (found, expected):
        with pytest.raises((TypeError, UnicodeEncodeError)) as caught:
            tokenizer([("a \ud800 b", None)], None)
        answers.append(caught.type)
    assert answers[0] == answers[1]


def variants() -> Iterator[tuple[str, Any]]:
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4, "hello": 5}

    def bert() -> Any:
        own = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
        own.normalizer = normalizers.BertNormalizer()
        own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        own.post_processor = BertProcessing(("[SEP]", 2), ("[CLS]", 1))
        return own

    yield "plain", bert()
    other = bert()
    other.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.BertNormalizer()])
    yield "normalizer", other
    other = bert()
    other.normalizer = normalizers.BertNormalizer(clean_text=False)
    yield "clean_text", other
    other = bert()
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    yield "pre_tokenizer", other
    for name, token in {
        "word": AddedToken("hello", normalized=False),
        "normalized": AddedToken("[X]", normalized=True),
        "stripped": AddedToken("[X]", normalized=False, lstrip=True),
        "alone": AddedToken("[X]", normalized=False, single_word=True),
    }.items():
        other = bert()
        other.add_tokens([token])
        yield name, other


@pytest.mark.parametrize(
    ("name", "tokenizer"), list(variants()), ids=[name for name, _ in variants()]
)
def test_only_known_rules_are_read_from_the_cache(name: str, tokenizer: Any) -> None:
    assert splits_words(tokenizer) == (name == "plain")
    content = tokenizer.to_str()
    found = TextTokenizer(tokenizer, "right", True)
    expected = TextTokenizer(Tokenizer.from_str(content), "right", True, cached=False)
    assert found.cached == (name == "plain")
    pairs = [("Hello [X]a hello", None), ("AB a", " [X] b"), ("\vhello\f", None)]
    assert_same(found(pairs, 7), expected(pairs, 7))


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_in_a_text_are_read_as_text_where_asked(split: bool) -> None:
    found = TextTokenizer(Tokenizer.from_str(minilm()), "right", False, split_special_tokens=split)
    assert found.cached != split
    assert (102 in found([("a [SEP] b", None)], None).ids[1:-1]) != split


def folder() -> Path:
    return Path(os.environ.get("BENCH_DATA", "/nowhere"))


needs_data = pytest.mark.skipif("BENCH_DATA" not in os.environ, reason="needs BENCH_DATA")


@needs_data
def test_ids_of_some_real_texts_are_those_of_the_tokenizer() -> None:
    found, expected = both(0, "right")
    sample = list(real_texts(folder()))[::97]
    assert len(sample) > 500
    for rule in ("space", "sep", "pair"):
        pairs = segments_of(rule, sample)
        assert_same(found(pairs, 128), expected(pairs, 128))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("rule", ["space", "sep", "pair"])
@pytest.mark.parametrize("most", [None, 32, 256])
def test_ids_of_all_real_texts_are_those_of_the_tokenizer(rule: str, most: int | None) -> None:
    found, expected = both(0, "right")
    pairs = segments_of(rule, list(real_texts(folder())))
    assert len(pairs) > 50_000
    for start in range(0, len(pairs), 4_096):
        some = pairs[start : start + 4_096]
        assert_same(found(some, most), expected(some, most))
