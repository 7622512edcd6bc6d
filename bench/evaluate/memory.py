"""Memory: sizes as people type them, what is free, and what search may take of it.

A budget is the peak resident set of the process: everything it holds, mapped file pages included.
"""

import os
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import psutil

from bench.evaluate.exact import BLOCK_BYTES, TILE_ROWS, most_candidates
from bench.evaluate.exact.numpy_engine import CANDIDATE_BYTES, PRODUCT_ROWS, SCORE_BYTES
from foundation.errors import BenchError
from retrievers.index.faiss_index import POINTS_PER_CENTROID, FaissIndex, IndexSpec
from retrievers.index.library import import_faiss

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
FREE_SHARE = 0.8  # of the free memory, without being asked: others need some too

LARGEST_TILE_ROWS = 1 << 18  # beyond it fewer candidates no longer pay for the memory
SMALLEST_TILE_ROWS = 1 << 11
SMALLEST_BLOCK_BYTES = 1 << 24
THREAD_BYTES = 10 << 20  # products, candidates and merged places of one thread
LIBRARY_BYTES = 64 << 20  # what FAISS and the matrix product keep for themselves


def parse_size(text: str) -> int:
    """Bytes: ``2GB`` (10^9), ``1.5GiB`` (2^30), ``800MB``, or a plain number of bytes.

    Raises:
        BenchError: it is not a size, or less than a byte.
    """
    match = re.fullmatch(r"([0-9]{0,18}\.?[0-9]{0,9})\s*([A-Za-z]*)", text.strip())
    factor = UNITS.get(match[2].upper()) if match else None
    has_number = match and match[1].strip(".")
    size = int(Decimal(match[1]) * factor) if match and has_number and factor else 0
    if size < 1:
        raise BenchError(
            f"cannot read the size {text!r}", "write 2GB, 1.5GiB, 800MB or a number of bytes"
        )
    return size


def show_size(size: int) -> str:
    """Bytes as people type them, rounded up: what is shown is enough when it is typed."""
    unit = next((unit for unit in ("TB", "GB", "MB", "KB") if size >= UNITS[unit]), "B")
    whole, tenth = divmod(-(-size * 10 // UNITS[unit]), 10)
    return f"{whole}.{tenth}{unit}" if tenth else f"{whole}{unit}"


def resident_bytes() -> int:
    """Memory of this process now, mapped file pages included."""
    return int(psutil.Process().memory_info().rss)


def default_budget(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process holds, plus ``FREE_SHARE`` of those free in machine or container."""
    free = [psutil.virtual_memory().available, *_container_free(cgroup)]
    return resident_bytes() + int(FREE_SHARE * max(0, min(free)))


@dataclass(frozen=True)
class SearchPlan:
    """Sizes with which exact search keeps to a budget of memory.

    Attributes:
        tile_rows, block_bytes: arguments of ``exact_search``.
        memory_bytes: of the process at its peak, by estimate.
    """

    tile_rows: int
    block_bytes: int
    memory_bytes: int


def search_bytes(
    rows: int, dim: int, queries: int, k: int, tile_rows: int, block_bytes: int, tiles: int = 2
) -> int:
    """Most memory that ``exact_search`` takes, beyond what the process holds before.

    Tiles in float32 (one is searched while the next is read, from float16 at the most), the
    places of the ranking, the queries once more and in float64, the tie ranks, a block.
    """
    in_tiles = min(tile_rows, rows) * (tiles * 4 * dim + 2 * dim + 40)
    places = queries * k * (8 + 8 + 4)
    threads = len(os.sched_getaffinity(0)) * THREAD_BYTES
    return in_tiles + places + queries * dim * 12 + rows * 8 + block_bytes + threads + LIBRARY_BYTES


def plan_search(
    budget_bytes: int,
    rows: int,
    dim: int,
    queries: int,
    k: int,
    resident: int | None = None,
    device: str = "cpu",
) -> SearchPlan:
    """The largest tiles and blocks with which exact search stays within a budget.

    Args:
        budget_bytes: for the whole process.
        rows: documents.
        resident: bytes that the process holds already; by default what it holds now.
        device: of the search. A GPU is fed from two page-locked tiles beside the one that is read,
            and PyTorch rounds page-locked memory up to a power of two.

    Raises:
        BenchError: not even the smallest tiles fit.
    """
    held = resident_bytes() if resident is None else resident
    tiles = 2 if device == "cpu" else 5
    for block in (_best_block(queries, k), _smallest_block(k)):
        fixed = held + search_bytes(0, dim, queries, k, 0, block) + rows * 8
        per_row = search_bytes(1, dim, 0, k, 1, 0, tiles) - search_bytes(0, dim, 0, k, 0, 0) - 8
        fitting = (budget_bytes - fixed) // per_row
        tile_rows = min(fitting, LARGEST_TILE_ROWS)
        if tile_rows >= min(rows, SMALLEST_TILE_ROWS):
            tile_rows = max(1, tile_rows)
            needed = held + search_bytes(rows, dim, queries, k, tile_rows, block, tiles)
            return SearchPlan(tile_rows, block, needed)
    block = _smallest_block(k)
    smallest = search_bytes(rows, dim, queries, k, SMALLEST_TILE_ROWS, block, tiles)
    raise BenchError(
        f"search needs at least {show_size(held + smallest)} for {queries:,} queries at depth "
        f"{k:,} over {rows:,} documents, {show_size(held)} of it held already; "
        f"the budget is {show_size(budget_bytes)}",
        f"--max-memory {show_size(held + smallest)}, or a smaller --depth",
    )


def memory_of_index(spec: IndexSpec, rows: int, dim: int) -> int:
    """Bytes of an approximate index once it is built, a few too many rather than too few.

    Codes; ids, of inverted lists; links, of a graph, on the levels that a row reaches on average;
    centroids, and a codebook and a matrix whether it has them or not.

    Raises:
        BenchError: FAISS is missing, or does not know the index.
    """
    FaissIndex(spec, dim)  # says what is wrong with a spec
    faiss = import_faiss()
    owner = faiss.index_factory(dim, spec.factory)  # it owns what is inside it
    index = faiss.downcast_index(owner)
    codes = faiss.downcast_index(getattr(index, "storage", None) or index).sa_code_size()
    graph = re.match(r"(?:.*,)?HNSW(\d+)", spec.factory)
    lists = re.search(r"IVF(\d+)", spec.factory)
    links = round(8.8 * int(graph[1])) + 12 if graph else 0
    fixed = 4 * dim * ((int(lists[1]) if lists else 0) + 256 + dim)
    return rows * (int(codes) + links + (8 if lists else 0)) + fixed


def check_index_fits(
    spec: IndexSpec, rows: int, dim: int, budget_bytes: int, resident: int | None = None
) -> int:
    """Bytes of this process at the peak, if an approximate index fits.

    Counted: the training sample or the index, whichever is more, and a tile of vectors. Codes
    that are not in inverted lists are one array, which is there twice while FAISS makes it grow.

    Raises:
        BenchError: it does not fit.
        BenchError: FAISS is missing, or does not know the index.
    """
    held = resident_bytes() if resident is None else resident
    lists = re.search(r"IVF(\d+)", spec.factory)
    built = memory_of_index(spec, rows, dim) * (1 if lists else 2)
    sample = min(rows, POINTS_PER_CENTROID * int(lists[1])) * dim * 4 if lists else 0
    tile = min(rows, TILE_ROWS) * dim * 4
    needed = held + max(sample, built) + tile
    if needed > budget_bytes:
        raise BenchError(
            f"the index {spec} over {rows:,} vectors of {dim} dimensions needs about "
            f"{show_size(needed)}, the budget is {show_size(budget_bytes)}",
            f"--max-memory {show_size(needed)}, a smaller index such as IVF4096,PQ64?nprobe=64, "
            "or --index flat, which reads the vectors in pieces",
        )
    return needed


def _best_block(queries: int, k: int) -> int:
    """Enough for all queries at once, and for products of full width; at most the default."""
    candidates = CANDIDATE_BYTES * most_candidates(k)
    wanted = 2 * queries * max(candidates, SCORE_BYTES * PRODUCT_ROWS)
    return max(_smallest_block(k), min(BLOCK_BYTES, wanted))


def _smallest_block(k: int) -> int:
    return max(SMALLEST_BLOCK_BYTES, 2 * CANDIDATE_BYTES * most_candidates(k))


def _container_free(cgroup: Path) -> list[int]:
    """Bytes that a container's limit leaves, cgroup version 2 or 1; empty without a limit.

    File pages that nobody uses count as free: the system drops them before it refuses memory.
    """
    names = (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    )
    for limit, usage, statistics, pages in names:
        try:
            most, used = (cgroup / limit).read_text().strip(), int((cgroup / usage).read_text())
            lines = (cgroup / statistics).read_text().splitlines()
        except OSError:
            continue
        unused = dict(line.split() for line in lines).get(pages, "0")
        return [] if most == "max" else [int(most) - used + int(unused)]
    return []
