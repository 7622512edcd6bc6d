"""The module ``faiss``, and the GPUs that it sees."""

from typing import Any

from foundation.errors import BenchError

# C++ exceptions as SWIG raises them; memory that an index or a search asks for in vain.
FAISS_ERRORS = (RuntimeError, MemoryError)


def import_faiss() -> Any:
    """The module ``faiss``.

    Raises:
        BenchError: neither of its packages is installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise BenchError(
            f"FAISS cannot be imported: {error}",
            "pip install 'retrieval-bench[cpu]' (or [gpu] on Linux with CUDA; never both)",
        ) from error
    return faiss


def resolve_device(device: str) -> tuple[int, ...]:
    """Numbers of the GPUs that FAISS uses: all for ``cuda``, one for ``cuda:N``, none for ``cpu``.

    Raises:
        BenchError: an unknown device, or FAISS has no such GPU.
    """
    if device == "cpu":
        return ()
    kind, _, number = device.partition(":")
    if kind != "cuda" or (":" in device and not number.isdecimal()):
        raise BenchError(f"unknown device {device!r} for search", "use cpu, cuda or cuda:N")
    faiss = import_faiss()
    count = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    if int(number or 0) >= count:
        raise BenchError(
            f"search on {device} was asked for, and this FAISS sees {count} GPUs",
            "use cpu, or install retrieval-bench[gpu] instead of [cpu]",
        )
    return (int(number),) if number else tuple(range(count))
