"""A search system as a Python object: its answers, and the ids and vectors that it stores.

``search(queries, k)`` gets texts and returns, for each, pairs of a document id and a score, best
first, or ids alone. Three methods are optional: ``ids()`` of the stored documents, ``vectors(ids)``
as one row for each, and ``search_vectors(vectors, k)``, which is ``search`` for query vectors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tqdm import tqdm

from bench.evaluation.runs import Run
from foundation.arrays import Float32Array
from foundation.errors import BenchError, wrap_errors
from foundation.sources import SUFFIX, load_name
from retrievers.encoders.objects import convert_vectors
from retrievers.models.resolve import TRUST

METHODS = ("ids", "vectors", "search_vectors")
AT_ONCE = 1_000  # ids in one call of ``vectors``
MEND = "Fix the system or its file and run again."


def is_system(given: Any) -> bool:
    """Return True for an object with ``search``, or a name that can only be one of a file."""
    if isinstance(given, str):
        path, _, name = given.rpartition(":")
        return path.endswith(SUFFIX) and bool(name)
    return callable(getattr(given, "search", None))


@dataclass(frozen=True)
class SearchSystem:
    """A search system of the user.

    Attributes:
        made: object with ``search``.
        name: label for reports.
    """

    made: Any
    name: str

    @classmethod
    def open(cls, given: Any, trust_code: bool) -> "SearchSystem":
        """Open a system: an object, or ``path/to/file.py:NAME``, a function that makes it included.

        Raises:
            BenchError: code of a file is not trusted, fails, or has no ``search``.
        """
        made, name = given, getattr(given, "name", None)
        if isinstance(given, str):
            if not trust_code:
                raise BenchError(f"{given} is code that is not of this program", TRUST)
            path, _, named = given.rpartition(":")
            made, name = load_name(path, named), named
            if callable(made) and (isinstance(made, type) or not is_system(made)):
                with wrap_errors(f"{given} failed", MEND):
                    made = made()
            name = getattr(made, "name", None) or name
        if not is_system(made) or isinstance(made, str):
            problem = f"{given} has no method search"
            raise BenchError(problem, "Give it search(queries, k), which returns ids and scores.")
        return cls(made, str(name or type(made).__name__))

    @property
    def version(self) -> str:
        """What tells two states of the system apart; "" if it does not say."""
        return str(getattr(self.made, "version", ""))

    def offers(self, method: str) -> bool:
        """Return True if the object has an optional method."""
        return callable(getattr(self.made, method, None))

    @cached_property
    def listed_ids(self) -> list[str]:
        """Ids of the stored documents, as often as they are stored."""
        with wrap_errors(f"ids() of {self.name} failed", MEND):
            return list(map(str, self.made.ids()))

    def vectors(self, ids: Sequence[str]) -> Float32Array:
        """Return the stored vectors of documents, float32 ``(len(ids), dim)``."""
        parts = []
        for start in range(0, len(ids), AT_ONCE):
            some = list(ids[start : start + AT_ONCE])
            with wrap_errors(f"vectors() of {self.name} failed", MEND):
                rows = list(self.made.vectors(some))
            absent = [id_ for id_, row in zip(some, rows, strict=False) if row is None]
            if absent or len(rows) != len(some):
                problem = f"vectors() of {self.name} returned {len(rows) - len(absent):,} vectors"
                lacking = f", and none for {absent[0]!r}" if absent else ""
                hint = "Return one row for each id; ids() lists only documents with a vector."
                raise BenchError(f"{problem} for {len(some):,} ids{lacking}", hint)
            parts.append(convert_vectors(rows))
        stored = np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)
        if not np.isfinite(stored).all():
            raise BenchError(f"{self.name} stores a vector that is not finite", MEND)
        return stored

    def search(self, query_ids: Sequence[str], queries: Any, k: int, title: str = "") -> Run:
        """Return the answers to texts, or with an array ``(q, dim)`` those to query vectors.

        The order of an answer counts: where scores do not fall, they become ranks. A document that
        is repeated keeps its best rank.
        """
        method = "search_vectors" if isinstance(queries, np.ndarray) else "search"
        batch = max(1, int(getattr(self.made, "batch", 1)))
        answers: list[Any] = []
        for start in tqdm(
            range(0, len(queries), batch), title or method, unit="", disable=not title
        ):
            some = queries[start : start + batch]
            with wrap_errors(f"{method} of {self.name} failed at {query_ids[start]!r}", MEND):
                found = list(getattr(self.made, method)(some, k))
            if len(found) != len(some):
                problem = f"{method} of {self.name} returned {len(found)} answers"
                raise BenchError(f"{problem} to {len(some)} queries", "Return a list for each.")
            answers += found
        with wrap_errors(f"an answer of {self.name} cannot be read", "Return pairs (id, score)."):
            return read_answers(query_ids, answers, k)


def read_answers(query_ids: Sequence[str], answers: Iterable[Any], k: int) -> Run:
    """Return answers as a run, in their order, up to ``k`` distinct documents of each query."""
    queries, documents = list[str](), list[str]()
    scores, ranks, falls = list[float](), list[float](), True
    for query, answer in zip(query_ids, answers, strict=True):
        pairs = [(each, None) if isinstance(each, str | int) else tuple(each) for each in answer]
        best = {str(id_): score for id_, score, *_ in reversed(pairs)}
        kept = list(dict.fromkeys(str(id_) for id_, *_ in pairs))[:k]
        given = np.array([np.nan if best[id_] is None else best[id_] for id_ in kept], np.float32)
        falls &= bool(np.isfinite(given).all() and (np.diff(given) <= 0).all())
        queries += [query] * len(kept)
        documents += kept
        scores += given.tolist()
        ranks += (-np.arange(1.0, len(kept) + 1)).tolist()
    return Run.from_rows(queries, documents, scores if falls else ranks)
