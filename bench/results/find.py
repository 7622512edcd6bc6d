"""Stored results: found in a folder, and one chosen for each model and collection."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.results.facts import FILES, differing, facts, is_hash, recipe_facts, recipe_key
from bench.results.load import load, load_all
from bench.results.location import Place, files_below, place_of
from bench.results.record import RESULT_FILE, Result, Stored
from datasets_cfg.catalogue import expand
from foundation.errors import BenchError
from foundation.suggestions import did_you_mean

logger = logging.getLogger(__name__)

CHOICE = "@"
SHOWN = 6  # results that an error lists


def find_results(root: Place, model: str = "") -> list[Stored]:
    """Results in a folder and all folders below it, in the order of their paths.

    Args:
        model: only those of this model, by the folders' names; the others are not opened.

    Raises:
        BenchError: a record is damaged, of another schema, or contradicts itself.
    """
    files = [file for file in files_below(root, RESULT_FILE) if _is_of(file.parent, model)]
    return [one for one in load_all(files) if model in ("", one.result.model)]


def _is_of(folder: Place, model: str) -> bool:
    return not model or f"/{folder.parent.as_posix()}".endswith(f"/{model}")


def results_of(name: str, root: Place, on: Collection[str] | None = None) -> dict[str, Stored]:
    """Results of what a user named, one for each collection, all of one recipe.

    Args:
        name: as of `named_results`.
        root: folder of all results.
        on: collections that matter; None for all. Others cannot make the name ambiguous.

    Raises:
        BenchError: as `named_results` and `one_each`.
    """
    return one_each(name, named_results(name, root), on)


def named_results(name: str, root: Place) -> list[Stored]:
    """All results that a name stands for.

    Args:
        name: a model (``minilm``) or a folder of results of one model, as below ``root``; either
            with what tells its results apart (``minilm@dtype=float16``,
            ``minilm@depth=100@index=flat``, ``minilm@adapter.kind=`` for those without an adapter,
            or ``minilm@`` and the first digits of a key).
        root: folder of all results.

    Raises:
        BenchError: there is none, or the folder holds results of several models.
    """
    stored = _called(name, root)
    plain, *conditions = name.split(CHOICE)
    if not stored and conditions and all(conditions):
        stored = _meeting(conditions, plain, _called(plain, root))
    if not stored:
        raise _nothing(name, root)
    return stored


def one_each(
    name: str, stored: Iterable[Stored], on: Collection[str] | None = None
) -> dict[str, Stored]:
    """The result on each collection, all of one recipe; of repeated evaluations the newest.

    Args:
        name: that a user typed, for messages.
        on: as of `results_of`.

    Raises:
        BenchError: several recipes, or several evaluations on a collection; the hint has a name
            for each choice.
    """
    wanted = [one for one in stored if on is None or one.collection in on]
    choices = list(_choices(wanted))
    if len(choices) > 1:
        raise _ambiguous(name, wanted, choices)
    return {
        collection: _newest(name, results)
        for collection, results in sorted(_by_collection(wanted).items())
    }


def collections_named(typed: Iterable[str], stored: Iterable[Stored]) -> list[str]:
    """Collections in what a user typed: names, suites, and own ones as their results name them.

    Raises:
        BenchError: a name is none of the three.
    """
    own = {one.collection for one in stored}
    return [member for name in typed for member in ([name] if name in own else expand([name]))]


def _called(name: str, root: Place) -> list[Stored]:
    """Results of a model, or in a folder."""
    if not name:
        return []
    stored = find_results(root, name)
    if not stored and place_of(name).exists():
        stored = _in_folder(place_of(name))
    return stored


def _meeting(conditions: Sequence[str], plain: str, stored: Sequence[Stored]) -> list[Stored]:
    """Results that meet each condition after a name."""
    told = [facts(one.result) for one in stored]
    fields = {field for fact in told for field in fact}
    kept = [
        one
        for one, fact in zip(stored, told, strict=True)
        if all(_meets(condition, one.result, fact, fields) for condition in conditions)
    ]
    if stored and not kept:
        shown = f"all that one of its results has: python -m bench show {stored[0].folder}"
        typed = (condition.partition("=") for condition in conditions)
        unknown = (field for field, equals, _ in typed if equals and field not in fields)
        raise BenchError(
            f"no result of {plain} has {' and '.join(conditions)}",
            did_you_mean(next(unknown, ""), fields, shown),
        )
    return kept


def _meets(
    condition: str, result: Result, told: Mapping[str, str], fields: Collection[str]
) -> bool:
    """Whether a field has a value, as ``field=value``, or the key begins so.

    A field that only other results have is empty here.
    """
    field, equals, value = condition.partition("=")
    if not equals:
        return result.key.startswith(condition)
    return field in fields and told.get(field, "").lower() == value.lower()


def _in_folder(path: Place) -> list[Stored]:
    """Results of one model in a folder, or the one whose ``result.json`` is named."""
    if path.is_file():
        if path.name != RESULT_FILE:
            raise BenchError(
                f"{path} is no result",
                "a TREC run file needs --dataset, which says how to score it",
            )
        return [load(path)]
    found = find_results(path)
    models = sorted({one.result.model for one in found})
    if len(models) > 1:
        raise BenchError(
            f"{path} holds results of {len(models)} models: {', '.join(models[:SHOWN])}",
            f"name one of them, with --results {path}",
        )
    return found


def _nothing(name: str, root: Place) -> BenchError:
    models = sorted({one.result.model for one in find_results(root)})
    if not models:
        return BenchError(
            f"{root} holds no results",
            "name the folder with --results, or make results: python -m bench run --help",
        )
    return BenchError(
        f"{root} holds no result of {name!r}, and it is no folder of results",
        did_you_mean(name, models, f"models: {', '.join(models)}"),
    )


def _newest(name: str, stored: Sequence[Stored]) -> Stored:
    """The latest of several records of one evaluation."""
    newest = max(stored, key=lambda one: one.result.conditions.time)
    if any(_disagree(one.result, newest.result) for one in stored):
        logger.warning(
            "%s on %s was evaluated %d times with different scores; the newest counts: %s",
            *(name, newest.collection, len(stored), newest.folder),
        )
    return newest


def _disagree(one: Result, other: Result) -> bool:
    """Whether a mean that both have differs."""
    shared = one.measures.keys() & other.measures.keys()
    return any(one.measures[name] != other.measures[name] for name in shared)


@dataclass(frozen=True)
class _Choice:
    """Results that go together, and the conditions that choose them."""

    conditions: tuple[str, ...]
    stored: Sequence[Stored]


def _choices(stored: Sequence[Stored], conditions: tuple[str, ...] = ()) -> Iterator[_Choice]:
    """Split results, field by field, until each part is of one recipe and of one evaluation on
    each collection; what no field tells apart is chosen by key.
    """
    if _go_together(stored):
        yield _Choice(conditions, stored)
        return
    for field in _typed(stored):
        parts: dict[str, list[Stored]] = {}
        for one in stored:
            parts.setdefault(facts(one.result).get(field, "").lower(), []).append(one)
        if len(parts) > 1 and not any(CHOICE in value for value in parts):
            for value, part in parts.items():
                yield from _choices(part, (*conditions, f"{field}={value}"))
            return
    for key in dict.fromkeys(one.result.key for one in stored):
        yield _Choice((key,), [one for one in stored if one.result.key == key])


def _go_together(stored: Sequence[Stored]) -> bool:
    one_recipe = len({recipe_key(one.result) for one in stored}) <= 1
    return one_recipe and all(
        len({one.result.key for one in results}) == 1 for results in _by_collection(stored).values()
    )


def _differing(stored: Sequence[Stored]) -> list[str]:
    """Fields in which results differ, other than by being of several collections.

    Of protocol and prompts only what differs on one collection: each collection has its own.
    """
    recipes = differing(recipe_facts(one.result) for one in stored)
    names = {name for name in recipes if not name.startswith("prompts.")}
    for results in _by_collection(stored).values():
        names.update(differing(facts(one.result) for one in results))
    ordered = dict.fromkeys(name for one in stored for name in facts(one.result))
    return [name for name in ordered if name in names]


def _typed(stored: Sequence[Stored]) -> list[str]:
    """Fields that a name can choose by: what people read, then hashes of a model's files.

    A hash of a collection or of a run file is none: it chooses no other collection's results.
    """
    names = [name for name in _differing(stored) if not is_hash(name)]
    return sorted(names, key=lambda name: name in FILES)


def _by_collection(stored: Iterable[Stored]) -> dict[str, list[Stored]]:
    grouped: dict[str, list[Stored]] = {}
    for one in stored:
        grouped.setdefault(one.collection, []).append(one)
    return grouped


def _ambiguous(name: str, stored: Sequence[Stored], choices: Sequence[_Choice]) -> BenchError:
    """The results by choice, what differs between them, and a name for each choice."""
    on = sorted(_by_collection(stored))
    told = [facts(choice.stored[0].result) for choice in choices]
    fields = _differing(stored)
    lines = [
        f"\n  {_where(choice)}: "
        + ", ".join(f"{field} {fact.get(field) or '-'}" for field in fields)
        for choice, fact in zip(choices[:SHOWN], told, strict=False)
    ]
    more = f"\n  and {len(choices) - SHOWN} more" if len(choices) > SHOWN else ""
    where = f"on {on[0]}" if len(on) == 1 else f"of {len(choices)} kinds on {len(on)} collections"
    names = [f"'{CHOICE.join([name, *choice.conditions])}'" for choice in choices[:SHOWN]]
    also = "one of the folders" if len(on) == 1 else "fewer collections with --on"
    return BenchError(
        f"{name} has {len(stored)} results {where}, which differ in "
        f"{', '.join(fields)}:{''.join(lines)}{more}",
        f"say which: {' or '.join(names)}, or {also}",
    )


def _where(choice: _Choice) -> str:
    """The folder of one result; the collections of several."""
    if len(choice.stored) == 1:
        return str(choice.stored[0].folder)
    return ", ".join(sorted(_by_collection(choice.stored)))
