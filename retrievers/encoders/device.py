"""Devices by name, the precision of matrix products, and batches in threads."""

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch

from foundation.errors import BenchError
from foundation.machine import emulates_bfloat16

# Settings of cuBLAS that allow sums in half precision.
HALF_SUMS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)

logger = logging.getLogger(__name__)


def pick_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` is CUDA if available, otherwise the CPU.

    Raises:
        BenchError: the name is unknown, or the device is not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise BenchError(f"unknown device {name!r}", "Use auto, cpu, cuda or cuda:N.")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        problem = f"{name} is not available: PyTorch sees {torch.cuda.device_count()} CUDA devices"
        raise BenchError(problem, "Use --device cpu, or install a CUDA build of torch.")
    return device


def warn_if_bfloat16_is_slow(dtype: str, device: torch.device) -> None:
    """Warn if ``dtype`` is bfloat16 and the CPU ``device`` has no instructions for it."""
    if dtype == "bfloat16" and device.type == "cpu" and emulates_bfloat16():
        logger.warning(
            "this processor has no bfloat16 instructions: float32 is two to three times as fast, "
            "and many times without AVX-512. Results of the two are kept separately"
        )


@contextmanager
def use_full_precision() -> Iterator[None]:
    """Multiply in full float32, without TF32 and sums in half precision, within the block."""
    gemm: Any = torch.backends.cuda.matmul
    onednn: Any = getattr(torch.backends.mkldnn, "matmul", None)
    settings: list[tuple[Any, str, Any]] = [
        (gemm, name, False) for name in HALF_SUMS if hasattr(gemm, name)
    ]
    by_library = hasattr(gemm, "fp32_precision") and hasattr(onednn, "fp32_precision")
    if by_library:
        settings.append((gemm, "fp32_precision", "ieee"))
        settings.append((onednn, "fp32_precision", "ieee"))
    with ExitStack() as stack:
        for place, name, value in settings:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        if not by_library:  # torch before 2.9
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        yield


Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Run PyTorch's operators on the calling thread alone within the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Map ``work`` over ``items`` in as many threads as PyTorch uses, in order.

    Each call computes with one thread. If every layer were split over the threads instead, they
    would wait for each other many times a batch, which is slow with many cores or on a busy
    machine. Fewer items than threads are computed one after another, each with all threads.
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
        torch.set_num_threads(threads)  # new threads start with it
