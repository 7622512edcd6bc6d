"""Batches side by side on the processor's threads, each on one of them."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch's operators compute on the thread that calls them, while this lasts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """``map(work, items)``, as many at a time as PyTorch uses threads, results in order.

    Each call computes with one thread. Splitting every layer over the threads instead makes them
    wait for each other many times a batch, which costs little on an idle machine with few cores,
    and most of the time where there are many or others want them. Fewer items than threads are
    computed one after the other with all threads.

    Raises:
        what ``work`` raises, for the first item that fails.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(items) < threads:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # what new threads of this process start with
