"""Slowdowns from clocks that are made up, and one real pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.comparing.statistics import Resampling
from bench.gate.speed_check import SpeedTolerance, by_turns, compare_speed, outcome_of, slowdown
from datasets_cfg.dataset import open_dataset
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model
from tests.support.collections import write_collection

MANY = Resampling(1_999, 0)


def test_each_block_is_a_b_b_a():
    order: list[str] = []

    def turn(name: str, seconds: float):
        return lambda: order.append(name) or seconds

    a, b = by_turns(turn("a", 1.0), turn("b", 2.0), 3)
    assert "".join(order) == "abba" * 3
    assert (a.tolist(), b.tolist()) == ([2.0] * 3, [4.0] * 3)


@given(st.floats(0, 2))
def test_a_machine_that_slows_down_steadily_makes_no_difference(drift):
    clock = [1.0]

    def turn() -> float:
        clock[0] += drift
        return clock[0]

    ratio, low, high = slowdown(*by_turns(turn, turn, 8), MANY)
    assert (ratio, low, high) == pytest.approx((1.0, 1.0, 1.0))


def test_the_interval_holds_the_slowdown_of_noisy_clocks_about_95_times_in_100():
    held = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        a, b = 1.2 * rng.lognormal(0, 0.1, 16), rng.lognormal(0, 0.1, 16)
        _, low, high = slowdown(a, b, Resampling(399, seed))
        held += low <= 1.2 <= high
    assert 180 <= held <= 200


def test_one_block_that_was_disturbed_moves_nothing():
    a, b = np.full(15, 1.05), np.ones(15)
    a[3] = 40.0
    assert slowdown(a, b, MANY) == pytest.approx((1.05, 1.05, 1.05))


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (1.11, 1.3, "REGRESSION"),
        (1.1, 1.3, "INCONCLUSIVE"),
        (0.8, 1.2, "INCONCLUSIVE"),
        (0.9, 1.1, "OK"),
    ],
)
def test_what_an_interval_decides(low, high, outcome):
    assert outcome_of(low, high, 1.1) == outcome


def test_two_encoders_are_timed_at_both_kinds_of_work(tmp_path):
    dataset = open_dataset(str(write_collection(tmp_path / "tiny")), cache_dir=tmp_path)
    one, other = (open_encoder(resolve_model("hashing")) for _ in range(2))
    found = compare_speed(one, other, dataset, SpeedTolerance(1e9, 0.2, "cpu", MANY))
    assert [slow.unit for slow in found.slowdowns] == ["words/s", "ms"]
    assert found.outcome == "OK"
    for slow in found.slowdowns:
        assert 0 < slow.low <= slow.slowdown <= slow.high
        assert len(slow.candidate_s.samples) == len(slow.baseline_s.samples) >= 16
