"""Instructions of this processor, and libraries that would not use them by themselves."""

import os
from pathlib import Path

FACTS = Path("/proc/cpuinfo")
BFLOAT16 = frozenset(("avx512_bf16", "amx_bf16"))
AVX512 = frozenset(("avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"))


def instructions() -> frozenset[str]:
    """Names of instruction sets, as Linux has them (``avx2``); none where it does not say."""
    try:
        with FACTS.open(encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(flags.partition(":")[2].split())


def emulates_bfloat16() -> bool:
    """True where the processor says what it has, and has no instructions for bfloat16."""
    known = instructions()
    return bool(known) and not known & BFLOAT16


def let_openblas_use_avx512() -> None:
    """Where the processor has AVX-512, name OpenBLAS's kernels for it; before NumPy is imported.

    OpenBLAS chooses by the processor's family, and has kernels for AVX2 for one that is newer than
    itself: half the speed. A choice of the user's own stays.
    """
    if instructions() >= AVX512:
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
