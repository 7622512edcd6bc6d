"""A search system whose stored ids and vectors are examined.

Three methods of the object are optional: ``ids()`` of the stored documents, ``vectors(ids)`` as one
row for each, and ``search_vectors(vectors, k)``, which is ``search`` for query vectors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from bench.evaluation.responses import rank_response
from bench.evaluation.runs import Run
from foundation.arrays import Float32Array
from foundation.errors import BenchError, wrap_errors
from foundation.sources import SUFFIX
from retrievers.encoders.objects import convert_vectors, make_object
from retrievers.encoders.search_system import Ranking, SearchSystem, is_search
from retrievers.models.resolve import TRUST

METHODS = ("ids", "vectors", "search_vectors")
AT_ONCE = 1_000  # ids in one call of ``vectors``
FIX = "Fix the system or its file and run again."


def is_system(given: Any) -> bool:
    """Return True for an object that searches, or a name that can only be one of a file."""
    if isinstance(given, str):
        path, _, name = given.rpartition(":")
        return path.endswith(SUFFIX) and bool(name)
    return is_search(given)


@dataclass(frozen=True)
class StoredSystem(SearchSystem):
    """A search system with what it stores."""

    @classmethod
    def open(cls, given: Any, trust_code: bool) -> Self:
        """Open a system: an object, or ``path/to/file.py:NAME``, a function that makes it included.

        Raises:
            BenchError: code of a file is not trusted, fails, or does not search.
        """
        made, name = given, type(given).__name__
        if isinstance(given, str):
            if not trust_code:
                raise BenchError(f"{given} is code that is not of this program", TRUST)
            made, name = make_object(given, "cpu"), given.rpartition(":")[2]
        if isinstance(made, str) or not is_search(made):
            problem = f"{given} has no method search"
            raise BenchError(problem, "Give it search(queries, k), which returns ids and scores.")
        return cls(made, cls(made, name).stated("name") or name)

    def offers(self, method: str) -> bool:
        """Return True if the object has an optional method."""
        return callable(getattr(self.made, method, None))

    @cached_property
    def listed_ids(self) -> list[str]:
        """Ids of the stored documents, as often as they are stored."""
        with wrap_errors(f"ids() of {self.name} failed", FIX):
            return list(map(str, self.made.ids()))

    def vectors(self, ids: Sequence[str]) -> Float32Array:
        """Return the stored vectors of documents, float32 ``(len(ids), dim)``."""
        parts = []
        for start in range(0, len(ids), AT_ONCE):
            some = list(ids[start : start + AT_ONCE])
            with wrap_errors(f"vectors() of {self.name} failed", FIX):
                rows = list(self.made.vectors(some))
            pairs = list(zip(some, rows, strict=True)) if len(rows) == len(some) else []
            absent = [id_ for id_, row in pairs if row is None]
            if absent or not pairs:
                found = sum(row is not None for row in rows)
                problem = f"vectors() of {self.name} returned {found:,} vectors"
                lacking = f", and none for {absent[0]!r}" if absent else ""
                hint = "Return one row for each id; ids() lists only documents with a vector."
                raise BenchError(f"{problem} for {len(some):,} ids{lacking}", hint)
            parts.append(convert_vectors(rows))
        stored = np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)
        if not np.isfinite(stored).all():
            raise BenchError(f"{self.name} stores a vector that is not finite", FIX)
        return stored

    def rank(self, query_ids: Sequence[str], queries: Any, k: int, title: str = "") -> Run:
        """Return the answers to texts, or with an array ``(q, dim)`` those to query vectors.

        The order of an answer counts: where scores do not fall, they become ranks. A document that
        is repeated keeps its best rank.
        """
        method = "search_vectors" if isinstance(queries, np.ndarray) else "search"
        rankings: list[Ranking] = []
        for start in tqdm(
            range(0, len(queries), self.batch), title or method, unit="", disable=not title
        ):
            some = queries[start : start + self.batch]
            with wrap_errors(f"{method} of {self.name} failed at {query_ids[start]!r}", FIX):
                rankings += self.search(some, k, method)
        return make_run(query_ids, rankings, k)


def make_run(query_ids: Sequence[str], rankings: Iterable[Ranking], k: int) -> Run:
    """Return rankings as a run, in their order, up to ``k`` distinct documents of each query."""
    queries, documents, scores = list[str](), list[str](), list[float]()
    for query, (ids, given) in zip(query_ids, rankings, strict=True):
        read = rank_response(ids, given)
        queries += [query] * len(read.ids[:k])
        documents += read.ids[:k]
        scores += read.scores[:k].tolist()
    return Run.from_rows(queries, documents, scores)
