"""Indexes of FAISS on a GPU: moved there with what fits it, and its memory when it ends."""

import logging
from typing import Any

import numpy as np

from foundation.arrays import Float32Array, Int64Array
from foundation.failures import lacks_memory
from retrievers.index.library import FAISS_ERRORS, import_faiss
from retrievers.index.parts import index_parts

logger = logging.getLogger(__name__)

MAX_K = 2048  # deepest search of FAISS's kernels
# What a block of threads has without asking for more, on every GPU of NVIDIA so far; FAISS keeps
# the lookup tables of one query and list there (GpuIndexIVFPQ.cu, verifyPQSettings_).
SHARED_BYTES = 48 << 10


def lookup_table_bytes(index: Any) -> int:
    """Float32 lookup tables of the inverted lists of codes inside an index; 0 where none are."""
    faiss = import_faiss()
    parts = (part for part in index_parts(index) if isinstance(part, faiss.IndexIVFPQ))
    return max((4 * part.pq.M * part.pq.ksub for part in parts), default=0)


def move_to_gpu(index: Any, gpu: int) -> tuple[Any, Any]:
    """The index on a GPU, and the resources that must live as long.

    Lookup tables of product quantisation are float16 where in float32 they would not fit; its
    own scores, which an approximate index keeps, then have eleven bits instead of 24.

    Raises:
        RuntimeError: of FAISS: this kind cannot be there, or there is no memory.
    """
    faiss = import_faiss()
    resources, options = faiss.StandardGpuResources(), faiss.GpuClonerOptions()
    needed = lookup_table_bytes(index)
    if needed > SHARED_BYTES:
        logger.warning(
            "lookup tables are float16 on the GPU: in float32 they take %d bytes, and it has %d",
            needed,
            SHARED_BYTES,
        )
        options.useFloat16 = True
    return faiss.index_cpu_to_gpu(resources, gpu, index, options), resources


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
