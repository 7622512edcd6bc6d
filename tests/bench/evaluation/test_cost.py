"""The cost of a run before it starts."""

import json
import time

import numpy as np
import pytest

from bench.evaluation.encoding import mean_tokens, measure_speed
from datasets_cfg.corpus import Corpus
from datasets_cfg.readers.reader import Document
from retrievers.encoders.transformer import open_encoder
from retrievers.models.card import Recipe
from retrievers.models.resolve import resolve_model
from tests.support.collections import DOCUMENTS, write_collection

TOKENS = 10


class TimedEncoder:
    """Takes a known time for each token, by a clock of its own."""

    dim = 4
    recipe = Recipe(model="timed", kind="hashing", dim=4, max_document_tokens=TOKENS)

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sizes: list[int] = []
        self.texts: set[str] = set()

    def count_document_tokens(self, titles, texts):
        return [TOKENS + len(text) for text in texts]  # more than the recipe lets through

    def encode_documents(self, titles, texts, advance=None):
        loading_s = 0.0 if self.sizes else 100.0
        self.now_s += loading_s + 0.05 * TOKENS * len(texts)
        self.sizes.append(len(texts))
        self.texts.update(texts)
        return np.zeros((len(texts), self.dim), np.float32)


def corpus_of(count: int, folder) -> Corpus:
    return Corpus.build([Document(str(n), "", f"text {n}") for n in range(count)], folder / "c")


@pytest.fixture
def encoder(monkeypatch):
    made = TimedEncoder()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now_s)
    return made


@pytest.mark.parametrize("documents", [1, 3, 500])
def test_loading_the_weights_is_not_counted(documents, encoder, tmp_path):
    assert measure_speed(encoder, corpus_of(documents, tmp_path), 20.0) == pytest.approx(20.0)


def test_tokens_are_counted_as_the_recipe_cuts_them_and_words_without_a_tokenizer(
    encoder, tmp_path
):
    corpus = corpus_of(50, tmp_path)
    assert mean_tokens(encoder, corpus) == TOKENS
    assert mean_tokens(open_encoder(resolve_model("hashing")), corpus) == 2


def test_a_dry_run_says_what_a_run_encodes_and_evaluates_nothing(bench, tmp_path):
    def dry(*folders, model="hashing"):
        done = bench("run", *folders, "--model", model, "--dry-run", "--json")
        assert done.code == 0, done.stderr
        return json.loads(done.stdout)["costs"]

    folders = [
        write_collection(tmp_path / name, metadata=f'name = "{name}"\n') for name in ("a", "b")
    ]
    before, same = dry(*folders)
    assert before["documents"] == len(DOCUMENTS)
    assert before["to_encode"] == len(set(DOCUMENTS.values()))
    assert min(before["tokens"], before["disk_bytes"]) > 0
    assert before["memory_bytes"] > 10_000_000
    assert same["to_encode"] == 0  # its documents are the same
    assert not bench.out.exists()
    assert bench("run", folders[0], "--model", "hashing").code == 0
    (after,) = dry(folders[0])
    assert after["to_encode"] == after["tokens"] == after["encode_s"] == after["disk_bytes"] == 0
    (words,) = dry(folders[0], model="bm25")
    assert words["to_encode"] == 0
    assert words["memory_bytes"] > 10_000_000
