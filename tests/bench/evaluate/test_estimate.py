"""The estimate before long work, and the question to a terminal user."""

import io
import json
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from bench.evaluate import estimate
from bench.evaluate.estimate import (
    LONG_S,
    TOKENS_PER_WORD,
    Limits,
    Speed,
    confirm,
    estimate_at_hand,
    estimate_from_counts,
    mean_tokens,
    measure_speed,
    readable,
)
from bench.store import VectorStore
from datasets_cfg.catalogue import facts_for
from datasets_cfg.corpus import Corpus, Document
from datasets_cfg.dataset import Dataset, open_dataset
from foundation.errors import BenchError
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model
from retrievers.models.recipe import Recipe


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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


LIMITS = Limits(depth=None, memory=1 << 40)


@pytest.fixture
def encoder(monkeypatch):
    made = TimedEncoder()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now_s)
    return made


@pytest.mark.parametrize("documents", [1, 3, 500])
def test_loading_the_weights_is_not_counted(documents, encoder, tmp_path):
    speed = measure_speed(encoder, corpus_of(documents, tmp_path))
    assert speed.tokens_per_s == pytest.approx(20.0)


def test_the_probe_ends_when_its_time_is_over(encoder, tmp_path):
    measure_speed(encoder, corpus_of(3000, tmp_path), budget_s=60.0)
    assert sum(encoder.sizes) == 4 + 2 * 64  # 32 s a chunk


def test_the_sample_is_spread_over_the_corpus_and_the_same_each_time(encoder, tmp_path):
    corpus = corpus_of(10_000, tmp_path)
    measure_speed(encoder, corpus)
    first = set(encoder.texts)
    measure_speed(encoder, corpus)
    assert encoder.texts == first
    rows = [int(text.split()[1]) for text in first]
    assert min(rows) < 1000
    assert max(rows) > 500


def test_tokens_are_counted_as_the_recipe_cuts_them(encoder, tmp_path):
    assert mean_tokens(encoder, corpus_of(50, tmp_path)) == TOKENS


def test_without_a_tokenizer_words_are_counted(tmp_path):
    words = open_encoder(resolve_model("hashing"))
    assert mean_tokens(words, corpus_of(50, tmp_path)) == 2


def test_what_is_stored_costs_nothing(tmp_path):
    dataset = folder_of_documents(tmp_path / "tiny", 30)
    encoder, store = open_encoder(resolve_model("hashing")), VectorStore(tmp_path / "vectors")
    speed = Speed(tokens_per_s=10.0, resident_bytes=1)
    before = estimate_at_hand(dataset, encoder, store, speed, LIMITS)
    assert before.to_encode == before.documents == 30
    assert before.tokens == 60
    assert before.encode_s == pytest.approx(6.0)
    assert before.disk_bytes == 30 * (4 * encoder.dim + 16)
    store.documents(encoder, dataset.corpus, store.plan(encoder, dataset.corpus))
    after = estimate_at_hand(dataset, encoder, store, speed, LIMITS)
    assert (after.to_encode, after.tokens, after.encode_s, after.disk_bytes) == (0, 0, 0.0, 0)
    assert after.search_s > 0


def test_a_collection_that_is_not_here_is_counted_by_its_published_size(encoder):
    found = estimate_from_counts(facts_for("msmarco/dev"), encoder, Speed(1000.0, 1), LIMITS)
    assert found.sure == "about"
    assert found.documents == 8_841_823
    assert found.tokens == 8_841_823 * TOKENS  # the recipe reads fewer than a passage has
    assert found.encode_s == pytest.approx(88_418.23)


def test_the_published_mean_of_words_says_how_many_tokens_there_are_about(encoder):
    encoder.recipe = msgspec.structs.replace(encoder.recipe, max_document_tokens=512)
    speed = Speed(1000.0, 1)
    known = estimate_from_counts(facts_for("msmarco/dev"), encoder, speed, LIMITS)
    assert known.tokens == round(8_841_823 * 55.98 * 1.5)
    unknown = estimate_from_counts(facts_for("msmarco-title/dev"), encoder, speed, LIMITS)
    assert (unknown.sure, unknown.tokens) == ("at most", unknown.documents * 512)


@pytest.mark.parametrize("name", ["scifact", "nfcorpus"])
def test_published_words_and_tokens_of_a_word_are_those_of_the_real_files(name, bench_data):
    lines = (bench_data / "beir" / name / "corpus.jsonl").read_text().splitlines()
    texts = [f"{line['title']} {line['text']}" for line in map(json.loads, lines)]
    words = sum(len(text.split()) for text in texts) / len(texts)
    assert facts_for(f"beir/{name}").counts.mean_words == pytest.approx(words, rel=0.01)
    tokenizer = Tokenizer.from_file(str(next(bench_data.glob("tokenizers/*/tokenizer.json"))))
    tokenizer.no_truncation()
    tokens = sum(len(each.ids) for each in tokenizer.encode_batch(texts)) / len(texts)
    assert tokens / words == pytest.approx(TOKENS_PER_WORD, rel=0.1)


def test_what_does_not_fit_in_memory_is_refused_with_what_it_needs(encoder):
    with pytest.raises(BenchError, match="search needs at least") as refused:
        estimate_from_counts(
            facts_for("msmarco/dev"), encoder, Speed(1000.0, 1), Limits(None, 1 << 20)
        )
    assert "--max-memory" in refused.value.hint


def test_a_smaller_budget_means_less_memory(encoder):
    facts, speed = facts_for("msmarco/dev"), Speed(1000.0, 1)
    large, small = (
        estimate_from_counts(facts, encoder, speed, Limits(100, budget)).memory_bytes
        for budget in (1 << 40, 300 << 20)
    )
    assert small <= 300 << 20 < large


def folder_of_documents(folder: Path, count: int) -> Dataset:
    (folder / "qrels").mkdir(parents=True)
    lines = [{"_id": str(n), "title": "", "text": f"text {n}"} for n in range(count)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "text 1"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    return open_dataset(str(folder), cache_dir=folder / "cache")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00:00"), (59.6, "0:01:00"), (7500, "2:05:00"), (90_000, "1 day, 1:00:00")],
)
def test_a_time_is_said_in_hours_and_minutes(seconds, text):
    assert readable(seconds) == text


def ask(monkeypatch, answer: str, seconds: float, *, yes=False, terminal=True) -> str:
    """What a user sees on stderr who types the answer."""
    kind = Terminal if terminal else io.StringIO
    error = kind()
    monkeypatch.setattr(estimate.sys, "stdin", kind(answer))
    monkeypatch.setattr(estimate.sys, "stderr", error)
    confirm(seconds, "9 documents", yes)
    return error.getvalue()


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " yes \n"])
def test_long_work_goes_on_after_a_yes(answer, monkeypatch):
    said = ask(monkeypatch, answer, LONG_S)
    assert "encoding 9 documents will take about 1:00:00" in said
    assert "Go on? [y/N]" in said


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yesterday\n"])
def test_long_work_stops_after_any_other_answer(answer, monkeypatch):
    with pytest.raises(BenchError, match="stopped before encoding") as error:
        ask(monkeypatch, answer, LONG_S)
    assert "--yes" in error.value.hint


@pytest.mark.parametrize(
    ("seconds", "yes", "terminal"),
    [(LONG_S - 1, False, True), (LONG_S, True, True), (LONG_S, False, False)],
    ids=["short work", "yes was given", "nobody to ask"],
)
def test_nobody_is_asked(seconds, yes, terminal, monkeypatch):
    said = ask(monkeypatch, "n\n", seconds, yes=yes, terminal=terminal)
    assert "will take about" in said
    assert "Go on?" not in said
