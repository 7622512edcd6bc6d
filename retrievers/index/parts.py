"""The indexes inside a FAISS index: which can be used here, and what training them takes.

FAISS makes more from a factory string than it can use: some indexes refuse documents when they
come, some end the process. What is known of that is checked on the made index, before any work.
"""

import re
from collections.abc import Iterator
from typing import Any

from foundation.errors import BenchError
from retrievers.index.library import import_faiss

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
