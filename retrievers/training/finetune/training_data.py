"""Training data of a retriever: queries, documents, and which of them belong together."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from foundation.arrays import Int64Array, UInt64Array
from foundation.errors import BenchError

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

    def __post_init__(self) -> None:
        if not self.queries:
            raise BenchError("there is no query to train on")
        if len(self.queries) != len(self.positives):
            raise ValueError("queries and positives have one entry for each query")
        if min(map(len, self.positives)) < 1:
            raise ValueError("a query without a relevant document cannot be trained on")

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
            _add(digest, text)
        digest.update(np.array([len(rows) for rows in self.positives]).tobytes())
        for titles, texts in _batches(self.documents, np.concatenate(self.positives)):
            for title, text in zip(titles, texts, strict=True):
                _add(digest, title)
                _add(digest, text)
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
        wanted = np.unique(np.concatenate([np.empty(0, np.int64), *map(np.ravel, rows)]))
        wanted = wanted[wanted >= 0]
        keys = [
            _key(title, text)
            for titles, texts in _batches(documents, wanted)
            for title, text in zip(titles, texts, strict=True)
        ]
        return cls(wanted, np.array(keys, np.uint64))

    def of(self, rows: Int64Array) -> UInt64Array:
        """Keys of rows that were read, in any shape."""
        return self.keys[np.searchsorted(self.rows, rows)]


def _batches(documents: Documents, rows: Int64Array) -> Iterator[tuple[list[str], list[str]]]:
    for start in range(0, len(rows), READ_ROWS):
        yield documents.read(rows[start : start + READ_ROWS])


def _key(title: str, text: str) -> int:
    content = f"{len(title)} {title}{text}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _add(digest: "hashlib._Hash", text: str) -> None:
    content = text.encode(errors="surrogatepass")
    digest.update(len(content).to_bytes(8, "little"))
    digest.update(content)
