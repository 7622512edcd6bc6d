"""What a training reads: blocks of documents, their order, how many tokens; and its loss curve."""

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.training.engine.context import LossPoint, append_point, cut_curve, read_curve
from retrievers.training.objectives.masking import tokenize
from retrievers.training.pretrain.pretrain import pretrain
from retrievers.training.pretrain.start import open_start
from retrievers.training.pretrain.texts import Blocks, Stream
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


@given(st.integers(1, 20), st.integers(1, 60), st.integers(0, 5))
def test_every_pass_reads_every_text_once(texts, places, seed):
    stream = Stream([str(number) for number in range(texts)], places, seed)
    read = [stream[place]["text"] for place in range(places)]
    for start in range(0, places - texts + 1, texts):
        assert sorted(read[start : start + texts]) == sorted(stream.texts)
    assert len({stream[place]["draw"] for place in range(places)}) == places


def test_a_seed_fixes_the_position_of_every_example():
    texts = [str(number) for number in range(50)]
    one, other = Stream(texts, 200, seed=3), Stream(texts, 120, seed=3)
    assert [other[place] for place in reversed(range(120))][::-1] == [one[i] for i in range(120)]
    orders = [[Stream(texts, 100, seed)[i]["text"] for i in range(50)] for seed in (3, 4)]
    assert orders[0] != orders[1]
    assert [one[i]["text"] for i in range(50)] != [one[50 + i]["text"] for i in range(50)]


def point(step: int) -> LossPoint:
    return LossPoint(step, {"loss": 1 / step}, 0.1, 2.0, 30)


def test_a_curve_can_be_read_truncated_and_continued(tmp_path):
    path = tmp_path / "losses.jsonl"
    cut_curve(path, 5)
    for step in range(1, 8):
        append_point(path, point(step))
    path.write_bytes(path.read_bytes()[:-9])  # killed while it wrote
    assert [one.step for one in read_curve(path)] == [1, 2, 3, 4, 5, 6]
    cut_curve(path, 4)
    append_point(path, point(5))
    assert read_curve(path) == [point(step) for step in range(1, 6)]


# Of one to six sentences: coCondenser and CoT-MAE read two spans of each, of up to 14 tokens.
SHORT = [" ".join(small.texts()[n : n + 1 + n % 6]) for n in range(34)]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return small.write_start(tmp_path_factory.mktemp("start") / "bert", small.texts())


@pytest.mark.slow
def test_a_training_reads_the_tokens_that_are_asked_for(start, tmp_path):
    preset = small.preset(start, objective={"name": "cocondenser"}, steps=None, tokens=2_000)
    trained = pretrain(preset, SHORT, on_cpu(tmp_path))
    read = sum(point.tokens for point in read_curve(tmp_path / "losses.jsonl"))
    a_step = read / trained.steps
    assert abs(read - 2_000) < a_step + 0.03 * 2_000
