"""The module ``faiss``: what can be made of a factory string here, its parts, and its GPUs.

FAISS makes more from a factory string than it can use: some indexes refuse documents when they
come, some end the process. What is known of that is checked on the made index, before any work.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError, lacks_memory

logger = logging.getLogger(__name__)

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


MAX_FACTORY_LENGTH = 200  # characters; FAISS reads nested brackets recursively
MAX_SIZE = 1 << 24  # of lists, links or dimensions: what is allocated before any vector comes
MAX_CODE_BITS = 16  # of one code of a product quantiser, whose codebook has 2 ** bits entries
_NUMBER = re.compile(r"\d+")
_CODE_BITS = re.compile(r"x(\d+)")
_INNER = ("index", "base_index", "refine_index", "storage", "quantizer")


def check_factory(factory: str) -> None:
    """Refuse a factory string with a size that FAISS computes with unchecked.

    Raises:
        BenchError: a size of 0, one that no memory holds, or a string that is too long.
    """
    if len(factory) > MAX_FACTORY_LENGTH or not factory.isascii():
        raise BenchError(
            f"{factory[:40]!a}... is no factory string of FAISS: those have at most "
            f"{MAX_FACTORY_LENGTH} letters, digits and signs"
        )
    if any(int(number) == 0 for number in _NUMBER.findall(factory)):
        raise BenchError(f"{factory} has a size of 0", "sizes are 1 or more")
    if any(int(number) > MAX_SIZE for number in _NUMBER.findall(factory)):
        raise BenchError(f"{factory} has a size of more than {MAX_SIZE:,}", "use smaller sizes")
    if any(int(bits) > MAX_CODE_BITS for bits in _CODE_BITS.findall(factory)):
        raise BenchError(
            f"{factory} has codes of more than {MAX_CODE_BITS} bits", "8 bits is the usual size"
        )


def check_usable(index: Any, factory: str) -> None:
    """Refuse an index that cannot take documents tile by tile, or would end the process.

    Raises:
        BenchError: it cannot be used; the hint names what can.
    """
    for part in index_parts(index):
        problem, instead = _problem(part)
        if problem:
            raise BenchError(f"{factory} cannot be used: {problem}", f"use {instead}")


def _problem(part: Any) -> tuple[str, str]:
    """The problem of one index, and what to use instead; empty where there is none."""
    faiss = import_faiss()
    if isinstance(part, (faiss.IndexIDMap, faiss.IndexIDMap2)):
        return (
            "IDMap keeps ids of its own, and rows of the corpus are the ids here",
            "the same string without IDMap",
        )
    if isinstance(part, (faiss.IndexNSG, faiss.IndexNNDescent)):
        return "NSG is built from all vectors at once, and documents come in pieces", "HNSW32"
    if isinstance(part, faiss.IndexHNSW) and _levels(part.hnsw) < 1:
        return "a graph has 2 links or more for each vector", "HNSW32"
    if isinstance(part, faiss.IndexRefine):
        refined = faiss.downcast_index(part.refine_index)
        if not isinstance(refined, faiss.IndexFlatCodes):
            return "it is refined on vectors that FAISS cannot read one by one", "RFlat"
    if isinstance(part, faiss.IndexIVF):
        inner = index_parts(part.quantizer)
        if any(isinstance(index, faiss.IndexIVF) for index in inner):
            # Such a search may find no list, and FAISS then reads a list that does not exist.
            return "its lists are found by a search in lists", "IVF4096 or IVF65536_HNSW32"
    return "", ""


def index_parts(index: Any) -> Iterator[Any]:
    """An index and the indexes inside it, each as its own class."""
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    yield index
    for name in _INNER:
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from index_parts(inner)


def seed_training(index: Any, seed: int, polysemous: bool) -> None:
    """Seed what is random inside: k-means of inverted lists and codebooks, levels of graphs.

    Args:
        polysemous: train codes for a search with the parameter ``ht``; takes most of the time of
            training.
    """
    faiss = import_faiss()
    for part in index_parts(index):
        for clustering in (getattr(part, "cp", None), getattr(_codebook(part), "cp", None)):
            if clustering is not None:
                clustering.seed = seed
        if hasattr(part, "hnsw"):
            part.hnsw.rng = faiss.RandomGenerator(seed)
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = polysemous


def most_centroids(index: Any) -> int:
    """Most centroids that any k-means inside learns, which is the fewest vectors that train it."""
    counts = [1]
    for part in index_parts(index):
        counts.append(getattr(part, "nlist", 1))
        counts.append(getattr(_codebook(part), "ksub", 1))
        additive = getattr(part, "aq", None)
        if additive is not None:
            bits = [int(additive.nbits.at(i)) for i in range(additive.nbits.size())]
            counts.append(1 << max(bits))
    return max(counts)


def _codebook(part: Any) -> Any:
    return getattr(part, "pq", None)


def _levels(hnsw: Any) -> int:
    """Levels on which vectors have links: none where each would have a single link."""
    return int(hnsw.cum_nneighbor_per_level.size()) - 1


MAX_K = 2048  # deepest search of FAISS's kernels
# What a block of threads has without asking for more, on every GPU of NVIDIA so far; FAISS keeps
# the lookup tables of one query and list there (GpuIndexIVFPQ.cu, verifyPQSettings_).
SHARED_BYTES = 48 << 10
COPIED_ROWS = 1 << 16  # decoded at a time


def lookup_table_bytes(index: Any) -> int:
    """Float32 lookup tables of the inverted lists of codes inside an index; 0 where none are."""
    faiss = import_faiss()
    parts = (part for part in index_parts(index) if isinstance(part, faiss.IndexIVFPQ))
    return max((4 * part.pq.M * part.pq.ksub for part in parts), default=0)


def move_to_gpu(index: Any, gpus: Sequence[int]) -> tuple[Any, Any]:
    """The index on GPUs, and the resources that must live as long.

    Each of several GPUs has all of it and searches some queries, or, where one has no room for all
    of it, each has some documents. ``SQfp16`` is a flat index in float16 there. Lookup tables of
    product quantisation are float16 where in float32 they would not fit; its own scores, which an
    approximate index keeps, then have eleven bits instead of 24.

    Raises:
        RuntimeError: of FAISS: this kind cannot be there, or there is no memory.
    """
    faiss = import_faiss()
    resources, options = [faiss.StandardGpuResources() for _ in gpus], _options(index)
    moved = _flat_of(index) if _is_half(index) else index
    try:
        return faiss.index_cpu_to_gpu_multiple_py(resources, moved, options, gpus), resources
    except FAISS_ERRORS as error:
        if len(gpus) == 1 or not lacks_memory(error):
            raise
    logger.warning("each of %d GPUs has a part of the index: one has no room for all", len(gpus))
    options.shard = True
    return faiss.index_cpu_to_gpu_multiple_py(resources, moved, options, gpus), resources


def to_cpu(index: Any, empty: Any) -> Any:
    """A copy in the memory of the processor, of the kind of an empty index there."""
    faiss = import_faiss()
    copy = faiss.index_gpu_to_cpu(index)
    if not _is_half(empty):
        return copy
    _copy_vectors(copy, empty)
    return empty


def _options(index: Any) -> Any:
    options = import_faiss().GpuMultipleClonerOptions()
    needed = lookup_table_bytes(index)
    if needed > SHARED_BYTES:
        logger.warning(
            "lookup tables are float16 on the GPU: in float32 they take %d bytes, and it has %d",
            needed,
            SHARED_BYTES,
        )
    options.useFloat16 = needed > SHARED_BYTES or _is_half(index)
    return options


def _is_half(index: Any) -> bool:
    """True of vectors in float16 that are compared one by one (``SQfp16``)."""
    faiss = import_faiss()
    is_coded = isinstance(index, faiss.IndexScalarQuantizer)
    return is_coded and index.sq.qtype == faiss.ScalarQuantizer.QT_fp16


def _flat_of(index: Any) -> Any:
    flat = import_faiss().IndexFlat(index.d, index.metric_type)
    _copy_vectors(index, flat)
    return flat


def _copy_vectors(source: Any, target: Any) -> None:
    for start in range(0, source.ntotal, COPIED_ROWS):
        target.add(source.reconstruct_n(start, min(COPIED_ROWS, source.ntotal - start)))


def search_on_gpu(index: Any, queries: Float32Array, k: int) -> tuple[Float32Array, Int64Array]:
    """Scores and rows ``(q, k)``; half as many queries at a time as often as memory runs out.

    Raises:
        RuntimeError: of FAISS: it refuses a parameter, or not even one query fits.
    """
    step = count = max(1, len(queries))
    while True:
        pieces = [queries[first : first + step] for first in range(0, count, step)]
        try:
            hits = [index.search(piece, k) for piece in pieces]
        except FAISS_ERRORS as error:
            if step == 1 or not lacks_memory(error):
                raise
        else:
            scores, rows = (np.concatenate(parts) for parts in zip(*hits, strict=True))
            return scores, rows
        if step == count:
            logger.warning("the GPU is out of memory: fewer than %d queries at a time", count)
        step //= 2
