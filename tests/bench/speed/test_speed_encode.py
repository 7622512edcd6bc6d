"""Tools take turns, and there is no ratio between vectors that differ."""

import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from bench.speed.encode import Ours, Pass, in_turn, race_encoders
from bench.speed.texts import natural
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model

ENCODER = open_encoder(resolve_model("hashing"))
TEXTS = natural(ENCODER, "real", ["a", "b c", "d e f"])


@dataclass
class Timed:
    """A tool that takes a known time and gives known vectors."""

    tool: str
    seconds: float
    vectors: np.ndarray
    log: list[str] = field(default_factory=list)
    version: str = "1"

    def encode(self, texts):
        self.log.append(self.tool)
        return Pass(self.seconds, self.seconds / 2, self.vectors)


def raced(*contestants, repeats=2, dtype="float32", say=lambda _: None):
    return race_encoders(contestants, TEXTS, repeats, dtype, say)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_tool_is_first_once_in_as_many_turns_as_tools(count):
    turns = [in_turn(count, turn) for turn in range(count)]
    assert [sorted(turn) for turn in turns] == [list(range(count))] * count
    assert {turn[0] for turn in turns} == set(range(count))


def test_tools_warm_up_once_and_then_take_turns():
    log, vectors = [], np.zeros((3, 4), np.float32)
    raced(Timed("a", 1, vectors, log), Timed("b", 1, vectors, log))
    assert log == ["a", "b", "a", "b", "b", "a"]


def test_each_result_is_said_before_the_next_tool_begins():
    log, vectors = [], np.zeros((3, 4), np.float32)
    raced(Timed("a", 1, vectors, log), Timed("b", 2, vectors, log), repeats=1, say=log.append)
    assert log == [
        "a",
        "b",
        "a",
        "a: 3 documents/s, 1.00 s on the wall, 0.50 s of the processor",
        "b",
        "b: 2 documents/s, 2.00 s on the wall, 1.00 s of the processor",
    ]


def test_the_time_of_the_processor_is_that_of_the_work_and_not_of_waiting(monkeypatch):
    class Sleeper:
        clock = None

        def encode_documents(self, titles, texts):
            time.sleep(0.3)
            return np.zeros((len(texts), 4), np.float32)

    done = Ours(Sleeper(), "1").encode(TEXTS)
    assert done.seconds >= 0.3
    assert done.processor_s < 0.1


def test_speeds_follow_from_the_median_and_the_tokens():
    vectors = np.zeros((3, 4), np.float32)
    ours, peer = raced(Timed("ours", 2, vectors), Timed("peer", 4, vectors))
    assert ours.tokens_per_s == TEXTS.lengths.tokens / 2
    assert ours.documents_per_s == 1.5
    assert ours.difference is ours.speedup is None
    assert (peer.difference, peer.agrees, peer.speedup) == (0, True, 2)
    assert (peer.processor_s.median, peer.processor_speedup) == (2, 2)


@pytest.mark.parametrize(("off", "agrees"), [(9e-6, True), (2e-5, False)])
def test_vectors_must_agree_before_a_ratio_is_given(off, agrees):
    vectors = np.zeros((3, 4), np.float32)
    other = vectors.copy()
    other[2, 1] = off
    _, peer = raced(Timed("ours", 1, vectors), Timed("peer", 1, other))
    assert peer.difference == pytest.approx(off)
    assert peer.agrees is agrees
    assert (peer.speedup is not None) is agrees


def test_half_precision_may_differ_further():
    vectors = np.zeros((3, 4), np.float32)
    _, peer = raced(Timed("ours", 1, vectors), Timed("peer", 1, vectors + 5e-3), dtype="float16")
    assert peer.agrees


def test_our_encoder_is_timed_over_all_documents():
    (ours,) = raced(Ours(ENCODER, "1"), repeats=3)
    assert len(ours.seconds.samples) == 3
    assert all(seconds > 0 for seconds in ours.seconds.samples)
    assert ours.lengths.documents == 3
    np.testing.assert_array_equal(
        Ours(ENCODER, "1").encode(TEXTS).vectors,
        ENCODER.encode_documents([""] * 3, list(TEXTS.texts)),
    )
