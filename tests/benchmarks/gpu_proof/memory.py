"""What happens when the GPU has too little memory: the same results, in smaller pieces."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tests.benchmarks.gpu_proof import agreement
from tests.benchmarks.gpu_proof.encoding import DTYPE
from tests.benchmarks.gpu_proof.report import Check, NotHereError, Outcome, Part
from tests.benchmarks.gpu_proof.search import find, hits_checks, planted
from tests.benchmarks.gpu_proof.setup import Setup

SECTION = "memory"
# Less than the scores of 6,980 queries and a tile, and than the widest layer of a batch of BERT's
# in half precision with what it is computed from.
LEFT_BYTES = {"search": 1 << 30, "encoding": 1 << 28}
LENGTH = 128


def parts(setup: Setup) -> Iterator[Part]:
    """Search, then encoding."""
    yield Part(SECTION, "search with too little", 30, partial(search, setup))
    yield Part(SECTION, "encoding with too little", 30, partial(encoding, setup))


def limited(memory_left: int, device: str, work: Callable[[], Any]) -> tuple[Any, int]:
    """Do some work with little GPU memory left; what it gave, and how often there was too little.

    PyTorch's limit is not seen by who asks the driver for free memory: allocations fail.
    """
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    before = torch.cuda.memory_stats()["num_ooms"]
    limit = torch.cuda.memory_reserved() + memory_left
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    try:
        result = work()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return result, torch.cuda.memory_stats()["num_ooms"] - before


def search(setup: Setup) -> Outcome:
    """A search that does not fit the memory it planned with gives the same hits."""
    if not setup.on_gpu:
        raise NotHereError("needs a GPU")
    sizes = setup.sizes
    corpus = planted(sizes.equal_rows, sizes.queries, sizes.dim, setup.device)
    hits, failures = limited(
        LEFT_BYTES["search"], setup.device, lambda: find(setup, corpus, sizes.depth)
    )
    checks = [_ran_out(failures), *hits_checks(setup, corpus, hits)]
    return Outcome(f"memory ran out {failures} times", {"failures": failures}, checks)


def encoding(setup: Setup) -> Outcome:
    """Batches that do not fit give the vectors of batches that do."""
    if not setup.on_gpu:
        raise NotHereError("needs a GPU")
    encoder = setup.encoder("bert", DTYPE)
    texts = setup.passages(LENGTH, setup.sizes.positions * 4, seed=6)
    titles = [""] * len(texts)
    reference = encoder.encode_documents(titles, texts)
    found, failures = limited(
        LEFT_BYTES["encoding"], setup.device, lambda: encoder.encode_documents(titles, texts)
    )
    checks = [_ran_out(failures), *agreement.checks(found, reference, DTYPE)]
    return Outcome(f"memory ran out {failures} times", {"failures": failures}, checks)


def _ran_out(failures: int) -> Check:
    return Check("memory ran out", failures > 0, failures, "at least once: else nothing is shown")
