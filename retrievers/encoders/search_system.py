"""Search systems of the user: any object with ``search(queries, k)``, or such a function.

For each query, a system returns pairs of document id and score, best first, or ids alone. It may
state its ``name``, its ``version`` (what tells two states of it apart; a value or a method), and
``batch``, the number of queries of a call. ``close()`` of an object from a file is called at exit.
"""

import atexit
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

from foundation.errors import BenchError, format_count, wrap_errors

ENCODES = ("encode_query", "encode_queries")  # methods of encoders
SECOND_ARGUMENTS = ("k", "top_k")
SHOWN = 80  # characters of a response that an error shows
RETURNS = (
    "Return a list with one ranking for each query: pairs of document id and score, best first, or "
    "ids alone."
)


def is_swapped(row: Any) -> bool:
    """Return True for a score and an id, in this order."""
    if not isinstance(row, Sequence) or len(row) != 2 or not hasattr(row[0], "__float__"):
        return False
    score, id_ = row
    return isinstance(id_, str) or (isinstance(id_, Integral) and not isinstance(score, Integral))


class Ranking(NamedTuple):
    """Documents of one query in the order of a system, and their scores; None without any."""

    ids: list[str]
    scores: list[float | None] | None


def is_search(made: Any) -> bool:
    """Return whether an object or function of the user searches rather than encodes.

    Raises:
        BenchError: it does both.
    """
    encodes = any(hasattr(made, name) for name in ENCODES)
    searches = callable(getattr(made, "search", None))
    if encodes and searches:
        problem = f"{type(made).__name__} has search and {' or '.join(ENCODES)}"
        raise BenchError(problem, "Pass one of its methods: it is either a system or an encoder.")
    if encodes or searches or not callable(made):
        return searches
    arguments: list[inspect.Parameter] = []
    with suppress(TypeError, ValueError):  # a function of C without a signature
        arguments = list(inspect.signature(made).parameters.values())
    needed = [each for each in arguments if each.default is each.empty and each.kind <= 1]
    return len(needed) == 2 or any(each.name in SECOND_ARGUMENTS for each in arguments[1:2])


@dataclass(frozen=True)
class SearchSystem:
    """A search system as it is asked.

    Attributes:
        made: the user's object, which has ``search`` or is a function.
        name: its name in messages.
    """

    made: Any
    name: str

    def close_at_exit(self) -> None:
        """Call ``close`` of the object when the program ends, if it has it."""
        if callable(close := getattr(self.made, "close", None)):
            atexit.register(close)

    def stated(self, field: str) -> str:
        """Return what the object states as ``name`` or ``version``, or ""."""
        value = getattr(self.made, field, None)
        value = value() if callable(value) else value
        return "" if value is None else str(value)

    @property
    def batch(self) -> int:
        """Number of queries of a call."""
        size = getattr(self.made, "batch", 1)
        if not isinstance(size, int) or size < 1:
            raise BenchError(f"{self.name}: its batch is {size!r}", "Set a number from 1.")
        return size

    def documents(self) -> dict[str, dict[str, str]]:
        """Return the object's documents by id, each with ``title`` and ``text``.

        ``documents()`` of the object yields mappings with ``id`` (or ``_id``), ``text`` and
        optionally ``title``. Without this method there are none.

        Raises:
            BenchError: the method fails, or returns something else.
        """
        if not callable(method := getattr(self.made, "documents", None)):
            return {}
        found: dict[str, dict[str, str]] = {}
        hint = 'Yield {"id": "d1", "title": "", "text": "..."} for each document.'
        with wrap_errors(f"documents() of {self.name} failed", hint):
            for one in method():
                name = str(one["_id"] if "_id" in one else one["id"])
                found[name] = {"title": str(one.get("title") or ""), "text": str(one["text"])}
        return found

    def search(self, queries: Any, k: int, method: str = "search") -> list[Ranking]:
        """Return the ranking of each query as the system gives it, of any length.

        Args:
            queries: list of texts, or what another ``method`` takes.
            k: number of documents to ask for.
            method: method of the object; a function has only ``search``.

        Raises:
            BenchError: it returns something else than `RETURNS`.
            Exception: whatever the system raises.
        """
        search: Callable[..., Any] = getattr(self.made, method, self.made)
        returned = search(queries, k)
        if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
            raise self._error(f"returned a {type(returned).__name__}", returned)
        rankings = list(returned)
        if len(rankings) != len(queries):
            counts = format_count(len(rankings), "ranking", "rankings")
            counts += f" for {format_count(len(queries), 'query', 'queries')}"
            raise self._error(f"returned {counts}", rankings[:1])
        return [self.read(ranking) for ranking in rankings]

    def read(self, ranking: Any) -> Ranking:
        """Return what a system returned for one query with ids as text."""
        if isinstance(ranking, Mapping):  # scores by id, in no order
            ranking = sorted(ranking.items(), key=lambda pair: -pair[1])
        if isinstance(ranking, str | bytes) or not isinstance(ranking, Iterable):
            raise self._error(f"returned a {type(ranking).__name__} as a ranking", ranking)
        rows = list(ranking)
        ids: list[Any] = rows
        scores: list[float | None] | None = None
        if rows and isinstance(rows[0], Sequence) and not isinstance(rows[0], str):
            try:
                ids = [doc_id for doc_id, _ in rows]
                scores = [float(score) for _, score in rows]
            except (TypeError, ValueError):
                raise self._row_error("rows that are not pairs of id and score", rows) from None
        with suppress(TypeError):
            "".join(ids)  # the cheapest test that all are text
            return Ranking(ids, scores)
        if not all(isinstance(each, Integral) for each in ids):
            raise self._row_error("ids that are neither text nor whole numbers", rows)
        return Ranking(list(map(str, ids)), scores)

    def _row_error(self, problem: str, rows: list[Any]) -> BenchError:
        swapped = "pairs of score and id instead of id and score"
        return self._error(f"returned {swapped if is_swapped(rows[0]) else problem}", rows)

    def _error(self, problem: str, found: Any) -> BenchError:
        shown = repr(found)
        shown = f"{shown[:SHOWN]}..." if len(shown) > SHOWN else shown
        return BenchError(f"{self.name} {problem}: {' '.join(shown.split())}", RETURNS)
