"""A trained vocabulary: against a slow trainer, the same each time, and used by a new model."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.errors import BenchError
from retrievers.encoders.tokens import load_tokenizer
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.folder import ModelFolder
from retrievers.training.pretrain.pretrain import pretrain
from retrievers.training.pretrain.start import SPECIAL, train_tokenizer
from tests.support import small_starts as small
from tests.support.examples import with_examples

TEXTS = [
    *("lower low lowest slow slowest flow", "widest wide wider tide tidal", "lowland and low tide"),
    *("a slow flow of wide rivers", "newer new renew newest", "winter, winters; a winter's tale"),
]
SCRATCH = {"layers": 1, "width": 8, "heads": 2, "intermediate": 16, "positions": 16}


def slow_vocabulary(texts: list[str], size: int) -> set[str]:
    """Merge the most frequent pair, of equal ones that of the lowest ids, one after the other."""
    words = Counter(word for text in texts for word in text.split())
    letters = sorted(set("".join(words)))
    ids = {
        piece: id_ for id_, piece in enumerate([*SPECIAL, *(f"##{x}" for x in letters), *letters])
    }
    split = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in words}
    while len(ids) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in zip(split[word], split[word][1:], strict=False):
                pairs[pair] += count
        if not pairs:
            break
        first, second = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        merged = first + second.removeprefix("##")
        ids.setdefault(merged, len(ids))
        for word, pieces in split.items():
            place = 0
            while place < len(pieces) - 1:
                if pieces[place : place + 2] == [first, second]:
                    pieces[place : place + 2] = [merged]
                place += 1
            split[word] = pieces
    return set(ids)


@with_examples(20)
@given(
    st.lists(st.lists(st.text("abcd", min_size=1, max_size=6), min_size=1), min_size=1),
    st.integers(13, 40),
)
def test_pieces_are_those_of_a_slow_trainer(words, size):
    texts = [" ".join(text) for text in words]
    assert set(train_tokenizer(texts, size).get_vocab()) == slow_vocabulary(texts, size)


def test_equal_texts_give_equal_ids():
    trained = [train_tokenizer(TEXTS, 70) for _ in range(5)]
    assert all(each.get_vocab() == trained[0].get_vocab() for each in trained)
    assert len(trained[0]) == 70


def test_texts_are_tokenised_like_by_the_bert_tokenizer():
    tokenizer = train_tokenizer(TEXTS, 90)
    assert tokenizer.all_special_tokens == sorted(SPECIAL, key=tokenizer.all_special_tokens.index)
    ids = tokenizer("Löw TIDE, 東")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "low", "tide", ",", "[UNK]", "[SEP]"]
    # Pieces of one character are no special tokens, which would be found in a text as such.
    assert tokenizer.tokenize("##w") == ["[UNK]", "[UNK]", "w"]


@pytest.mark.parametrize("texts", [[], [" "], TEXTS])
def test_too_small_a_vocabulary_gives_one_error(texts):
    with pytest.raises(BenchError, match="a vocabulary of 20 pieces is too small"):
        train_tokenizer(texts, 20)


def test_a_new_model_has_the_vocabulary_of_its_texts_and_keeps_it(tmp_path):
    preset = small.preset(tmp_path, steps=2, start={"scratch": {**SCRATCH, "vocabulary": 80}})
    pretrain(preset, TEXTS, small.on_cpu(tmp_path / "out"))
    tokenizer = load_tokenizer(Checkpoint.of_network(ModelFolder(tmp_path / "out")))
    assert tokenizer.get_vocab() == train_tokenizer(TEXTS, 80).get_vocab()
    assert len(tokenizer) == 80
