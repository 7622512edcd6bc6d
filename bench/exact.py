"""Exact search over tiles of vectors, certified.

The ranking does not depend on tile size, query block, engine or device: FAISS proposes candidates
in float32, an error bound says whether a document that was not proposed could still enter, and
float64 decides.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench.errors import BenchError
from bench.search import order_keys, scores_of_keys
from retrievers.index import Hits, import_faiss, resolve_device

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Knn = Callable[[Floats, Floats, int], tuple[Floats, Ints]]

TILE_ROWS = 1 << 18  # 800 MB of 768 dimensions; smaller tiles rescore more candidates
SLACK = 64  # candidates beyond k: more of them, fewer second looks at a tile
GPU_MAX_K = 2048
BLOCK_BYTES = 1 << 28  # arrays that grow with queries x candidates
RESCORE_BYTES = 1 << 20  # float64 products at a time and thread: fits a second-level cache
SCAN_QUERIES = 64

FLOAT32_ROUNDOFF = 2.0**-24
FLOAT64_ROUNDOFF = 2.0**-53
TINY = float(np.finfo(np.float32).tiny)


class Vectors(Protocol):
    """The vectors of a corpus, wherever they are kept."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        ...

    def tiles(self, rows: int) -> Iterator[tuple[int, Floats]]:
        """First row and float32 ``(m, dim)``, C-contiguous, m <= ``rows``, in row order."""
        ...


@dataclass(frozen=True)
class ArrayVectors:
    """Vectors in one float32 array ``(n, dim)``, in memory or memory-mapped. Tiles are views."""

    array: Floats

    def __post_init__(self) -> None:
        array = self.array
        if array.ndim != 2 or array.dtype != np.float32 or not array.flags.c_contiguous:
            raise ValueError("vectors are a C-contiguous float32 array of two dimensions")

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        return self.array.shape[0], self.array.shape[1]

    def tiles(self, rows: int) -> Iterator[tuple[int, Floats]]:
        """First row and view of each run of at most ``rows`` rows."""
        for start in range(0, len(self.array), rows):
            yield start, self.array[start : start + rows]


def exact_search(
    vectors: Vectors,
    queries: Floats,
    k: int,
    tie_rank: Ints,
    *,
    tile_rows: int = TILE_ROWS,
    device: str = "cpu",
    advance: Callable[[int], None] | None = None,
) -> Hits:
    """The k documents of largest inner product, in canonical order.

    A score is the dot product in float64, rounded to float32. After every tile the best k are
    exactly those of all rows so far. Memory beyond the tile: 16 bytes for each of q x k places,
    ``BLOCK_BYTES`` for a block of queries, and for queries that need a second look at a tile
    ``4 * SCAN_QUERIES * tile_rows`` bytes.

    Args:
        vectors: n documents, finite.
        queries: float32 ``(q, dim)``, finite.
        k: depth; places beyond the corpus stay unfilled (-1).
        tie_rank: int64 ``(n,)``, rank of each row's document id in the order of bytes.
        tile_rows: rows at a time; on the GPU the tile and the queries must fit its memory.
        device: ``cpu``, ``cuda`` or ``cuda:N``, for the float32 candidates only.
        advance: called with the number of rows searched.

    Raises:
        BenchError: shapes do not fit, or a vector is not finite or too long for float32.
        RetrieverError: FAISS is not installed, or the device is missing.
    """
    _check_shapes(vectors, queries, k, tie_rank)
    queries = np.ascontiguousarray(queries)
    norms = _norms(queries, "query")
    knn = _engine(device)
    best = _Best.nothing(len(queries), k)
    step = max(1, BLOCK_BYTES // (48 * (2 * k + SLACK)))
    blocks = [slice(start, start + step) for start in range(0, len(queries), step)]
    with ThreadPoolExecutor(_threads()) as pool:
        for start, vectors_of_tile in vectors.tiles(tile_rows):
            tile = _Tile.of(start, vectors_of_tile, tie_rank)
            for block in blocks:
                before = _Best(best.keys[block], best.rows[block])
                after = _search_tile(tile, queries[block], norms[block], before, knn, pool.map)
                best.keys[block], best.rows[block] = after.keys, after.rows
            if advance:
                advance(len(vectors_of_tile))
    return best.hits()


@dataclass(frozen=True)
class _Best:
    """The best k places so far, unsorted: keys ``(q, k)``, 0 where unfilled; rows ``(q, k)``."""

    keys: Keys
    rows: Ints

    @classmethod
    def nothing(cls, count: int, k: int) -> "_Best":
        return cls(np.zeros((count, k), np.uint64), np.full((count, k), -1, np.int64))

    def __getitem__(self, queries: npt.NDArray[Any]) -> "_Best":
        return _Best(self.keys[queries], self.rows[queries])

    @property
    def last_score(self) -> Floats:
        """Score of the k-th place, float32 ``(q,)``; -inf while one is unfilled."""
        return scores_of_keys(self.keys.min(axis=1))

    def merged(self, keys: Keys, rows: Ints) -> "_Best":
        k = self.keys.shape[1]
        keys = np.concatenate([self.keys, keys], axis=1)
        rows = np.concatenate([self.rows, rows], axis=1)
        top = np.argpartition(keys, keys.shape[1] - k, axis=1)[:, -k:]
        return _Best(np.take_along_axis(keys, top, 1), np.take_along_axis(rows, top, 1))

    def hits(self) -> Hits:
        best = np.argsort(~self.keys, axis=1)
        keys = np.take_along_axis(self.keys, best, axis=1)
        return Hits(scores_of_keys(keys), np.take_along_axis(self.rows, best, axis=1))


@dataclass(frozen=True)
class _Tile:
    """Some rows of the corpus: vectors ``(m, dim)``, tie ranks ``(m,)``, longest norm."""

    start: int
    vectors: Floats
    tie_rank: Ints
    norm: float

    @classmethod
    def of(cls, start: int, vectors: Floats, tie_rank: Ints) -> "_Tile":
        norm = float(_norms(vectors, "document", start).max(initial=0.0))
        ranks = np.asarray(tie_rank[start : start + len(vectors)])
        return cls(start, vectors, ranks, norm)

    def keys(self, query: Doubles, rows: Ints) -> Keys:
        """Keys of rows of this tile by their exact scores, ``(len(rows),)``."""
        return order_keys(_exact_scores(self.vectors, rows, query), self.tie_rank[rows])


def _search_tile(
    tile: _Tile, queries: Floats, norms: Doubles, before: _Best, knn: Knn, each: Callable[..., Any]
) -> _Best:
    """The best k of what came before and this tile. ``each`` is a ``map``."""
    k = before.keys.shape[1]
    count = min(k + SLACK, len(tile.vectors))
    scores, rows = knn(queries, tile.vectors, count)
    error = _dot_error(queries.shape[1], norms, tile.norm)
    upper = (scores + error[:, None]).astype(np.float32)
    hopeful = (upper >= before.last_score[:, None]).sum(axis=1)
    doubles = queries.astype(np.float64)
    keys = np.zeros((len(queries), count), np.uint64)

    def rescore(query: int) -> None:
        some = hopeful[query]
        keys[query, :some] = tile.keys(doubles[query], rows[query, :some])

    list(each(rescore, range(len(queries))))
    after = before.merged(keys, np.where(keys > 0, rows + tile.start, -1))
    if count == len(tile.vectors):
        return after
    # What was not proposed scores at most the last proposal, plus the error of both.
    unsure = np.flatnonzero(upper[:, -1] >= after.last_score)
    for first in range(0, len(unsure), SCAN_QUERIES):
        some = unsure[first : first + SCAN_QUERIES]
        scanned = _scan(tile, queries[some], error[some], before[some], after[some], each)
        after.keys[some], after.rows[some] = scanned.keys, scanned.rows
    return after


def _scan(
    tile: _Tile,
    queries: Floats,
    error: Doubles,
    before: _Best,
    after: _Best,
    each: Callable[..., Any],
) -> _Best:
    """The best k, looking at every row of the tile whose score may reach the k-th of ``after``."""
    goal = np.nextafter(after.last_score, np.float32(-np.inf)).astype(np.float64)
    lowest = np.nextafter((goal - error).astype(np.float32), np.float32(-np.inf))
    reaching = queries @ tile.vectors.T >= lowest[:, None]
    doubles = queries.astype(np.float64)

    def merge(query: int) -> tuple[Keys, Ints]:
        rows = np.flatnonzero(reaching[query])
        keys = tile.keys(doubles[query], rows)
        found = before[np.array([query])].merged(keys[None], rows[None] + tile.start)
        return found.keys[0], found.rows[0]

    keys, rows = zip(*each(merge, range(len(queries))), strict=True)
    return _Best(np.stack(keys), np.stack(rows))


def _exact_scores(vectors: Floats, rows: Ints, query: Doubles) -> Floats:
    """Dot products of some rows with one query, float64 rounded to float32, ``(len(rows),)``.

    Products of float32 values are exact in float64, and numpy's pairwise sum over a contiguous
    axis depends on its length alone: equal vectors have equal scores wherever they stand.
    """
    scores = np.empty(len(rows), np.float32)
    step = max(1, RESCORE_BYTES // (8 * len(query)))
    for start in range(0, len(rows), step):
        products = vectors[rows[start : start + step]].astype(np.float64)
        products *= query
        scores[start : start + step] = products.sum(axis=1)
    return scores


def _dot_error(dim: int, query_norms: Doubles, document_norm: float) -> Doubles:
    """Largest distance between a float32 and a float64 dot product, float64 ``(q,)``.

    In any order of summation, with or without fused multiply-add, a dot product of n terms is
    off by at most gamma_n |x|.|y| <= gamma_n ||x|| ||y||, gamma_n = n u / (1 - n u), with u the
    unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1).
    Higham leaves out underflow: a product or an operand flushed to zero costs less than the last
    term.
    """
    relative = sum(dim * u / (1 - dim * u) for u in (FLOAT32_ROUNDOFF, FLOAT64_ROUNDOFF))
    underflow = dim * TINY * (1 + query_norms + document_norm)
    return relative * query_norms * document_norm + underflow


def _norms(vectors: Floats, what: str, first_row: int = 0) -> Doubles:
    """Upper bounds of the Euclidean norms, float64 ``(m,)``.

    Raises:
        BenchError: a vector is not finite, or so long that float32 dot products may overflow.
    """
    dim = vectors.shape[1]
    squares = np.einsum("ij,ij->i", vectors, vectors)
    bad = np.flatnonzero(~np.isfinite(squares))
    if len(bad):
        raise BenchError(
            f"the vector of {what} {first_row + int(bad[0])} is not finite, or too long for "
            f"float32 ({len(bad)} such vectors)"
        )
    norms: Doubles = np.sqrt(
        (squares.astype(np.float64) + dim * TINY) / (1 - dim * FLOAT32_ROUNDOFF)
    )
    return norms


def _engine(device: str) -> Knn:
    """The k nearest of a tile by inner product in float32, on the CPU or a GPU."""
    faiss = import_faiss()
    gpu = resolve_device(device)

    def on_cpu(queries: Floats, tile: Floats, k: int) -> tuple[Floats, Ints]:
        scores, rows = faiss.knn(queries, tile, k, metric=faiss.METRIC_INNER_PRODUCT)
        return scores, rows

    if gpu is None:
        return on_cpu
    resources = faiss.StandardGpuResources()

    def on_gpu(queries: Floats, tile: Floats, k: int) -> tuple[Floats, Ints]:
        if k > GPU_MAX_K:
            return on_cpu(queries, tile, k)
        scores, rows = faiss.knn_gpu(
            resources, queries, tile, k, metric=faiss.METRIC_INNER_PRODUCT, device=gpu
        )
        return scores, rows

    return on_gpu


def _threads() -> int:
    """As many as FAISS uses, so that OMP_NUM_THREADS limits both."""
    return int(import_faiss().omp_get_max_threads())


def _check_shapes(vectors: Vectors, queries: Floats, k: int, tie_rank: Ints) -> None:
    rows, dim = vectors.shape
    if queries.ndim != 2 or queries.shape[1] != dim or queries.dtype != np.float32:
        raise BenchError(
            f"queries are {queries.dtype} {queries.shape}, documents float32 {(rows, dim)}"
        )
    if tie_rank.shape != (rows,):
        raise BenchError(f"{len(tie_rank)} tie ranks for {rows} documents")
    if k < 1:
        raise BenchError(f"depth {k}: at least one document is retrieved")
