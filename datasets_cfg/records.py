"""The records of a collection: documents, queries and judgements, as an evaluation takes them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Document(NamedTuple):
    """One document of a collection as its reader yields it; ``title`` may be empty."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Queries:
    """Queries in file order: ``ids`` and ``texts`` have the same length."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Qrels:
    """Relevance judgements (TREC qrels), one row per judged (query, document) pair.

    Attributes:
        query_ids: query of each row, length n.
        doc_ids: document of each row, length n.
        grades: int32 ``(n,)``; 0 is judged not relevant, negative grades occur in the wild.
    """

    query_ids: tuple[str, ...]
    doc_ids: tuple[str, ...]
    grades: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return zip(self.query_ids, self.doc_ids, self.grades.tolist(), strict=True)

    def queries(self) -> tuple[str, ...]:
        """Distinct query ids in order of first appearance: the denominator of every mean."""
        return tuple(dict.fromkeys(self.query_ids))


@dataclass(frozen=True)
class Judgements:
    """The queries of a collection and the judgements or answers that score them.

    Attributes:
        queries: the queries that have judgements, in file order.
        qrels: relevance judgements; empty where answers decide.
        answers: accepted answers of each query id; None where qrels decide.
    """

    queries: Queries
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] | None = None
