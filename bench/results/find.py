"""Stored results: found in folders, and chosen by what a user types for a model.

One result for each collection, all of one recipe; what is ambiguous is refused with names. A name
stands for a model; what follows an ``@`` chooses among its results, see `find_named`.
"""

import hashlib
import logging
import sys
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.results.result import RESULT_FILE, Evaluation, Protocol, Result, load, load_all
from datasets_cfg.catalogue import collections_of, expand_names, is_suite
from foundation.errors import BenchError, did_you_mean
from foundation.locations import Location, files_below, parse_location
from retrievers.models.recipe import Prompts

SELECTOR = "@"
LISTED = 6  # choices or models that an error lists
HASH_DIGITS = 12
EXACT = "flat"  # the index of exact search
RUN_FILE_FACT = "run file"
FILES = ("files", "query_files", "adapter.files")  # by one hash each

logger = logging.getLogger(__name__)


def recipe_key(result: Result) -> Hashable:
    """Equal where the recipe, but for prompts, and the index are the same.

    Prompts are resolved by collection, so they differ between results of one recipe.
    """
    if result.recipe is None:
        return None
    plain = msgspec.structs.replace(result.recipe, prompts=Prompts(), dataset_prompts={})
    return plain.fingerprint, result.index


def describe_result(result: Result) -> dict[str, str]:
    """Protocol, recipe and index as names and values for people.

    Nested fields have dotted names; hashes are cut, and a table of them is one hash.
    """
    return {**describe_protocol(result.protocol), **describe_recipe(result)}


def describe_protocol(protocol: Protocol) -> dict[str, str]:
    """The protocol in words: all that must be equal for two results to be compared."""
    return _flatten(msgspec.to_builtins(protocol))


def describe_recipe(result: Result) -> dict[str, str]:
    """The recipe and the index in words, which may differ between models; without the name."""
    if result.recipe is None:
        return describe_run_file(result.fingerprint)
    fields = msgspec.to_builtins(result.recipe)
    adapter = fields["adapter"] or {"kind": "", "files": {}}
    files = (fields.pop("files"), fields.pop("query_files"), adapter.pop("files"))
    hashed = dict(zip(FILES, map(_hash_files, files), strict=True))
    del fields["model"]
    return {"index": result.index, **_flatten({**fields, "adapter": adapter}), **hashed}


def describe_run_file(sha256: str) -> dict[str, str]:
    """All that is known of a run file's making: its content hash."""
    return {RUN_FILE_FACT: sha256[:HASH_DIGITS]}


def is_hash(name: str) -> bool:
    """True for the hash of a collection or of a run file."""
    return name.endswith("sha256") or name == RUN_FILE_FACT


def _flatten(fields: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{above}{name}.")
        elif name.endswith("sha256"):
            flat[above + name] = value[:HASH_DIGITS]
        elif isinstance(value, list | tuple):
            flat[above + name] = msgspec.json.encode(value).decode() if value else ""
        else:
            flat[above + name] = "" if value is None else str(value)
    return flat


def _hash_files(files: Mapping[str, str]) -> str:
    content = msgspec.json.encode(files, order="deterministic")
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS] if files else ""


def find_differing_facts(facts: Iterable[Mapping[str, str]]) -> list[str]:
    """Names of the facts that are not the same everywhere."""
    facts = list(facts)
    names = dict.fromkeys(name for fact in facts for name in fact)
    return [name for name in names if len({fact.get(name, "") for fact in facts}) > 1]


def choose_results(
    name: str, results: Iterable[Evaluation], on: Collection[str] | None = None
) -> dict[str, Evaluation]:
    """Choose the result on each collection, all of one recipe; of repeated evaluations the newest.

    Where the index alone makes a name ambiguous, exact search is meant, with a note.

    Args:
        name: that a user typed, for messages.
        results: of one model.
        on: collections that matter; None for all. Others cannot make the name ambiguous.

    Raises:
        BenchError: several recipes, or several evaluations on a collection; the hint has a name
            for each choice.
    """
    wanted = [stored for stored in results if on is None or stored.collection in on]
    groups = list(_split_into_groups(wanted))
    exact = [stored for stored in wanted if stored.result.index == EXACT]
    if len(groups) > 1 and _cover_one_recipe(exact, wanted):
        others = sorted({stored.result.index for stored in wanted} - {EXACT})
        print(
            f"note: {name} stands for its results of exact search; '{name}{SELECTOR}index="
            f"{others[0]}' names others",
            file=sys.stderr,
        )
        wanted = exact
    elif len(groups) > 1:
        raise _ambiguous_error(name, wanted, groups)
    return {
        collection: _choose_newest(name, repeated)
        for collection, repeated in sorted(_group_by_collection(wanted).items())
    }


def _cover_one_recipe(exact: Sequence[Evaluation], results: Sequence[Evaluation]) -> bool:
    """True for results that go together and cover all collections of one recipe."""
    alike = (msgspec.structs.replace(one.result, index=EXACT) for one in results)
    covered = _group_by_collection(exact).keys() == _group_by_collection(results).keys()
    return covered and len(set(map(recipe_key, alike))) == 1 and _go_together(exact)


def _choose_newest(name: str, repeated: Sequence[Evaluation]) -> Evaluation:
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
class _ResultGroup:
    """Results that go together, and the conditions that choose them."""

    conditions: tuple[str, ...]
    results: Sequence[Evaluation]

    def location(self) -> str:
        """The folder of a single result; the collections of several."""
        if len(self.results) == 1:
            return str(self.results[0].folder)
        return ", ".join(sorted(_group_by_collection(self.results)))


def _split_into_groups(
    results: Sequence[Evaluation], conditions: tuple[str, ...] = ()
) -> Iterator[_ResultGroup]:
    """Split results, field by field, into parts that go together; without a field, by key."""
    if _go_together(results):
        yield _ResultGroup(conditions, results)
        return
    for field in _choosing_fields(results):
        parts: dict[str, list[Evaluation]] = {}
        values: dict[str, str] = {}
        for stored in results:
            value = describe_result(stored.result).get(field, "")
            parts.setdefault(value.lower(), []).append(stored)  # letter case chooses nothing
            values.setdefault(value.lower(), value)
        if len(parts) > 1 and not any(SELECTOR in value for value in values):
            for lower, part in parts.items():
                yield from _split_into_groups(part, (*conditions, f"{field}={values[lower]}"))
            return
    for key in dict.fromkeys(stored.result.key for stored in results):
        yield _ResultGroup((key,), [stored for stored in results if stored.result.key == key])


def _go_together(results: Sequence[Evaluation]) -> bool:
    """True for one recipe, and one evaluation on each collection."""
    recipes = {recipe_key(stored.result) for stored in results}
    return len(recipes) <= 1 and all(
        len({stored.result.key for stored in repeated}) == 1
        for repeated in _group_by_collection(results).values()
    )


def _differing_fields(results: Sequence[Evaluation]) -> list[str]:
    """Fields in which results differ, other than by being of several collections.

    Of protocol and prompts only what differs on one collection: each collection has its own.
    """
    of_recipes = find_differing_facts(describe_recipe(stored.result) for stored in results)
    names = {name for name in of_recipes if not name.startswith("prompts.")}
    for repeated in _group_by_collection(results).values():
        names.update(find_differing_facts(describe_result(stored.result) for stored in repeated))
    ordered = dict.fromkeys(name for stored in results for name in describe_result(stored.result))
    return [name for name in ordered if name in names]


def _choosing_fields(results: Sequence[Evaluation]) -> list[str]:
    """Fields that a name can choose by: what people read, then hashes of a model's files.

    A hash of a collection or of a run file is none: it chooses no other collection's results.
    """
    names = [name for name in _differing_fields(results) if not is_hash(name)]
    return sorted(names, key=lambda name: name in FILES)


def _group_by_collection(results: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    grouped: dict[str, list[Evaluation]] = {}
    for stored in results:
        grouped.setdefault(stored.collection, []).append(stored)
    return grouped


def _ambiguous_error(
    name: str, results: Sequence[Evaluation], groups: Sequence[_ResultGroup]
) -> BenchError:
    """The results by choice, what differs between them, and a name for each choice."""
    collections, fields = sorted(_group_by_collection(results)), _differing_fields(results)
    lines = []
    for group in groups[:LISTED]:
        values = describe_result(group.results[0].result)
        facts = ", ".join(f"{field} {values.get(field) or '-'}" for field in fields)
        lines.append(f"\n  {group.location()}: {facts}")
    if len(groups) > LISTED:
        lines.append(f"\n  and {len(groups) - LISTED} more")
    location = f"of {len(groups)} kinds on {len(collections)} collections"
    otherwise = "fewer collections with --on"
    if len(collections) == 1:
        location, otherwise = f"on {collections[0]}", "one of the folders"
    names = [f"'{SELECTOR.join([name, *group.conditions])}'" for group in groups[:LISTED]]
    return BenchError(
        f"{name} has {len(results)} results {location}, which differ in "
        f"{', '.join(fields)}:{''.join(lines)}",
        f"say which: {' or '.join(names)}, or {otherwise}",
    )


def find_results(root: Location, model: str = "") -> list[Evaluation]:
    """Results in a folder and all folders below it, in the order of their paths.

    Args:
        model: only those of this model, by the folders' names; the others are not opened.

    Raises:
        BenchError: a record is damaged, of another schema, or contradicts itself.
    """
    end = f"/{model}" if model else ""
    files = [
        file
        for file in files_below(root, RESULT_FILE)
        if f"/{file.parent.parent.as_posix()}".endswith(end)
    ]
    return [stored for stored in load_all(files) if model in ("", stored.result.model)]


def find_named(name: str, *roots: Location) -> list[Evaluation]:
    """All results that a name stands for.

    Args:
        name: a model (``minilm``) or a folder of results of one model, as below the roots; either
            with what tells its results apart (``minilm@dtype=float16``,
            ``minilm@depth=100@index=flat``, ``minilm@adapter.kind=`` for those without an adapter,
            or ``minilm@`` and the first digits of a key).
        roots: folders of all results.

    Raises:
        BenchError: there is none, or the folder holds results of several models.
    """
    results = _find_by_name(name, roots)
    plain, *conditions = name.split(SELECTOR)
    if not results and conditions and all(conditions):
        results = _filter_results(conditions, plain, _find_by_name(plain, roots))
    if not results:
        raise _no_result_error(name, roots)
    return results


def expand_collections(typed: Iterable[str], with_results: Collection[str]) -> list[str]:
    """Collections in what a user typed: names, suites, and own ones as their results name them.

    Args:
        own: collections that there are results on.

    Raises:
        BenchError: a name is none of the three.
    """
    return [member for name in typed for member in _expand_name(name, with_results)]


def _expand_name(name: str, with_results: Collection[str]) -> list[str]:
    if name in with_results:
        return [name]
    return collections_of(name) if is_suite(name) else expand_names([name])


def _find_by_name(name: str, roots: Sequence[Location]) -> list[Evaluation]:
    """Results of a model, or in a folder."""
    if not name:
        return []
    results = [stored for root in roots for stored in find_results(root, name)]
    if not results and parse_location(name).exists():
        results = _find_in_folder(parse_location(name))
    return results


def _filter_results(
    conditions: Sequence[str], plain: str, results: Sequence[Evaluation]
) -> list[Evaluation]:
    """Results that meet each condition after a name."""
    facts = [describe_result(stored.result) for stored in results]
    fields = {field for fact in facts for field in fact}
    kept = [
        stored
        for stored, fact in zip(results, facts, strict=True)
        if all(_meets_condition(condition, stored.result, fact, fields) for condition in conditions)
    ]
    if results and not kept:
        shown = f"all that one of its results has: python -m bench show {results[0].folder}"
        typed = (condition.partition("=") for condition in conditions)
        unknown = (field for field, equals, _ in typed if equals and field not in fields)
        raise BenchError(
            f"no result of {plain} has {' and '.join(conditions)}",
            did_you_mean(next(unknown, ""), fields, shown),
        )
    return kept


def _meets_condition(
    condition: str, result: Result, facts: Mapping[str, str], fields: Collection[str]
) -> bool:
    """True if a field has the value of ``field=value``, or if the key begins so.

    A field that only other results have is empty here.
    """
    field, equals, value = condition.partition("=")
    if not equals:
        return result.key.startswith(condition)
    return field in fields and facts.get(field, "").lower() == value.lower()


def _find_in_folder(path: Location) -> list[Evaluation]:
    """Results of one model in a folder, or the one whose ``result.json`` is named."""
    if path.is_file():
        if path.name != RESULT_FILE:
            raise BenchError(
                f"{path} is no result",
                "a TREC run file needs --dataset, which says how to score it",
            )
        return [load(path)]
    results = find_results(path)
    models = sorted({stored.result.model for stored in results})
    if len(models) > 1:
        raise BenchError(
            f"{path} holds results of {len(models)} models: {', '.join(models[:LISTED])}",
            f"name one of them, with --results {path}",
        )
    return results


def _no_result_error(name: str, roots: Sequence[Location]) -> BenchError:
    models = sorted({stored.result.model for root in roots for stored in find_results(root)})
    root = ", ".join(map(str, roots))
    if not models:
        return BenchError(
            f"{root} holds no results",
            "name the folder with --results, or make results: python -m bench run --help",
        )
    return BenchError(
        f"{root} holds no result of {name!r}, and it is no folder of results",
        did_you_mean(name.rpartition("/")[2], models, f"models: {', '.join(models)}"),
    )
