"""Runs in the sense of information retrieval: the ranked documents of each query."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.evaluate.search import order, order_keys
from foundation.arrays import Float32Array, Int32Array, Int64Array
from foundation.errors import BenchError
from retrievers.index.faiss_index import Hits

Strings: TypeAlias = pa.Array | pa.ChunkedArray


@dataclass(frozen=True)
class Run:
    """Documents of each query in canonical order: score, then document id by bytes, both falling.

    Query i owns the rows ``offsets[i]`` to ``offsets[i + 1]``. Each id is held once, so that a run
    of millions of rows is sorted, joined and written as numbers.

    Attributes:
        query_ids: q distinct ids.
        offsets: int64 ``(q + 1,)``, from 0 to n.
        ids: ``large_string`` ``(m,)``, distinct, rising by bytes: those of all documents.
        documents: int32 ``(n,)``, place in ``ids`` of each row, distinct within a query.
        scores: float32 ``(n,)``, finite.
    """

    query_ids: tuple[str, ...]
    offsets: Int64Array
    ids: pa.LargeStringArray
    documents: Int32Array
    scores: Float32Array

    def __post_init__(self) -> None:
        if len(set(self.query_ids)) != len(self.query_ids):
            raise BenchError("a query id occurs twice: a run has one ranking for each query")
        if len(self.offsets) != len(self.query_ids) + 1:
            raise ValueError(f"{len(self.offsets) - 1} rankings for {len(self.query_ids)} queries")

    @classmethod
    def from_hits(
        cls, hits: Hits, query_ids: Sequence[str], corpus_ids: Strings, tie_rank: Int64Array
    ) -> "Run":
        """The run of hits that are in canonical order; unfilled places (row -1) are left out.

        Args:
            corpus_ids: ``large_string`` ``(N,)``, of all documents of the corpus.
            tie_rank: int64 ``(N,)``, rank of each of them by bytes.

        Raises:
            BenchError: a score is NaN or infinite.
        """
        filled = hits.rows >= 0
        offsets = np.concatenate([[0], np.cumsum(filled.sum(axis=1))]).astype(np.int64)
        scores = as_float32(hits.scores[filled])
        ranks = tie_rank[hits.rows[filled]]
        retrieved = np.zeros(len(tie_rank), dtype=bool)
        retrieved[ranks] = True
        place = np.cumsum(retrieved, dtype=np.int32) - np.int32(1)
        row_of_rank = np.empty(len(tie_rank), dtype=np.int64)
        row_of_rank[tie_rank] = np.arange(len(tie_rank))
        ids = _one_array(corpus_ids.take(pa.array(row_of_rank[retrieved])))
        return cls(tuple(query_ids), offsets, ids, place[ranks], scores)

    @classmethod
    def from_rows(
        cls, query_ids: Sequence[str], doc_ids: Sequence[str], scores: npt.ArrayLike
    ) -> "Run":
        """The run of rows in any order: three columns of equal length.

        Raises:
            BenchError: a score is not finite as float32, or a document repeats within a query.
        """
        queries, documents = (pa.array(ids, pa.large_string()) for ids in (query_ids, doc_ids))
        scores = as_float32(np.asarray(scores, dtype=np.float64))
        return cls.from_columns(queries, documents, scores)

    @classmethod
    def from_columns(cls, queries: Strings, documents: Strings, scores: Float32Array) -> "Run":
        """The run of rows in any order: ids as ``large_string``, or encoded with a dictionary.

        Queries keep the order in which they first occur, or that of their dictionary.

        Raises:
            BenchError: a document repeats within a query; for a dictionary also a query id.
        """
        query_codes, query_ids = _encoded(queries)
        codes, ids = _encoded(documents)
        if not _is_rising(ids):
            codes, ids = _in_byte_order(codes, ids)
        _check_distinct(query_codes, query_ids, codes, ids)
        counts = np.bincount(query_codes, minlength=len(query_ids))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if not _is_canonical(query_codes, codes, scores):
            rows = np.argsort(query_codes, kind="stable")
            for start, end in itertools.pairwise(offsets):
                own = rows[start:end]
                rows[start:end] = own[order(scores[own], codes[own])]
            codes, scores = codes[rows], scores[rows]
        return cls(tuple(query_ids.to_pylist()), offsets, ids, codes.astype(np.int32), scores)

    def __len__(self) -> int:
        return len(self.documents)

    @cached_property
    def doc_ids(self) -> pa.LargeStringArray:
        """Document id of each row, ``large_string`` ``(n,)``."""
        return self.ids.take(pa.array(self.documents))

    def places_of(self, ids: Strings) -> Int64Array:
        """Place in ``ids`` of each of the given ids, -1 where no row has it.

        A binary search: the time depends on how many ids are asked for, hardly on the run.
        """
        if not len(self.ids):
            return np.full(len(ids), -1, dtype=np.int64)
        low = np.zeros(len(ids), dtype=np.int64)
        high = np.full(len(ids), len(self.ids) - 1, dtype=np.int64)
        while (low < high).any():
            middle = (low + high) // 2
            less = _as_numpy(pc.less(self.ids.take(pa.array(middle)), ids))
            low = np.where(less & (low < high), middle + 1, low)
            high = np.where(less, high, middle)
        return np.where(_as_numpy(pc.equal(self.ids.take(pa.array(low)), ids)), low, -1)

    def rankings(self) -> Iterator[tuple[str, list[str], Float32Array]]:
        """Query id, document ids and scores (best first) of one query after the other."""
        for query_id, (start, end) in zip(
            self.query_ids, itertools.pairwise(self.offsets.tolist()), strict=True
        ):
            yield query_id, self.doc_ids[start:end].to_pylist(), self.scores[start:end]


class NotFiniteError(BenchError):
    """A score is NaN, infinite, or so large that it is infinite as float32."""


class RepeatedDocumentError(BenchError):
    """A document occurs twice for one query."""

    def __init__(self, query: str, document: str) -> None:
        super().__init__(f"document {document!r} occurs twice for query {query!r}")
        self.query = query
        self.document = document


def as_float32(scores: npt.ArrayLike) -> Float32Array:
    """Scores as float32.

    Raises:
        NotFiniteError: one is not finite as such.
    """
    with np.errstate(over="ignore"):
        narrow = np.asarray(scores).astype(np.float32)
    if not np.isfinite(narrow).all():
        raise NotFiniteError("a score is NaN, infinite or beyond the range of float32")
    return narrow


def _encoded(strings: Strings) -> tuple[Int64Array, pa.LargeStringArray]:
    """Codes int64 and the distinct strings that they number."""
    encoded = _one_array(strings)
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _is_rising(ids: pa.LargeStringArray) -> bool:
    return bool(pc.all(pc.less(ids[:-1], ids[1:])).as_py()) if len(ids) > 1 else True


def _in_byte_order(
    codes: Int64Array, ids: pa.LargeStringArray
) -> tuple[Int64Array, pa.LargeStringArray]:
    """The same strings numbered in the order of their UTF-8 bytes, each once."""
    rising = pc.sort_indices(ids)
    in_order = ids.take(rising)
    is_new = np.ones(len(ids), dtype=bool)
    is_new[1:] = _as_numpy(pc.not_equal(in_order[:-1], in_order[1:]))
    rank = np.empty(len(ids), dtype=np.int64)
    rank[rising.to_numpy()] = np.cumsum(is_new) - 1
    return rank[codes], in_order.filter(pa.array(is_new))


def _is_canonical(queries: Int64Array, documents: Int64Array, scores: Float32Array) -> bool:
    """True where rows are by query, and in canonical order within each."""
    keys = order_keys(scores, documents)
    same = queries[1:] == queries[:-1]
    falls = (queries[1:] > queries[:-1]) | (same & (keys[1:] < keys[:-1]))
    return bool(falls.all())


def _check_distinct(
    query_codes: Int64Array, query_ids: pa.Array, doc_codes: Int64Array, doc_ids: pa.Array
) -> None:
    pairs = np.sort(query_codes * max(len(doc_ids), 1) + doc_codes)
    repeats = pairs[1:][pairs[1:] == pairs[:-1]]
    if len(repeats):
        query, document = divmod(int(repeats[0]), len(doc_ids))
        raise RepeatedDocumentError(query_ids[query].as_py(), doc_ids[document].as_py())


def _one_array(strings: Strings) -> pa.Array:
    return strings.combine_chunks() if isinstance(strings, pa.ChunkedArray) else strings


def _as_numpy(mask: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)
