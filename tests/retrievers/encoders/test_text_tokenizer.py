"""Token ids against those of Hugging Face's own call of the tokenizer."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from retrievers.encoders.tokens import TextTokenizer
from retrievers.models.resolve import resolve_model
from tests.support.examples import with_examples

# What the rules of the tokenizer treat in a way of its own, and what Python splits otherwise.
ODD = [
    *("[SEP]", "[MASK]", "[CLS]", "[PAD]", "[UNK]", "[sep]", "[SE", "P]", "[", "]", "[[SEP]]"),
    *(" ", "\t", "\n", "\v", "\x1c", "\xa0", "\u2028", "\0", "\x01", "\xad", "\u200b", "\ufffd"),
    *("\u0301", "É", "İ", "ß", "ﬁ", "中", "が", "—", "’", "½", "😀", "👩\u200d💻", "नص", "हिन्दी"),
    *("##ing", "unaffable", "word", "Word", "x" * 101, "don't", "3.14", "a-b", "U.S."),
]
texts = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=4)), max_size=12).map("".join)
segments = st.lists(st.tuples(texts, st.one_of(st.none(), texts)), max_size=6)


def folder() -> str:
    checkpoint = resolve_model("minilm").document
    assert checkpoint
    return str(checkpoint.folder)


def own(side: Any = "right", **changes: Any) -> TextTokenizer:
    tokenizer = Tokenizer.from_file(f"{folder()}/tokenizer.json")
    return TextTokenizer(tokenizer, side, True, **changes)


@cache
def both(side: str) -> tuple[TextTokenizer, Any]:
    """Ours, and that of Hugging Face."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder(), truncation_side=side)
    return own(side), theirs


@with_examples(40)
@given(segments, st.one_of(st.none(), st.integers(4, 20)), st.sampled_from(["left", "right"]))
@example([("ma[SEP]de", None), ("a b c d e f g", "h"), ("", "")], 6, "left")
def test_ids_and_types_are_those_of_hugging_face_in_the_order_of_the_texts(
    pairs: list[tuple[str, str | None]], most: int | None, side: str
) -> None:
    ours, theirs = both(side)
    found = ours(pairs, most)
    cut = {"truncation": True, "max_length": most} if most else {}
    expected = [
        # A list, since a second text of "" alone is none for it.
        theirs([first], None if second is None else [second], **cut)
        for first, second in pairs
    ]
    assert len(found) == len(pairs)
    for row, text in enumerate(expected):
        one = found.take(np.array([row]))
        assert one.types is not None
        assert [one.ids.tolist()] == text["input_ids"]
        assert [one.types.tolist()] == text["token_type_ids"]


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_in_a_text_are_read_as_text_where_asked(split: bool) -> None:
    found = own(split_special_tokens=split)
    assert (102 in found([("a [SEP] b", None)], None).ids[1:-1]) != split
