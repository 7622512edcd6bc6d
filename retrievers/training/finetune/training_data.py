"""Training data of a retriever: queries, their relevant documents, and hard negatives.

Hard negatives are what a search finds for a query and nobody judged relevant. The search is handed
in, so that this package need not know collections. What it finds is cleaned: relevant documents go,
documents that repeat the text of a relevant one go, and so does what scores too close to the
relevant ones to be wrong (a margin; Qu et al., RocketQA, NAACL 2021, call such documents false
negatives).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from foundation.arrays import Float32Array, Int64Array, UInt64Array
from foundation.errors import BenchError
from retrievers.index.faiss_index import Hits
from retrievers.models.model import Model
from retrievers.training.finetune.finetune_preset import Mining

READ_ROWS = 4_096  # documents whose texts are held at a time


class Documents(Protocol):
    """Documents by row, wherever they are kept."""

    def __len__(self) -> int:
        """Number of documents."""
        ...

    def read(self, rows: Int64Array) -> tuple[list[str], list[str]]:
        """Titles and texts of the rows, in their order."""
        ...


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Queries with the documents that answer them.

    Attributes:
        queries: texts, length q.
        positives: for each query the rows of its relevant documents, one or more, rising.
        documents: of all collections, one after the other.
        trained_on: names of the collections, which the finished card states.
    """

    queries: tuple[str, ...]
    positives: tuple[Int64Array, ...]
    documents: Documents
    trained_on: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, queries: Int64Array) -> "TrainingSet":
        """Some of the queries, and all documents."""
        taken = queries.tolist()
        return TrainingSet(
            queries=tuple(self.queries[query] for query in taken),
            positives=tuple(self.positives[query] for query in taken),
            documents=self.documents,
            trained_on=self.trained_on,
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of what is trained on: query texts, and texts of their relevant documents."""
        digest = hashlib.sha256()
        for text in self.queries:
            _update_digest(digest, text)
        digest.update(np.array([len(rows) for rows in self.positives]).tobytes())
        for titles, texts in _read_batches(self.documents, np.concatenate(self.positives)):
            for title, text in zip(titles, texts, strict=True):
                _update_digest(digest, title)
                _update_digest(digest, text)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class TextKeys:
    """Keys of texts, for each of some rows, that tell which rows hold the same text.

    Titles count: equal keys mean equal title and text (64 bits of BLAKE2b).

    Attributes:
        rows: int64 ``(m,)``, rising.
        keys: uint64 ``(m,)``.
    """

    rows: Int64Array
    keys: UInt64Array

    @classmethod
    def read(cls, documents: Documents, rows: Iterable[Int64Array]) -> "TextKeys":
        """Keys of all documents that occur in any of the arrays; negative rows are none."""
        occurs = np.zeros(len(documents), np.bool_)  # not a sorted copy of all that was found
        for own in (own for some in rows for own in np.atleast_2d(some)):
            occurs[own[own >= 0]] = True
        wanted = np.flatnonzero(occurs)
        keys = [
            _hash_text(title, text)
            for titles, texts in _read_batches(documents, wanted)
            for title, text in zip(titles, texts, strict=True)
        ]
        return cls(wanted, np.array(keys, np.uint64))

    def of(self, rows: Int64Array) -> UInt64Array:
        """Keys of rows that were read, in any shape."""
        return self.keys[np.searchsorted(self.rows, rows)]


@dataclass(frozen=True, eq=False)
class MinedHits:
    """Hits of a search for each query of a training set.

    Attributes:
        hits: best first, q x depth; rows of the training set's documents, -1 if unfilled.
        lowest: float32 ``(q,)``, the lowest score of a query's relevant documents on the same
            scale; infinite if there is no such scale (BM25).
    """

    hits: Hits
    lowest: Float32Array


class NegativeSearch(Protocol):
    """Searches the documents of a training set for all of its queries."""

    def __call__(self, model: Model | None, depth: int) -> MinedHits:
        """With an encoder, exactly; with BM25 where ``model`` is None."""
        ...


def select_negatives(mined: MinedHits, examples: TrainingSet, settings: Mining) -> Int64Array:
    """Negatives of each query, best first, int64 ``(q, keep)``, -1 if there are fewer.

    Raises:
        BenchError: not one query has a negative.
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
        raise BenchError(
            "the search found no negative for any query", "raise depth, or lower skip and margin"
        )
    return found


def merge_negatives(pools: Sequence[Int64Array], queries: int) -> Int64Array:
    """Return the negatives of any number of sources together, each once; int64 ``(q, most)``."""
    both = np.concatenate([np.empty((queries, 0), np.int64), *pools], axis=1)
    kept = [np.array(list(dict.fromkeys(row[row >= 0].tolist())), np.int64) for row in both]
    rows = np.full((len(both), max([1, *map(len, kept)])), -1, np.int64)
    for query, own in enumerate(kept):
        rows[query, : len(own)] = own
    return rows


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
