"""Devices by name, the arithmetic of their products, and batches side by side on threads."""

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

# Of cuBLAS: sums in half precision.
HALF_SUMS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)

logger = logging.getLogger(__name__)


def pick_device(name: str) -> torch.device:
    """The device to run on; ``auto`` is CUDA if there is one.

    Raises:
        BenchError: the name is not a device, or the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise BenchError(f"unknown device {name!r}", "use auto, cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BenchError(
            f"{name} was asked for, and PyTorch sees {torch.cuda.device_count()} CUDA devices",
            "use --device cpu, or install a CUDA build of torch",
        )
    return device


def warn_if_bfloat16_is_emulated(dtype: str, device: torch.device) -> None:
    """Say it where bfloat16 is computed without instructions for it."""
    if dtype == "bfloat16" and device.type == "cpu" and emulates_bfloat16():
        logger.warning(
            "this processor has no instructions for bfloat16: float32 is two to three times as "
            "fast, without AVX-512 many times. Its results are those of another recipe"
        )


@contextmanager
def use_full_precision() -> Iterator[None]:
    """Multiply float32 numbers as they are and keep all sums in float32, whatever is switched on.

    What was set before is restored.
    """
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
    """PyTorch's operators compute on the thread that calls them, while this lasts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
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
