"""One result for each collection, all of one recipe; what is ambiguous is refused with names.

A name stands for a model; what follows an ``@`` chooses among its results, see `find_named`.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.results.facts import FILES, differing, facts, is_hash, recipe_facts, recipe_key
from bench.results.result import Evaluation, Result
from foundation.errors import BenchError

logger = logging.getLogger(__name__)

CHOICE = "@"
SHOWN = 6  # choices that an error lists


def choose_results(
    name: str, results: Iterable[Evaluation], on: Collection[str] | None = None
) -> dict[str, Evaluation]:
    """Choose the result on each collection, all of one recipe; of repeated evaluations the newest.

    Args:
        name: that a user typed, for messages.
        results: of one model.
        on: collections that matter; None for all. Others cannot make the name ambiguous.

    Raises:
        BenchError: several recipes, or several evaluations on a collection; the hint has a name
            for each choice.
    """
    wanted = [stored for stored in results if on is None or stored.collection in on]
    choices = list(_choices(wanted))
    if len(choices) > 1:
        raise _ambiguous(name, wanted, choices)
    return {
        collection: _newest(name, repeated)
        for collection, repeated in sorted(_by_collection(wanted).items())
    }


def _newest(name: str, repeated: Sequence[Evaluation]) -> Evaluation:
    """The latest of several records of one evaluation."""
    newest = max(repeated, key=lambda stored: stored.result.conditions.time)
    if any(_disagree(stored.result, newest.result) for stored in repeated):
        logger.warning(
            "%s on %s was evaluated %d times with different scores; the newest counts: %s",
            *(name, newest.collection, len(repeated), newest.folder),
        )
    return newest


def _disagree(first: Result, second: Result) -> bool:
    """Compare the means that both have."""
    shared = first.measures.keys() & second.measures.keys()
    return any(first.measures[name] != second.measures[name] for name in shared)


@dataclass(frozen=True)
class _Choice:
    """Results that go together, and the conditions that choose them."""

    conditions: tuple[str, ...]
    results: Sequence[Evaluation]

    def where(self) -> str:
        """The folder of a single result; the collections of several."""
        if len(self.results) == 1:
            return str(self.results[0].folder)
        return ", ".join(sorted(_by_collection(self.results)))


def _choices(results: Sequence[Evaluation], conditions: tuple[str, ...] = ()) -> Iterator[_Choice]:
    """Split results, field by field, into parts that go together; without a field, by key."""
    if _go_together(results):
        yield _Choice(conditions, results)
        return
    for field in _choosing_fields(results):
        parts: dict[str, list[Evaluation]] = {}
        values: dict[str, str] = {}
        for stored in results:
            value = facts(stored.result).get(field, "")
            parts.setdefault(value.lower(), []).append(stored)  # letter case chooses nothing
            values.setdefault(value.lower(), value)
        if len(parts) > 1 and not any(CHOICE in value for value in values):
            for lower, part in parts.items():
                yield from _choices(part, (*conditions, f"{field}={values[lower]}"))
            return
    for key in dict.fromkeys(stored.result.key for stored in results):
        yield _Choice((key,), [stored for stored in results if stored.result.key == key])


def _go_together(results: Sequence[Evaluation]) -> bool:
    """True for one recipe, and one evaluation on each collection."""
    recipes = {recipe_key(stored.result) for stored in results}
    return len(recipes) <= 1 and all(
        len({stored.result.key for stored in repeated}) == 1
        for repeated in _by_collection(results).values()
    )


def _differing(results: Sequence[Evaluation]) -> list[str]:
    """Fields in which results differ, other than by being of several collections.

    Of protocol and prompts only what differs on one collection: each collection has its own.
    """
    of_recipes = differing(recipe_facts(stored.result) for stored in results)
    names = {name for name in of_recipes if not name.startswith("prompts.")}
    for repeated in _by_collection(results).values():
        names.update(differing(facts(stored.result) for stored in repeated))
    ordered = dict.fromkeys(name for stored in results for name in facts(stored.result))
    return [name for name in ordered if name in names]


def _choosing_fields(results: Sequence[Evaluation]) -> list[str]:
    """Fields that a name can choose by: what people read, then hashes of a model's files.

    A hash of a collection or of a run file is none: it chooses no other collection's results.
    """
    names = [name for name in _differing(results) if not is_hash(name)]
    return sorted(names, key=lambda name: name in FILES)


def _by_collection(results: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    grouped: dict[str, list[Evaluation]] = {}
    for stored in results:
        grouped.setdefault(stored.collection, []).append(stored)
    return grouped


def _ambiguous(name: str, results: Sequence[Evaluation], choices: Sequence[_Choice]) -> BenchError:
    """The results by choice, what differs between them, and a name for each choice."""
    collections, fields = sorted(_by_collection(results)), _differing(results)
    lines = []
    for choice in choices[:SHOWN]:
        values = facts(choice.results[0].result)
        told = ", ".join(f"{field} {values.get(field) or '-'}" for field in fields)
        lines.append(f"\n  {choice.where()}: {told}")
    if len(choices) > SHOWN:
        lines.append(f"\n  and {len(choices) - SHOWN} more")
    where = f"of {len(choices)} kinds on {len(collections)} collections"
    otherwise = "fewer collections with --on"
    if len(collections) == 1:
        where, otherwise = f"on {collections[0]}", "one of the folders"
    names = [f"'{CHOICE.join([name, *choice.conditions])}'" for choice in choices[:SHOWN]]
    return BenchError(
        f"{name} has {len(results)} results {where}, which differ in "
        f"{', '.join(fields)}:{''.join(lines)}",
        f"say which: {' or '.join(names)}, or {otherwise}",
    )
