"""The estimate before long work, and the question to a terminal user."""

import io
import time

import numpy as np
import pytest

from bench import estimate
from bench.errors import BenchError
from bench.estimate import LONG_S, SAMPLE_DOCUMENTS, confirm, readable, seconds_per_document
from datasets_cfg.corpus import Corpus, Document


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TimedEncoder:
    """Advances a clock of its own by a known time for each document."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sizes: list[int] = []
        self.texts: set[str] = set()

    def encode_documents(self, titles, texts, advance=None):
        self.now_s += (100.0 if not self.sizes else 0.0) + 0.5 * len(texts)
        self.sizes.append(len(texts))
        self.texts.update(texts)
        return np.zeros((len(texts), 2), np.float32)


def corpus_of(count: int, folder) -> Corpus:
    return Corpus.build([Document(str(n), "", f"text {n}") for n in range(count)], folder / "c")


@pytest.fixture
def encoder(monkeypatch):
    made = TimedEncoder()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now_s)
    return made


@pytest.mark.parametrize("documents", [1, 3, 500])
def test_loading_the_weights_is_not_counted(documents, encoder, tmp_path):
    assert seconds_per_document(encoder, corpus_of(documents, tmp_path)) == 0.5
    assert encoder.sizes[-1] == min(documents, SAMPLE_DOCUMENTS)


def test_the_sample_is_spread_over_the_corpus_and_the_same_each_time(encoder, tmp_path):
    corpus = corpus_of(1000, tmp_path)
    seconds_per_document(encoder, corpus)
    first = set(encoder.texts)
    seconds_per_document(encoder, corpus)
    assert encoder.texts == first
    rows = [int(text.split()[1]) for text in first]
    assert min(rows) < 200
    assert max(rows) > 800


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
