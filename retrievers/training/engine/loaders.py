"""Processes that make the next batches while a GPU computes.

What a batch holds follows from its place in the training alone, so who makes it changes nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from retrievers.training.engine.processes import world_size

MOST_LOADERS = 4
TOKENIZERS = "TOKENIZERS_PARALLELISM"


def count_loaders(on_cpu: bool) -> int:
    """Processes that make batches for this one; none on a CPU, where they would only share it."""
    cores = len(os.sched_getaffinity(0)) // world_size()
    return 0 if on_cpu else max(0, min(MOST_LOADERS, cores - 1))


@contextmanager
def tokenizing_alone(loaders: int) -> Iterator[None]:
    """Let processes that are forked in the block tokenise with one thread each, and say nothing.

    The threads of a tokenizer do not survive a fork; where its user has not decided, it finds that
    out by itself, and warns.
    """
    if not loaders or TOKENIZERS in os.environ:
        yield
        return
    os.environ[TOKENIZERS] = "false"
    try:
        yield
    finally:
        os.environ.pop(TOKENIZERS, None)
