"""Runs in the sense of information retrieval: the ranked documents of each query."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foundation.arrays import Float32Array, Int32Array, Int64Array
from foundation.errors import BenchError
from retrievers.index.hits import Hits, order_keys

Strings: TypeAlias = pa.Array | pa.ChunkedArray


@dataclass(frozen=True)
class Run:
    """Documents of each query in canonical order: score, then document id by bytes, both falling.

    Query i has the rows ``offsets[i]`` to ``offsets[i + 1]``. Each id is stored once, so that a run
    of millions of rows is sorted, joined and written as numbers.

    Attributes:
        query_ids: q distinct ids.
        offsets: int64 ``(q + 1,)``, from 0 to n.
        ids: ``large_string`` ``(m,)``, distinct ids of all documents, in byte order.
        documents: int32 ``(n,)``, position in ``ids`` of each row, distinct within a query.
        scores: float32 ``(n,)``, finite.
    """

    query_ids: tuple[str, ...]
    offsets: Int64Array
    ids: pa.LargeStringArray
    documents: Int32Array
    scores: Float32Array

    def __post_init__(self) -> None:
        if len(set(self.query_ids)) != len(self.query_ids):
            raise BenchError("a query id occurs twice, and a run has one ranking for each query")

    @classmethod
    def from_hits(
        cls, hits: Hits, query_ids: Sequence[str], corpus_ids: Strings, tie_rank: Int64Array
    ) -> "Run":
        """Make a run of hits in canonical order. Unfilled ranks (row -1) are left out.

        Args:
            hits: corpus rows and scores, ``(q, k)`` each.
            query_ids: q ids.
            corpus_ids: ``large_string`` ``(N,)``, ids of all documents of the corpus.
            tie_rank: int64 ``(N,)``, rank of each id in byte order.

        Raises:
            BenchError: a score is NaN or infinite, or a document repeats within a query.
        """
        filled = hits.rows >= 0
        ordered = np.sort(hits.rows, axis=1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        if repeated.any():
            query, place = np.argwhere(repeated)[0]
            doc_id = corpus_ids[int(ordered[query, place])].as_py()
            raise _repeat_error(doc_id, query_ids[query])
        offsets = np.concatenate([[0], np.cumsum(filled.sum(axis=1))]).astype(np.int64)
        scores = round_scores(hits.scores[filled])
        ranks = tie_rank[hits.rows[filled]]
        retrieved = np.zeros(len(tie_rank), dtype=bool)
        retrieved[ranks] = True
        position = np.cumsum(retrieved, dtype=np.int32) - np.int32(1)
        row_of_rank = np.empty(len(tie_rank), dtype=np.int64)
        row_of_rank[tie_rank] = np.arange(len(tie_rank))
        ids = _one_array(corpus_ids.take(pa.array(row_of_rank[retrieved])))
        return cls(tuple(query_ids), offsets, ids, position[ranks], scores)

    @classmethod
    def from_rows(
        cls, query_ids: Sequence[str], doc_ids: Sequence[str], scores: npt.ArrayLike
    ) -> "Run":
        """Make a run of rows in any order.

        Args:
            query_ids: query id of each row.
            doc_ids: document id of each row.
            scores: ``(n,)``, score of each row.

        Raises:
            BenchError: a score is not finite as float32, or a document repeats within a query.
        """
        queries, documents = (pa.array(ids, pa.large_string()) for ids in (query_ids, doc_ids))
        scores = round_scores(np.asarray(scores, dtype=np.float64))
        return cls.from_columns(queries, documents, scores)

    @classmethod
    def from_scores(cls, rankings: Mapping[str, Mapping[str, float]]) -> "Run":
        """Make a run of the score of each document, by the ids of query and document."""
        rows = [(q, d, float(s)) for q, scores in rankings.items() for d, s in scores.items()]
        queries, documents, values = zip(*rows, strict=True) if rows else ((), (), ())
        return cls.from_rows(queries, documents, values)

    @classmethod
    def from_columns(cls, queries: Strings, documents: Strings, scores: Float32Array) -> "Run":
        """Make a run of Arrow columns in any order of rows.

        Queries keep the order of their first rows, or of their dictionary. Ids are ``large_string``
        or dictionary-encoded, scores float32.

        Raises:
            BenchError: a document repeats within a query, or a dictionary has a query id twice.
        """
        query_codes, query_ids = encode_strings(queries)
        codes, ids = encode_strings(documents)
        if len(ids) > 1 and not pc.all(pc.less(ids[:-1], ids[1:])).as_py():
            distinct = ids.unique()
            by_bytes = distinct.take(pc.sort_indices(distinct))
            codes = find_strings(ids, by_bytes)[codes]
            ids = by_bytes
        _check_distinct(query_codes, query_ids, codes, ids)
        counts = np.bincount(query_codes, minlength=len(query_ids))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        keys = order_keys(scores, codes)
        same = query_codes[1:] == query_codes[:-1]
        in_order = (query_codes[1:] > query_codes[:-1]) | (same & (keys[1:] < keys[:-1]))
        if not in_order.all():
            rows = np.lexsort((~keys, query_codes))  # keys fall within a query
            codes, scores = codes[rows], scores[rows]
        return cls(tuple(query_ids.to_pylist()), offsets, ids, codes.astype(np.int32), scores)

    def __len__(self) -> int:
        return len(self.documents)

    @cached_property
    def doc_ids(self) -> pa.LargeStringArray:
        """Document id of each row, ``large_string`` ``(n,)``."""
        return self.ids.take(pa.array(self.documents))

    def rankings(self) -> Iterator[tuple[str, list[str], Float32Array]]:
        """Yield query id, document ids and scores (best first) of each query."""
        for query_id, (start, end) in zip(
            self.query_ids, itertools.pairwise(self.offsets.tolist()), strict=True
        ):
            yield query_id, self.doc_ids[start:end].to_pylist(), self.scores[start:end]


def parent_id(passage: str, separator: str) -> str:
    """Return the id of the document of a passage: ``d1`` of ``d1#3``. Other ids are documents."""
    return passage.rpartition(separator)[0] or passage


def merge_passages(run: Run, separator: str) -> Run:
    """Return ``run`` with documents in place of their passages, each with its best score.

    The id of a passage is that of its document, the ``separator``, and anything without it.
    """
    parents = pa.array([parent_id(each, separator) for each in run.ids.to_pylist()])
    encoded = parents.cast(pa.large_string()).dictionary_encode()
    documents = encoded.indices.to_numpy().astype(np.int64)[run.documents]
    queries = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    names = encoded.dictionary
    _, first = np.unique(queries * len(names) + documents, return_index=True)
    rows = np.sort(first)  # in canonical order, so the first passage is the best
    query_ids = pa.array(run.query_ids, pa.large_string())
    return Run.from_columns(
        pa.DictionaryArray.from_arrays(pa.array(queries[rows].astype(np.int32)), query_ids),
        pa.DictionaryArray.from_arrays(pa.array(documents[rows].astype(np.int32)), names),
        run.scores[rows],
    )


def round_scores(scores: npt.ArrayLike) -> Float32Array:
    """Convert ``scores`` to float32, or raise a `BenchError` if one is not finite as float32."""
    with np.errstate(over="ignore"):
        narrow = np.asarray(scores).astype(np.float32)
    if not np.isfinite(narrow).all():
        raise BenchError("a score is NaN, infinite or beyond the range of float32")
    return narrow


def encode_strings(strings: Strings) -> tuple[Int64Array, pa.LargeStringArray]:
    """Return codes, int64 ``(n,)``, and the distinct strings that they index."""
    encoded = _one_array(strings)
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def find_strings(strings: pa.Array, among: pa.Array) -> Int64Array:
    """Return the place of each string in ``among``, distinct strings, int64 ``(n,)``, or -1."""
    places: Int64Array = pc.index_in(strings, among).fill_null(-1).to_numpy().astype(np.int64)
    return places


def _check_distinct(
    query_codes: Int64Array, query_ids: pa.Array, doc_codes: Int64Array, doc_ids: pa.Array
) -> None:
    """Raise if a document repeats within a query."""
    pairs = np.sort(query_codes * max(len(doc_ids), 1) + doc_codes)
    repeats = pairs[1:][pairs[1:] == pairs[:-1]]
    if len(repeats):
        query, document = divmod(int(repeats[0]), len(doc_ids))
        raise _repeat_error(doc_ids[document].as_py(), query_ids[query].as_py())


def _repeat_error(doc_id: str, query_id: str) -> BenchError:
    return BenchError(f"document {doc_id!r} occurs twice for query {query_id!r}")


def _one_array(strings: Strings) -> pa.Array:
    return strings.combine_chunks() if isinstance(strings, pa.ChunkedArray) else strings
