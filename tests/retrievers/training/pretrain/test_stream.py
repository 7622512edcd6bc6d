"""The order of texts, and the loss curve on disk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.errors import BenchError
from retrievers.training.engine.curve import LossPoint, append_point, cut_curve, read_curve
from retrievers.training.pretrain.texts import Stream


@given(st.integers(1, 20), st.integers(1, 60), st.integers(0, 5))
def test_every_pass_reads_every_text_once(texts, places, seed):
    stream = Stream([str(number) for number in range(texts)], places, seed)
    read = [stream[place]["text"] for place in range(places)]
    for start in range(0, places - texts + 1, texts):
        assert sorted(read[start : start + texts]) == sorted(stream.texts)
    assert len({stream[place]["draw"] for place in range(places)}) == places


def test_a_place_is_the_same_in_every_training_with_one_seed():
    texts = [str(number) for number in range(50)]
    one, other = Stream(texts, 200, seed=3), Stream(texts, 120, seed=3)
    assert [other[place] for place in reversed(range(120))][::-1] == [one[i] for i in range(120)]
    orders = [[Stream(texts, 100, seed)[i]["text"] for i in range(50)] for seed in (3, 4)]
    assert orders[0] != orders[1]
    assert [one[i]["text"] for i in range(50)] != [one[50 + i]["text"] for i in range(50)]


def test_there_is_nothing_beyond_the_end():
    with pytest.raises(IndexError, match="place 3 of 3"):
        Stream(["a"], 3, 0)[3]


def point(step: int) -> LossPoint:
    return LossPoint(step, {"loss": 1 / step}, 0.1, 2.0, 30)


def test_a_curve_can_be_read_cut_and_gone_on_with(tmp_path):
    path = tmp_path / "losses.jsonl"
    cut_curve(path, 5)
    for step in range(1, 8):
        append_point(path, point(step))
    path.write_bytes(path.read_bytes()[:-9])  # killed while it wrote
    assert [one.step for one in read_curve(path)] == [1, 2, 3, 4, 5, 6]
    cut_curve(path, 4)
    append_point(path, point(5))
    assert read_curve(path) == [point(step) for step in range(1, 6)]


def test_what_is_no_curve_is_refused(tmp_path):
    with pytest.raises(BenchError, match="cannot read"):
        read_curve(tmp_path / "none")
    (tmp_path / "other").write_text("{}\n")
    with pytest.raises(BenchError, match="no loss curve"):
        read_curve(tmp_path / "other")
