"""What the machine is, and how fast it copies and multiplies."""

import os
import platform
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from bench.speed.timing import processor_name, timed
from tests.benchmarks.gpu_proof.report import Check, Outcome, Part
from tests.benchmarks.gpu_proof.setup import Setup

SECTION = "machine"
LIBRARIES = (
    *("torch", "triton", "transformers", "sentence-transformers", "tokenizers", "numpy"),
    *("faiss-gpu", "faiss-gpu-cu12", "faiss-cpu", "flash-attn", "datasets", "accelerate"),
)
REPEATS = 5
# Relative error of a product: operands are rounded once, sums are at least float32.
MOST_ERROR = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 3e-5, "float64": 1e-13}


def parts(setup: Setup) -> Iterator[Part]:
    """Copies, then matrix products of each dtype."""
    yield Part(SECTION, "copies", 10, partial(copies, setup))
    for dtype in (*setup.dtypes, "float32", "float64"):
        yield Part(SECTION, f"matrix product, {dtype}", 10, partial(product, setup, dtype))


def describe(device: str) -> dict[str, Any]:
    """Name of the machine, its GPU, its processor, and the versions that matter."""
    found: dict[str, Any] = {
        "processor": processor_name(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": platform.platform(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "libraries": _versions(),
        "cuda": torch.version.cuda,
        "device": device,
    }
    with suppress(OSError):
        found["driver"] = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": list(torch.cuda.get_device_capability(device)),
        }
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def median_seconds(work: Callable[[], Any], times: int = 1) -> float:
    """Median seconds of one of ``times`` calls in a row, after one that does not count."""

    def several() -> None:
        for _ in range(times):
            work()

    several()
    return statistics.median(timed(several)[0] for _ in range(REPEATS)) / times


def copies(setup: Setup) -> Outcome:
    """GB/s of copies: on the device (bytes read and written), to it, and from it."""
    count = setup.sizes.copied // 4
    source = torch.randn(count, device=setup.device)
    target = torch.empty_like(source)
    rates = {"on_device_gb_per_s": 2 * setup.sizes.copied / _seconds(target, source) / 1e9}
    right = bool(torch.equal(source, target))
    host = torch.empty(count // 4, pin_memory=setup.on_gpu)
    part = source[: len(host)]
    small = host.numel() * 4
    rates["from_device_gb_per_s"] = small / _seconds(host, part) / 1e9
    rates["to_device_gb_per_s"] = small / _seconds(part, host) / 1e9
    right &= bool(torch.equal(host.to(setup.device), target[: len(host)]))
    headline = ", ".join(f"{name.removesuffix('_gb_per_s')} {r:,.0f}" for name, r in rates.items())
    checks = [Check("copies are equal", right, right, "True")]
    return Outcome(f"GB/s: {headline}", rates, checks)


def _seconds(target: torch.Tensor, source: torch.Tensor) -> float:
    return median_seconds(lambda: target.copy_(source, non_blocking=True))


def product(setup: Setup, dtype: str) -> Outcome:
    """TFLOP/s of a square matrix product of random numbers, and its error against float64."""
    size = setup.sizes.matrix if dtype != "float64" else setup.sizes.matrix // 2
    kind = getattr(torch, dtype)
    left, right = (torch.randn(size, size, device=setup.device).to(kind) for _ in range(2))
    seconds = median_seconds(lambda: left @ right, times=5)
    rate = 2 * size**3 / seconds / 1e12
    rows = slice(0, 64)
    exact = left[rows].double() @ right.double()
    error = float(torch.linalg.norm((left @ right)[rows].double() - exact) / exact.norm())
    return Outcome(
        f"{rate:,.1f} TFLOP/s",
        {"tflops": rate, "size": size, "relative_error": error},
        [Check("relative error", error <= MOST_ERROR[dtype], error, f"<= {MOST_ERROR[dtype]}")],
    )
