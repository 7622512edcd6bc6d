"""The clock that threads share, and work side by side: order, threads, failures."""

import threading

import pytest
import torch

from retrievers.encoders.device import map_in_threads
from retrievers.encoders.protocol import PhaseTimer
from tests.support.processes import HANGS_S


def test_no_count_of_a_thread_is_lost_and_a_copy_tells_what_came_after_it():
    timer = PhaseTimer()
    timer.add({}, {"tokens": 5})
    earlier = timer.copy()

    def count() -> None:
        for _ in range(1000):
            timer.add({}, {"tokens": 1})

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timer.add({}, {"texts": 1})
    assert earlier.counts == {"tokens": 5}
    assert timer.since(earlier).counts == {"tokens": 8000, "texts": 1}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 25])
@pytest.mark.usefixtures("two_threads")
def test_results_come_in_the_order_of_the_items(count):
    assert list(map_in_threads(lambda n: n * n, range(count))) == [n * n for n in range(count)]
    torch.set_num_threads(1)
    assert list(map_in_threads(lambda n: n * n, range(count))) == [n * n for n in range(count)]


@pytest.mark.usefixtures("two_threads")
def test_two_items_are_computed_at_a_time_with_one_thread_each():
    meeting = threading.Barrier(2)

    def work(_: int) -> int:
        meeting.wait(HANGS_S)  # passes only if two are under way
        return torch.get_num_threads()

    assert list(map_in_threads(work, range(6))) == [1] * 6
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_failure_is_raised_in_its_place_and_stops_the_rest():
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        if item == 3:
            raise ValueError("the fourth")
        return item

    results = map_in_threads(work, range(100))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the fourth"):
        next(results)
    assert len(started) < 20
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_reader_that_stops_leaves_no_thread_behind():
    before = threading.active_count()
    results = map_in_threads(lambda n: n, range(100))
    assert next(results) == 0
    results.close()
    assert threading.active_count() == before
    assert torch.get_num_threads() == 2
