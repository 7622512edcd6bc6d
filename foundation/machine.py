"""Facts about this machine, and work that threads share."""

import os
import platform
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
VNNI = frozenset(("avx512_vnni", "avx_vnni"))
BFLOAT16 = frozenset(("avx512_bf16", "amx_bf16"))
AVX512 = frozenset(("avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"))


def cpu_instructions() -> frozenset[str]:
    """Return the names of the CPU's instruction sets as Linux lists them, such as ``avx2``.

    The set is empty on systems that do not list them.
    """
    return frozenset(_read_cpu_fact("flags").split())


def processor_name() -> str:
    """Return the name of the processor as the kernel reports it."""
    return _read_cpu_fact("model name") or platform.machine()


def _read_cpu_fact(fact: str) -> str:
    """Return a field of the first processor in ``/proc/cpuinfo``, or "" if it is absent."""
    try:
        with CPU_INFO.open(encoding="utf-8") as lines:
            line = next((line for line in lines if line.startswith(fact)), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()


def emulates_bfloat16() -> bool:
    """Return whether the CPU is known to lack instructions for bfloat16."""
    known = cpu_instructions()
    return bool(known) and not known & BFLOAT16


def has_vnni() -> bool:
    """Return whether 8-bit products are known to be summed without saturation.

    False if the processor does not tell, or oneDNN is restricted to fewer instructions.
    """
    return bool(VNNI & cpu_instructions()) and "ONEDNN_MAX_CPU_ISA" not in os.environ


def let_openblas_use_avx512() -> None:
    """Select OpenBLAS's AVX-512 kernels if the CPU has AVX-512. Call it before importing NumPy.

    OpenBLAS chooses kernels by CPU family and falls back to AVX2, at half the speed, on CPUs newer
    than itself. A value of OPENBLAS_CORETYPE that the user set is kept.
    """
    if cpu_instructions() >= AVX512:
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")


class Once:
    """Work that the first thread does while the others wait for it.

    Work that raises is repeated for the next caller, who gets the same error.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = False

    def do(self, work: Callable[[], None]) -> None:
        """Run ``work`` unless it was run before, and return when it is done.

        Raises:
            Exception: any error that the work raises.
        """
        with self._lock:
            if not self._done:
                work()
                self._done = True


def library_version(name: str) -> str:
    """Return the version of the installed library ``name``, or "" if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def utc_now() -> str:
    """Return the time in UTC as ISO 8601 text with seconds, which sorts chronologically."""
    return datetime.now(UTC).isoformat(timespec="seconds")
