"""Stored results that answer for an evaluation which is asked for again.

A stale score is worse than an evaluation too many. `find_stored` is for what is shown as if it
were computed now: all that could change a score, or what is shown beside it, must be equal, and
the files must be whole; where anything is in doubt, there is no such result. `newest_of_same` is
for decisions, whose baselines come from other machines and versions too, so that a candidate's
results may: what defines the scores must be equal, and where they were computed need not.
"""

import logging
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.results.conditions import library_versions, machine, program_digest
from bench.results.load import load
from bench.results.location import Place, files_below
from bench.results.result import (
    RESULT_FILE,
    Protocol,
    Result,
    Stored,
    place,
)
from foundation.errors import BenchError
from retrievers.models.recipe import Recipe

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluating:
    """The identity of an evaluation, and where it is made.

    Attributes:
        measures: canonical names, the main one first.

    Other attributes as of `Result` and `Conditions`.
    """

    model: str
    recipe: Recipe
    protocol: Protocol
    index: str
    measures: tuple[str, ...]
    in_domain: bool
    device: str
    threads: int
    search_device: str
    recall_queries: int | None

    def defines(self, result: Result) -> bool:
        """True where the result has these measures of the same vectors, protocol and index."""
        return (
            not self.recipe.encoder  # a class of others may read files that nobody hashes
            and result.fingerprint == self.recipe.fingerprint
            and (result.protocol, result.index) == (self.protocol, self.index)
            and result.measures.keys() >= set(self.measures)
        )

    def gave(self, result: Result) -> bool:
        """True where the result is of this evaluation, by this program and these libraries."""
        here = result.conditions
        return (
            self.defines(result)
            and bool(here.program)
            and here.program == program_digest()
            and here.libraries == library_versions()
            and here.machine == machine()
            and (here.device, here.threads) == (self.device, self.threads)
            and here.search_device == self.search_device
            and here.python == platform.python_version()
            and (result.model, result.in_domain) == (self.model, self.in_domain)
            and (result.recipe, result.recall_queries) == (self.recipe, self.recall_queries)
            and (result.main_measure, *result.measures) == (self.measures[0], *self.measures)
        )


def find_stored(asked: Evaluating, out: Place) -> Stored | None:
    """The newest whole result of an evaluation below ``out``; None where any doubt is left.

    What is damaged is named in a warning.
    """
    results = [stored for stored in _readable(asked, out) if asked.gave(stored.result)]
    if len({tuple(stored.result.measures.values()) for stored in results}) != 1:
        return None  # none; or several that contradict each other, as `merge` keeps them
    newest = max(results, key=_time)
    if not newest.has_ranking:
        logger.warning("%s is missing or damaged: evaluated again", newest.run_file)
        return None
    return newest


def newest_of_same(asked: Evaluating, known: Iterable[Stored]) -> Stored | None:
    """The newest of the results whose scores an evaluation defines, wherever they were computed."""
    return max(
        (stored for stored in known if asked.defines(stored.result)), key=_time, default=None
    )


def _time(stored: Stored) -> str:
    return stored.result.conditions.time


def _readable(asked: Evaluating, out: Place) -> Iterator[Stored]:
    folder = place(out, asked.protocol.collection, asked.model)
    for file in files_below(folder, RESULT_FILE):
        if file.parent.parent == folder:  # and not of a model of a longer name
            try:
                yield load(file)
            except BenchError as damage:
                logger.warning("%s", damage)
