"""Indexes of FAISS on GPUs: moved there with what fits them, and their memory when it ends."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.errors import lacks_memory
from retrievers.index.library import FAISS_ERRORS, import_faiss
from retrievers.index.parts import index_parts

logger = logging.getLogger(__name__)

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


def search(index: Any, queries: Float32Array, k: int) -> tuple[Float32Array, Int64Array]:
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
