"""Devices by name, and the arithmetic of their products. Imports torch, and nothing heavier."""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

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
    """The device to run on; ``auto`` is CUDA where there is one.

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


def warn_of_emulation(dtype: str, device: torch.device) -> None:
    """Say it where bfloat16 is computed without instructions for it."""
    if dtype == "bfloat16" and device.type == "cpu" and emulates_bfloat16():
        logger.warning(
            "this processor has no instructions for bfloat16: float32 is two to three times as "
            "fast, without AVX-512 many times. Its results are those of another recipe"
        )


@contextmanager
def full_precision() -> Iterator[None]:
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
