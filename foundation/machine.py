"""This machine: its processor, libraries and clock, and work that threads share."""

import os
import platform
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
BFLOAT16 = frozenset(("avx512_bf16", "amx_bf16"))
AVX512 = frozenset(("avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"))


def cpu_instructions() -> frozenset[str]:
    """Names of instruction sets, as Linux has them (``avx2``); none if it does not say."""
    return frozenset(_read_cpu_fact("flags").split())


def processor_name() -> str:
    """Name of the processor, as the kernel states it."""
    return _read_cpu_fact("model name") or platform.machine()


def _read_cpu_fact(fact: str) -> str:
    """What Linux says of the first processor; "" if it does not say."""
    try:
        with CPU_INFO.open(encoding="utf-8") as lines:
            line = next((line for line in lines if line.startswith(fact)), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()


def emulates_bfloat16() -> bool:
    """True if the processor says what it has, and has no instructions for bfloat16."""
    known = cpu_instructions()
    return bool(known) and not known & BFLOAT16


def let_openblas_use_avx512() -> None:
    """Where the processor has AVX-512, name OpenBLAS's kernels for it; before NumPy is imported.

    OpenBLAS chooses by the processor's family, and has kernels for AVX2 for one that is newer than
    itself: half the speed. A choice of the user's own stays.
    """
    if cpu_instructions() >= AVX512:
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")


class Once:
    """Work that is done by the thread that asks first; others wait until it is.

    Work that fails is done again for the next caller, who thus meets the same failure.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = False

    def do(self, work: Callable[[], None]) -> None:
        """Return when the work is done.

        Raises:
            Exception: what the work raised.
        """
        with self._lock:
            if not self._done:
                work()
                self._done = True


def library_version(name: str) -> str:
    """Return the version of an installed library; "" if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def utc_now() -> str:
    """Return the time in UTC as ISO 8601 to the second, so that texts sort as times do."""
    return datetime.now(UTC).isoformat(timespec="seconds")
