"""Phases and counts are added up, from any thread."""

import threading
import time

import pytest

from retrievers.encoders.protocol import Clock


def test_the_times_of_a_phase_are_added(monkeypatch):
    now = iter([0.0, 1.0, 10.0, 12.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = Clock()
    for _ in range(2):
        with clock.phase("forward"):
            pass
    assert clock.seconds == {"forward": 3.5}


def test_a_phase_that_fails_is_counted_too():
    clock = Clock()
    with pytest.raises(KeyError), clock.phase("write"):
        raise KeyError
    assert clock.seconds["write"] >= 0


def test_no_count_of_a_thread_is_lost():
    clock = Clock()

    def count():
        for _ in range(1000):
            clock.count("tokens", 1)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.counts == {"tokens": 8000}


def test_since_gives_what_was_added_after_the_copy():
    clock = Clock()
    clock.count("tokens", 5)
    earlier = clock.copy()
    clock.count("tokens", 2)
    clock.count("texts", 1)
    assert clock.since(earlier).counts == {"tokens": 2, "texts": 1}
    assert earlier.counts == {"tokens": 5}
