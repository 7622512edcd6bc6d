"""This machine, and settings of its libraries."""

import ctypes
import os
import platform
import re
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib import metadata
from pathlib import Path

from threadpoolctl import threadpool_info

from foundation.errors import BenchError

CPU_INFO = Path("/proc/cpuinfo")
VNNI = frozenset(("avx512_vnni", "avx_vnni"))
BFLOAT16 = frozenset(("avx512_bf16", "amx_bf16"))
AVX512 = frozenset(("avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"))
# Parameters of glibc's mallopt, and their values: arrays and tensors of one step are smaller.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGEST_KEPT = 128 << 20, 32 << 20


def cpu_instructions() -> frozenset[str]:
    """Return the CPU's instruction sets as Linux lists them, such as ``avx2``; none elsewhere."""
    return frozenset(_read_cpu_field("flags").split())


def processor_name() -> str:
    """Return the name of the processor as the kernel reports it."""
    return _read_cpu_field("model name") or platform.machine()


def _read_cpu_field(field: str) -> str:
    """Return a field of the first processor in ``/proc/cpuinfo``, or "" if it is absent."""
    try:
        with CPU_INFO.open(encoding="utf-8") as lines:
            line = next((line for line in lines if line.startswith(field)), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()


def emulates_bfloat16() -> bool:
    """Return whether the CPU is known to lack instructions for bfloat16."""
    known = cpu_instructions()
    return bool(known) and not known & BFLOAT16


def has_vnni() -> bool:
    """Return whether 8-bit products are known to be summed without saturation.

    False if oneDNN is restricted to fewer instructions.
    """
    return bool(VNNI & cpu_instructions()) and "ONEDNN_MAX_CPU_ISA" not in os.environ


def let_openblas_use_avx512() -> None:
    """Select OpenBLAS's AVX-512 kernels if the CPU has AVX-512. Call it before importing NumPy.

    OpenBLAS falls back to AVX2, at half the speed, on CPUs newer than itself. A value of
    OPENBLAS_CORETYPE that the user set is kept.
    """
    if cpu_instructions() >= AVX512:
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")


def keep_freed_memory() -> None:
    """Let glibc keep memory that was freed, up to `KEPT_BYTES`, for the next arrays and tensors.

    Otherwise the system clears every page again: up to a third of the time of layers in int8, and a
    tenth of exact search.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)


@cache
def library_version(name: str) -> str:
    """Return the version of the installed library ``name``, or "" if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def utc_now() -> str:
    """Return the time in UTC as ISO 8601 text with seconds, which sorts chronologically."""
    return datetime.now(UTC).isoformat(timespec="seconds")


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(text: str) -> int:
    """Return the bytes of ``text``: ``2GB`` (10^9), ``1.5GiB`` (2^30), ``800MB``, or a number."""
    number = r"[0-9]{1,18}\.?[0-9]{0,9}|\.[0-9]{1,9}"
    match = re.fullmatch(rf"({number})\s*([A-Za-z]*)", text.strip())
    size = int(Decimal(match[1]) * UNITS.get(match[2].upper(), 0)) if match else 0
    if size < 1:
        raise BenchError(
            f"{text!r} is not a size", "Write 2GB, 1.5GiB, 800MB or a number of bytes."
        )
    return size


def format_size(size: int) -> str:
    """Return ``size`` in bytes as a person would type it, rounded up."""
    unit = next((unit for unit in ("TB", "GB", "MB", "KB") if size >= UNITS[unit]), "B")
    whole, tenth = divmod(-(-size * 10 // UNITS[unit]), 10)
    return f"{whole}.{tenth}{unit}" if tenth else f"{whole}{unit}"


def count_threads() -> int:
    """Return ``OMP_NUM_THREADS`` if set, as other libraries do, else the allowed CPU cores."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else len(os.sched_getaffinity(0))


def library_threads() -> dict[str, int]:
    """Return the CPU threads that each loaded library uses now, by its name.

    ``search`` are those of exact search. A library that is not loaded has no entry.
    """
    threads = {"search": count_threads()}
    for library in threadpool_info():
        if library["user_api"] == "blas":
            name, count = library["internal_api"], library["num_threads"]
            threads[name] = max(count, threads.get(name, 0))
    if torch := sys.modules.get("torch"):
        threads["torch"] = torch.get_num_threads()
    if faiss := sys.modules.get("faiss"):
        threads["faiss"] = faiss.omp_get_max_threads()
    return threads


def watch_parent() -> None:
    """Start a thread that ends this process and its children together with its parent."""
    from multiprocessing import connection, parent_process  # late: `--help` has no processes

    def end_with_parent() -> None:
        if parent := parent_process():
            connection.wait([parent.sentinel])
            kill_children()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def kill_children(pid: int | None = None) -> None:
    """Kill the processes that the process ``pid``, or this one, started, and their children."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            child.kill()
