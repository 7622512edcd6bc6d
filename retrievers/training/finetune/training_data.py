"""Training data of a retriever: queries, their relevant documents, and hard negatives.

Hard negatives are documents that a search finds for a query and that nobody judged relevant. The
search is passed in, so this package does not depend on collections. Its results are filtered:
relevant documents are removed, as are documents with the text of a relevant one and, with a margin,
documents whose score is too close to a relevant one. Qu et al., RocketQA, NAACL 2021, call the
latter false negatives.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from foundation.arrays import Float32Array, Int64Array, UInt64Array
from foundation.errors import BenchError
from retrievers.index.hits import Hits
from retrievers.models.resolve import Model
from retrievers.training.finetune.finetune_preset import Mining

READ_ROWS = 4_096  # documents in memory at a time


class Documents(Protocol):
    """Documents that are read by row."""

    def __len__(self) -> int:
        """Return the number of documents."""
        ...

    def read(self, rows: Int64Array) -> tuple[list[str], list[str]]:
        """Return the titles and the texts of the documents at ``rows``, in that order."""
        ...


@dataclass(frozen=True, eq=False)
class NegativePool:
    """Hard negatives of each query, with the scores of a teacher if there is one.

    Attributes:
        rows: rows of the negatives, int64 ``(q, keep)``, -1 if unfilled.
        scores: teacher's scores of the negatives, float32 ``(q, keep)``. Empty without a teacher.
        positive_scores: teacher's scores of each query's relevant documents. Empty without a
            teacher.
    """

    rows: Int64Array
    scores: Float32Array = field(default_factory=lambda: np.empty((0, 0), np.float32))
    positive_scores: Sequence[Float32Array] = ()

    def take(self, queries: Int64Array) -> "NegativePool":
        """Return the pool of the queries at ``queries``, int64."""
        if not self.positive_scores:
            return NegativePool(self.rows[queries])
        positive_scores = [self.positive_scores[query] for query in queries]
        return NegativePool(self.rows[queries], self.scores[queries], positive_scores)

    def select(self, rows: Int64Array) -> "NegativePool":
        """Return the negatives at ``rows``, int64 ``(q, any)``, some of this pool's, with scores.

        Rows of -1 stay unfilled.
        """
        scores = np.full(rows.shape, -np.inf, np.float32)
        for query, kept in enumerate(rows):
            order = np.argsort(self.rows[query])
            places = order[np.searchsorted(self.rows[query][order], kept[kept >= 0])]
            scores[query, kept >= 0] = self.scores[query][places]
        return NegativePool(rows, scores, self.positive_scores)

    def labels(self, query: int, positives: Int64Array, rows: Int64Array) -> Float32Array:
        """Return the teacher's scores of drawn documents, float32 ``(1 + negatives,)``.

        Args:
            query: number of the query.
            positives: rows of the query's relevant documents, int64.
            rows: row of a relevant document, followed by rows of negatives, int64.
        """
        indices = [int(np.flatnonzero(self.rows[query] == row)[0]) for row in rows[1:]]
        score = self.positive_scores[query][positives == rows[0]]
        return np.concatenate([score, self.scores[query][indices]])


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Queries with their relevant documents.

    Attributes:
        queries: texts of q queries.
        positives: for each query the sorted rows of its relevant documents, at least one, int64.
        documents: documents of all collections, one collection after the other.
        trained_on: names of the collections, for the finished card.
        negatives: hard negatives that came with the queries, or None.
    """

    queries: tuple[str, ...]
    positives: tuple[Int64Array, ...]
    documents: Documents
    trained_on: tuple[str, ...]
    negatives: NegativePool | None = None

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, queries: Int64Array) -> "TrainingSet":
        """Return the training set with only the queries at ``queries``, int64."""
        taken = queries.tolist()
        return TrainingSet(
            queries=tuple(self.queries[query] for query in taken),
            positives=tuple(self.positives[query] for query in taken),
            documents=self.documents,
            trained_on=self.trained_on,
            negatives=self.negatives and self.negatives.take(queries),
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of the texts of queries and relevant documents, and of negatives with scores."""
        digest = hashlib.sha256()
        for text in self.queries:
            _update_digest(digest, text)
        digest.update(np.array([len(rows) for rows in self.positives]).tobytes())
        for titles, texts in _read_batches(self.documents, np.concatenate(self.positives)):
            for title, text in zip(titles, texts, strict=True):
                _update_digest(digest, title)
                _update_digest(digest, text)
        if (pool := self.negatives) is not None:
            digest.update(pool.rows.tobytes())
            digest.update(TextKeys.read(self.documents, [pool.rows]).keys.tobytes())
            for scores in (pool.scores, *pool.positive_scores):
                digest.update(scores.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class TextKeys:
    """Hashes of document texts, which show which rows have the same text.

    Equal keys mean equal title and text (64 bits of BLAKE2b).

    Attributes:
        rows: sorted rows, int64 ``(m,)``.
        keys: hashes, uint64 ``(m,)``.
    """

    rows: Int64Array
    keys: UInt64Array

    @classmethod
    def read(cls, documents: Documents, rows: Iterable[Int64Array]) -> "TextKeys":
        """Compute the keys of all documents that occur in any of the arrays.

        Args:
            documents: documents to read.
            rows: arrays of rows, int64. Negative rows are ignored.
        """
        occurs = np.zeros(len(documents), np.bool_)  # smaller than a sorted copy of all rows
        for line in (line for some in rows for line in np.atleast_2d(some)):
            occurs[line[line >= 0]] = True
        wanted = np.flatnonzero(occurs)
        keys = [
            _hash_text(title, text)
            for titles, texts in _read_batches(documents, wanted)
            for title, text in zip(titles, texts, strict=True)
        ]
        return cls(wanted, np.array(keys, np.uint64))

    def of(self, rows: Int64Array) -> UInt64Array:
        """Return the keys of ``rows``, uint64 in the same shape. All rows must have been read."""
        return self.keys[np.searchsorted(self.rows, rows)]


@dataclass(frozen=True, eq=False)
class MinedHits:
    """Results of a search for all queries of a training set.

    Attributes:
        hits: hits in descending order of score, ``(q, depth)``. Rows refer to the documents of the
            training set, -1 if unfilled.
        lowest: lowest score of a relevant document of each query, float32 ``(q,)``. Infinite if it
            was not computed (BM25).
    """

    hits: Hits
    lowest: Float32Array


class NegativeSearch(Protocol):
    """Search for all queries of a training set in its documents."""

    def __call__(self, model: Model | None, depth: int) -> MinedHits:
        """Search with ``model``, or with BM25 if it is None, for ``depth`` documents per query."""
        ...


def select_negatives(mined: MinedHits, examples: TrainingSet, settings: Mining) -> Int64Array:
    """Select hard negatives of each query, the best ones first.

    Args:
        mined: results of a search.
        examples: queries and relevant documents.
        settings: number of negatives, ranks to skip and margin.

    Returns:
        Rows, int64 ``(q, keep)``, -1 if there are fewer.

    Raises:
        BenchError: If no query has a negative.
    """
    found = np.full((len(examples), settings.keep), -1, np.int64)
    keys = TextKeys.read(examples.documents, [mined.hits.rows, *examples.positives])
    limits = mined.lowest - np.float32(settings.margin or 0)
    for query, (rows, scores) in enumerate(zip(mined.hits.rows, mined.hits.scores, strict=True)):
        relevant = np.isin(keys.of(rows), keys.of(examples.positives[query]))
        wrong = np.flatnonzero((rows >= 0) & ~relevant)[settings.skip :]
        if settings.margin is not None:
            wrong = wrong[scores[wrong] <= limits[query]]
        kept = rows[wrong[: settings.keep]]
        found[query, : len(kept)] = kept
    if (found < 0).all():
        raise BenchError("the search found no negatives", "Raise depth, or lower skip and margin.")
    return found


def given_hits(pool: NegativePool) -> MinedHits:
    """Return the negatives of a ``pool`` in the form of a search's results, in their order."""
    scores = np.zeros(pool.rows.shape, np.float32)
    return MinedHits(Hits(scores, pool.rows), np.full(len(scores), np.inf, np.float32))


def merge_negatives(pools: Sequence[Int64Array], queries: int) -> Int64Array:
    """Merge the negatives of several sources, without repetition.

    Args:
        pools: one array of rows for each source, int64 ``(q, keep)``, -1 if unfilled.
        queries: number of queries.

    Returns:
        Rows, int64 ``(q, most)``, -1 if there are fewer.
    """
    both = np.concatenate([np.empty((queries, 0), np.int64), *pools], axis=1)
    kept = [np.array(list(dict.fromkeys(row[row >= 0].tolist())), np.int64) for row in both]
    rows = np.full((len(both), max([1, *map(len, kept)])), -1, np.int64)
    for query, filled in enumerate(kept):
        rows[query, : len(filled)] = filled
    return rows


def drop_queries_without_negatives(
    examples: TrainingSet, pool: NegativePool
) -> tuple[TrainingSet, NegativePool]:
    """Return the queries that have negatives, and these negatives.

    Args:
        examples: queries and relevant documents.
        pool: negatives of each query.

    Raises:
        BenchError: If no query has a negative.
    """
    left = np.flatnonzero((pool.rows >= 0).any(axis=1))
    if not len(left):
        raise BenchError("no negatives are left", "Lower teacher.margin, or raise rounds.depth.")
    return examples.take(left), pool.take(left)


def _read_batches(documents: Documents, rows: Int64Array) -> Iterator[tuple[list[str], list[str]]]:
    for start in range(0, len(rows), READ_ROWS):
        yield documents.read(rows[start : start + READ_ROWS])


def _hash_text(title: str, text: str) -> int:
    content = f"{len(title)} {title}{text}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _update_digest(digest: "hashlib._Hash", text: str) -> None:
    content = text.encode(errors="surrogatepass")
    digest.update(len(content).to_bytes(8, "little"))
    digest.update(content)
