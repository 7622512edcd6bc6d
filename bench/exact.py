"""Exact search over tiles of vectors, certified.

The ranking does not depend on tile size, query block, engine or device: float32 only picks
candidates, an error bound says which other documents could still enter, and float64 decides.

There are two ways to candidates. Once a query has k documents, the k-th score is a bar: a matrix
product shows which rows of a tile may reach it, and late tiles have few. Where there is no bar
yet, or too many rows reach it, an engine proposes the nearest of the tile.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from bench.engines import Knn, engine
from bench.errors import BenchError
from bench.search import order_keys, scores_of_keys
from retrievers.clock import Clock
from retrievers.index import Hits, import_faiss

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Map = Callable[..., Iterator[Any]]

TILE_ROWS = 1 << 17  # 400 MB of 768 dimensions; smaller tiles rescore more candidates
BLOCK_BYTES = 1 << 28  # arrays that grow with queries x candidates
SLACK = 64  # candidates beyond k: more of them, fewer second looks at a tile
CANDIDATE_BYTES = 48  # of one candidate of one query, until it is merged
SCORE_BYTES = 5  # of one query and row: the float32 score, and whether it is high enough
RESCORE_BYTES = 1 << 20  # float64 products at a time and thread: fits a second-level cache
MERGE_PLACES = 1 << 16  # merged at a time and thread
PRODUCT_ROWS = 1 << 11  # scores of a thousand queries stay in a third-level cache

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


def most_candidates(k: int) -> int:
    """Most candidates of one query that are scored at a time."""
    return 2 * k + SLACK


def exact_search(
    vectors: Vectors,
    queries: Floats,
    k: int,
    tie_rank: Ints,
    *,
    tile_rows: int = TILE_ROWS,
    block_bytes: int = BLOCK_BYTES,
    device: str = "cpu",
    advance: Callable[[int], None] | None = None,
    clock: Clock | None = None,
) -> Hits:
    """The k documents of largest inner product, in canonical order.

    A score is the dot product in float64, rounded to float32. After every tile the best k are
    exactly those of all rows so far. The next tile is read while one is searched. Memory:
    ``bench.budget.search_bytes``.

    Args:
        vectors: n documents, finite.
        queries: float32 ``(q, dim)``, finite.
        k: depth; places beyond the corpus stay unfilled (-1).
        tie_rank: int64 ``(n,)``, rank of each row's document id in the order of bytes.
        tile_rows: rows at a time; on the GPU the tile and the queries must fit its memory.
        block_bytes: of the arrays that grow with queries x candidates; queries come in blocks
            that fit.
        device: ``cpu``, ``cuda`` or ``cuda:N``, for the float32 candidates only.
        advance: called with the number of rows searched.
        clock: of the phases ``search`` (candidates) and ``rescore`` (float64).

    Raises:
        BenchError: shapes do not fit, or a vector is not finite or too long for float32.
        RetrieverError: FAISS is not installed, or the device is missing.
    """
    _check_shapes(vectors, queries, k, tie_rank)
    queries = np.ascontiguousarray(queries)
    norms = _norms(queries, "query")
    best = _Best.nothing(len(queries), k)
    with ThreadPoolExecutor(_threads()) as pool, ThreadPoolExecutor(1) as reader:
        search = _Search(
            knn=engine(device),
            uses_bar=device == "cpu",
            block_bytes=block_bytes,
            each=pool.map,
            threads=_threads(),
            blas=ThreadpoolController(),
            clock=clock or Clock(),
        )
        step = search.block_queries(k)
        for start, vectors_of_tile in _read_ahead(vectors.tiles(tile_rows), reader):
            tile = _Tile.of(start, vectors_of_tile, tie_rank)
            for first in range(0, len(queries), step):
                block = slice(first, first + step)
                search.merge_tile(tile, _Asked.of(queries[block], norms[block], tile), best[block])
            if advance:
                advance(len(vectors_of_tile))
            del tile, vectors_of_tile  # or there would be three while the next one is awaited
    return best.hits()


def _read_ahead(
    tiles: Iterator[tuple[int, Floats]], reader: ThreadPoolExecutor
) -> Iterator[tuple[int, Floats]]:
    """The same tiles; the next one is read while the last one is in use."""
    coming = reader.submit(next, tiles, None)
    while (tile := coming.result()) is not None:
        coming = reader.submit(next, tiles, None)
        yield tile
        del tile


@dataclass(frozen=True)
class _Best:
    """The best k places so far, unsorted: keys ``(q, k)``, 0 where unfilled; rows ``(q, k)``.

    A slice is a view: what is merged into it is merged into the whole.
    """

    keys: Keys
    rows: Ints

    @classmethod
    def nothing(cls, count: int, k: int) -> "_Best":
        return cls(np.zeros((count, k), np.uint64), np.full((count, k), -1, np.int64))

    def __getitem__(self, queries: slice) -> "_Best":
        return _Best(self.keys[queries], self.rows[queries])

    @property
    def depth(self) -> int:
        """Places of a query."""
        return int(self.keys.shape[1])

    @property
    def last_score(self) -> Floats:
        """Score of the k-th place, float32 ``(q,)``; -inf while one is unfilled."""
        return scores_of_keys(self.keys.min(axis=1))

    def merge(self, queries: Ints, rows: Ints, keys: Keys) -> None:
        """Keep the best k of these and of candidates, which are sorted by query."""
        count = np.bincount(queries, minlength=len(self.keys))
        asked, width = np.flatnonzero(count), int(count.max(initial=0))
        line = (np.cumsum(count > 0) - 1)[queries]
        column = self.depth + np.arange(len(line)) - (np.cumsum(count) - count)[queries]
        shape = len(asked), self.depth + width
        all_keys, all_rows = np.zeros(shape, np.uint64), np.full(shape, -1, np.int64)
        all_keys[:, : self.depth], all_rows[:, : self.depth] = self.keys[asked], self.rows[asked]
        all_keys[line, column], all_rows[line, column] = keys, rows
        top = np.argpartition(all_keys, width, axis=1)[:, width:]
        self.keys[asked] = np.take_along_axis(all_keys, top, 1)
        self.rows[asked] = np.take_along_axis(all_rows, top, 1)

    def hits(self) -> Hits:
        """In canonical order; the places are sorted where they are, some queries at a time."""
        scores = np.empty(self.keys.shape, np.float32)
        step = max(1, RESCORE_BYTES // (8 * self.depth))
        for first in range(0, len(scores), step):
            some = self[first : first + step]
            best = np.argsort(~some.keys, axis=1)
            some.rows[:] = np.take_along_axis(some.rows, best, axis=1)
            keys = np.take_along_axis(some.keys, best, axis=1)
            scores[first : first + step] = scores_of_keys(keys)
        return Hits(scores, self.rows)


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


@dataclass(frozen=True)
class _Asked:
    """Some queries ``(q, dim)``, and how far a float32 score of this tile may be off ``(q,)``."""

    queries: Floats
    doubles: Doubles
    error: Doubles

    @classmethod
    def of(cls, queries: Floats, norms: Doubles, tile: _Tile) -> "_Asked":
        error = _dot_error(queries.shape[1], norms, tile.norm)
        return cls(queries, queries.astype(np.float64), error)

    def lowest(self, bar: Floats) -> Floats:
        """The float32 score below which the exact one cannot reach ``bar``, ``(q,)``."""
        goal = np.nextafter(bar, np.float32(-np.inf)).astype(np.float64)
        return np.nextafter((goal - self.error).astype(np.float32), np.float32(-np.inf))


@dataclass(frozen=True)
class _Pairs:
    """Candidates, sorted by query: number of the query in its block, and row of the tile."""

    queries: Ints
    rows: Ints

    @classmethod
    def none(cls) -> "_Pairs":
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def where(cls, wanted: Flags, first_row: int = 0) -> "_Pairs":
        """The places of a matrix ``(q, m)`` that are true."""
        queries, rows = np.divmod(np.flatnonzero(wanted), wanted.shape[1])
        return cls(queries, rows + first_row)

    @classmethod
    def together(cls, parts: Sequence["_Pairs"]) -> "_Pairs":
        queries = np.concatenate([part.queries for part in parts])
        order = np.argsort(queries, kind="stable")
        return cls(queries[order], np.concatenate([part.rows for part in parts])[order])

    def of(self, kept: Flags) -> "_Pairs":
        """Those of some queries, ``(q,)``."""
        some = kept[self.queries]
        return _Pairs(self.queries[some], self.rows[some])


@dataclass(frozen=True)
class _Search:
    """How candidates are found in a tile, scored and merged. ``each`` is a ``map``."""

    knn: Knn
    uses_bar: bool
    block_bytes: int
    each: Map
    threads: int
    blas: ThreadpoolController
    clock: Clock

    def block_queries(self, k: int) -> int:
        """Queries whose candidates fill half of a block; their scores fill the other half."""
        return max(1, self.block_bytes // (2 * CANDIDATE_BYTES * most_candidates(k)))

    def merge_tile(self, tile: _Tile, asked: _Asked, best: _Best) -> None:
        """Make ``best``, of the rows so far, the best of this tile too."""
        found, crowded = self._reaching(tile, asked, best)
        self._merge(found, tile, asked, best)
        if len(crowded):
            self._merge_proposals(crowded, tile, asked, best)

    def _reaching(self, tile: _Tile, asked: _Asked, best: _Best) -> tuple[_Pairs, Ints]:
        """The rows that may reach the k-th score, and the queries with no bar or too many rows.

        Threads share the rows, each with a matrix product of its own: none waits for another, and
        the scores are compared while they are in the cache.
        """
        bar, most = best.last_score, most_candidates(best.depth)
        count = np.where(np.isneginf(bar) | (not self.uses_bar), most + 1, 0)
        if (count > most).all():
            return _Pairs.none(), np.arange(len(count))
        lowest = asked.lowest(bar)
        step = self._product_rows(len(count), len(tile.vectors))
        spare = SimpleQueue[tuple[Floats, Flags]]()
        for _ in range(self.threads):
            spare.put((np.empty(len(count) * step, np.float32), np.empty(len(count) * step, "?")))
        counting = Lock()

        def reaching(first: int) -> _Pairs:
            rows = tile.vectors[first : first + step]
            shape = len(count), len(rows)
            arrays = spare.get()
            scores = arrays[0][: shape[0] * shape[1]].reshape(shape)
            wanted = arrays[1][: shape[0] * shape[1]].reshape(shape)
            np.matmul(asked.queries, rows.T, out=scores)
            np.greater_equal(scores, lowest[:, None], out=wanted)
            found = np.count_nonzero(wanted, axis=1)
            with counting:
                count[:] += found
                crowded = count > most
            wanted[crowded] = False
            pairs = _Pairs.where(wanted, first)
            spare.put(arrays)
            return pairs

        with self.clock.phase("search"), self.blas.limit(limits=1, user_api="blas"):
            parts = list(self.each(reaching, range(0, len(tile.vectors), step)))
            found = _Pairs.together([_Pairs.none(), *parts]).of(count <= most)
        return found, np.flatnonzero(count > most)

    def _product_rows(self, queries: int, rows: int) -> int:
        """Rows of one matrix product: as many as fit, a few products for each thread."""
        fitting = self.block_bytes // (2 * SCORE_BYTES * queries * self.threads)
        return max(1, min(PRODUCT_ROWS, -(-rows // self.threads), fitting))

    def _merge_proposals(self, crowded: Ints, tile: _Tile, asked: _Asked, best: _Best) -> None:
        """Merge the nearest rows of the tile for some queries, then what they may have missed."""
        with self.clock.phase("search"):
            count = min(best.depth + SLACK, len(tile.vectors))
            scores, rows = self.knn(asked.queries[crowded], tile.vectors, count)
            upper = (scores + asked.error[crowded, None]).astype(np.float32)
            line, column = np.nonzero(upper >= best.last_score[crowded, None])
            found = _Pairs(crowded[line], rows[line, column])
        self._merge(found, tile, asked, best)
        if count < len(tile.vectors):
            # What was not proposed scores at most the last proposal, plus the error of both.
            unsure = np.flatnonzero(upper[:, -1] >= best.last_score[crowded])
            self._merge_missed(crowded[unsure], rows[unsure], tile, asked, best)

    def _merge_missed(
        self, unsure: Ints, proposed: Ints, tile: _Tile, asked: _Asked, best: _Best
    ) -> None:
        """Merge every other row of the tile that may reach the k-th score, query by query."""
        step = max(1, self.block_bytes // (2 * SCORE_BYTES * len(tile.vectors)))
        lowest = asked.lowest(best.last_score)
        for first in range(0, len(unsure), step):
            some = unsure[first : first + step]
            with self.clock.phase("search"):
                wanted = asked.queries[some] @ tile.vectors.T >= lowest[some, None]
                np.put_along_axis(wanted, proposed[first : first + step], False, axis=1)
            for number, line in zip(some, wanted, strict=True):
                rows = np.flatnonzero(line)
                self._merge(_Pairs(np.full(len(rows), number), rows), tile, asked, best)

    def _merge(self, found: _Pairs, tile: _Tile, asked: _Asked, best: _Best) -> None:
        """Score candidates in float64 and keep the best k; threads share the queries."""
        step = max(1, MERGE_PLACES // (best.depth + most_candidates(best.depth)))
        firsts = range(0, len(asked.queries), step)
        cuts = np.searchsorted(found.queries, [*firsts, len(asked.queries)])

        def merge(number: int) -> None:
            block = slice(firsts[number], firsts[number] + step)
            some = slice(cuts[number], cuts[number + 1])
            rows, queries = found.rows[some], found.queries[some] - block.start
            scores = _exact_scores(tile.vectors, rows, asked.doubles[block], queries)
            keys = order_keys(scores, tile.tie_rank[rows])
            best[block].merge(queries, rows + tile.start, keys)

        with self.clock.phase("rescore"):
            list(self.each(merge, np.flatnonzero(np.diff(cuts))))


def _exact_scores(vectors: Floats, rows: Ints, doubles: Doubles, queries: Ints) -> Floats:
    """Dot products of rows with queries, float64 rounded to float32, ``(len(rows),)``.

    Products of float32 values are exact in float64, and numpy's pairwise sum over a contiguous
    axis depends on its length alone: equal vectors have equal scores wherever they stand.
    """
    scores = np.empty(len(rows), np.float32)
    step = max(1, RESCORE_BYTES // (8 * vectors.shape[1]))
    products = np.empty((min(step, len(rows)), vectors.shape[1]))
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        out = products[: len(rows[some])]
        out[:] = vectors[rows[some]]
        out *= doubles[queries[some]]
        scores[some] = out.sum(axis=1)
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
