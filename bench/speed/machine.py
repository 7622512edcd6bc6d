"""Timing of work, and the facts of the machine that it depends on."""

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")


def timed(work: Callable[[], Found]) -> tuple[float, Found]:
    """Wall-clock seconds of some work, and what it gave; GPUs are idle at both ends."""
    synchronise()
    start = time.perf_counter()
    result = work()
    synchronise()
    return time.perf_counter() - start, result


def synchronise() -> None:
    """Wait until every GPU has done what it was asked to do."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


def peak_bytes(process: int | str = "self") -> int:
    """Most memory that a process had resident at once: VmHWM. Mapped file pages count.

    0 for a process that has ended, or where there is no /proc.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    _, separator, rest = status.partition("VmHWM:")
    return int(rest.split()[0]) * 1024 if separator else 0


def processor_name() -> str:
    """Name of the processor, as the kernel states it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
