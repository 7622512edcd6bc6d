"""Work that threads share."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from foundation.machine import Once


def test_work_is_done_once_and_all_wait_for_it():
    once, begun, done = Once(), threading.Event(), []

    def work():
        begun.wait(10)
        done.append(1)

    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(lambda: (once.do(work), len(done))[1]) for _ in range(8)]
        begun.set()
        assert [caller.result() for caller in waiting] == [1] * 8


def test_work_that_fails_is_done_again_for_the_next_caller():
    once, calls = Once(), []

    def work():
        calls.append(1)
        raise ValueError(len(calls))

    for number in (1, 2):
        with pytest.raises(ValueError, match=str(number)):
            once.do(work)
