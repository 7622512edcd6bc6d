"""Documents in blocks: nothing is lost, no block is too long, words stay whole."""

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.training.engine.curve import read_curve
from retrievers.training.objectives.cocondenser import CoCondenser
from retrievers.training.objectives.masking import tokenize
from retrievers.training.pretrain.pretrain import pretrain
from retrievers.training.pretrain.start import open_start
from retrievers.training.pretrain.texts import READ_DOCUMENTS, Blocks, texts_of
from tests.support import small_starts as small
from tests.support.small_starts import on_cpu

TEXTS = small.texts()
LONG = [" ".join(TEXTS[:6]), TEXTS[7], " ".join(TEXTS[8:20])]
words = st.lists(st.sampled_from([*small.WORDS, "rivers,", "(über)", "x" * 40]), min_size=1)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / request.param
    start = small.write_start(folder, TEXTS, kind=request.param)
    return open_start(small.preset(start).start, 0).tokenizer


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@given(documents=st.lists(words.map(" ".join), min_size=1, max_size=5), size=st.integers(8, 40))
def test_the_blocks_of_a_document_are_the_document(tokenizer, documents, size):
    blocks = Blocks(documents, tokenizer, size)
    for row, document in enumerate(documents):
        own = [block for block, of in zip(blocks, blocks.document, strict=True) if of == row]
        assert "".join(own) == document


@given(documents=st.lists(words.map(" ".join), min_size=1, max_size=5), size=st.integers(48, 80))
def test_blocks_are_read_whole_and_give_the_tokens_of_the_document(tokenizer, documents, size):
    """Here no word has more tokens than a block: then each block begins with a word."""
    blocks = Blocks(documents, tokenizer, size)
    room = size - tokenizer.num_special_tokens_to_add()
    for row, document in enumerate(documents):
        own = [
            ids(tokenizer, b) for b, of in zip(blocks, blocks.document, strict=True) if of == row
        ]
        assert list(chain(*own)) == ids(tokenizer, document)
        assert max(map(len, own)) <= room
        for block, after in pairwise(own):
            # The next word did not fit: no word here has more than 42 tokens.
            assert len(block) + 42 > room or len(block) + len(after) > room


def test_a_word_of_more_tokens_than_a_block_is_cut(tokenizer):
    blocks = Blocks(["x" * 40 + " river"], tokenizer, 10)
    assert "".join(blocks) == "x" * 40 + " river"
    assert tokenize(tokenizer, list(blocks), 10).ids.shape[1] <= 10


def test_blocks_of_many_documents_keep_their_order(tokenizer):
    documents = [f"river stone {number}" for number in range(READ_DOCUMENTS + 3)]
    told = []
    blocks = Blocks(documents, tokenizer, 32, told.append)
    assert blocks[:] == documents
    assert blocks.document.tolist() == list(range(len(documents)))
    assert told == [READ_DOCUMENTS, READ_DOCUMENTS + 3]


def test_training_reads_every_token_of_long_documents(tmp_path):
    """Truncated, two thirds of these tokens were never read."""
    start = small.write_start(tmp_path / "bert", TEXTS)
    read = {}
    for long_texts in ("split", "truncate"):
        preset = small.preset(start, long_texts=long_texts, steps=None, epochs=1, batch_size=1)
        out = tmp_path / long_texts
        trained = pretrain(preset, LONG, on_cpu(out))
        tokens = sum(point.tokens for point in read_curve(out / "losses.jsonl"))
        read[long_texts] = tokens - 2 * trained.texts_read  # [CLS] and [SEP]
    tokenizer = open_start(preset.start, 0).tokenizer
    assert read["split"] == sum(len(ids(tokenizer, text)) for text in LONG)
    assert read["truncate"] < 0.4 * read["split"]


def test_spans_are_drawn_from_whole_documents(tokenizer, tmp_path):
    start = small.write_start(tmp_path / "bert", TEXTS)
    preset = small.preset(start, objective={"name": "cocondenser"})
    assert isinstance(preset.objective, CoCondenser)
    assert texts_of(preset, LONG, tokenizer) is LONG
