"""Stored results: found in a folder, and one chosen for each model and collection."""

import difflib
import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bench.results.load import load, load_all
from bench.results.location import Place, files_below, place_of
from bench.results.record import RESULT_FILE, Protocol, Result, Stored
from foundation.errors import BenchError

logger = logging.getLogger(__name__)

CHOICE = "@"
SHOWN = 6  # results that an error lists
HASH_DIGITS = 12
RUN_FILE_FACT = "run file"
HASHED = re.compile("sha256|files|run file")  # fields that no one types


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


def results_of(name: str, root: Place) -> dict[str, Stored]:
    """Results of what a user named, one for each collection.

    Args:
        name: a model (``minilm``); a model with what tells its results apart
            (``minilm@dtype=float16``, ``minilm@depth=100@index=flat``, or ``minilm@`` and the
            first digits of a key); or a folder of results of one model, as below ``root``.
        root: folder of all results.

    Raises:
        BenchError: there is none, or several of a collection that are not the same evaluation.
    """
    found = (find_results(root, name) or _chosen(name, root)) if name else []
    if name and not found and place_of(name).exists():
        found = _in_folder(place_of(name))
    if not found:
        raise _nothing(name, root)
    collections = dict.fromkeys(one.collection for one in found)
    return {
        collection: _newest(name, [one for one in found if one.collection == collection])
        for collection in sorted(collections)
    }


def _chosen(name: str, root: Place) -> list[Stored]:
    """Results of a model that meet each condition after its name."""
    model, *conditions = name.split(CHOICE)
    if conditions and not all(conditions):
        return []
    found = find_results(root, model) if conditions and model else []
    kept = [one for one in found if all(_meets(one.result, text) for text in conditions)]
    if found and not kept:
        raise BenchError(
            f"no result of {model} has {' and '.join(conditions)}",
            f"all that one of its results has: python -m bench show {found[0].folder}",
        )
    return kept


def _meets(result: Result, condition: str) -> bool:
    """Whether a field has a value, as ``field=value``, or the key begins so."""
    field, equals, value = condition.partition("=")
    if not equals:
        return result.key.startswith(condition)
    known = facts(result)
    return field in known and known[field].lower() == value.lower()


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
    close = difflib.get_close_matches(name, models, n=3)
    known = f"did you mean {' or '.join(close)}?" if close else f"models: {', '.join(models)}"
    return BenchError(f"{root} holds no result of {name!r}, and it is no folder of results", known)


def _newest(name: str, found: Sequence[Stored]) -> Stored:
    """The latest of several records of one evaluation; different evaluations are refused."""
    if len({one.result.key for one in found}) == 1:
        newest = max(found, key=lambda one: one.result.conditions.time)
        if any(_disagree(one.result, newest.result) for one in found):
            logger.warning(
                "%s on %s was evaluated %d times with different scores; the newest counts: %s",
                *(name, newest.collection, len(found), newest.folder),
            )
        return newest
    told = [facts(one.result) for one in found]
    fields = differing(told)
    lines = [
        f"\n  {one.folder}: " + ", ".join(f"{field} {fact.get(field) or '-'}" for field in fields)
        for one, fact in zip(found[:SHOWN], told, strict=False)
    ]
    more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise BenchError(
        f"{name} has {len(found)} results on {found[0].collection}, which differ in "
        f"{', '.join(fields)}:{''.join(lines)}{more}",
        f"say which: {_choices(name, found)}, or one of the folders",
    )


def _disagree(one: Result, other: Result) -> bool:
    """Whether a mean that both have differs."""
    shared = one.measures.keys() & other.measures.keys()
    return any(one.measures[name] != other.measures[name] for name in shared)


def _choices(name: str, found: Sequence[Stored]) -> str:
    """A name for each of the results, by the fewest fields that tell them apart, else by key."""
    told = [facts(one.result) for one in found]
    fields: list[str] = []
    for field in differing(told):
        if not HASHED.search(field) and len(_tuples(told, [*fields, field])) > len(
            _tuples(told, fields)
        ):
            fields.append(field)
    if len(_tuples(told, fields)) == len(found):
        conditions = [[f"{field}={fact.get(field, '')}" for field in fields] for fact in told]
    else:
        conditions = [[one.result.key] for one in found]
    return " or ".join(f"'{CHOICE.join([name, *one])}'" for one in conditions[:SHOWN])


def _tuples(told: Sequence[Mapping[str, str]], fields: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(fact.get(field, "") for field in fields) for fact in told}


def facts(result: Result) -> dict[str, str]:
    """Protocol, recipe and index as names and values for people.

    Nested fields have dotted names; hashes are cut, and a table of them is one hash.
    """
    return {**protocol_facts(result.protocol), **recipe_facts(result)}


def protocol_facts(protocol: Protocol) -> dict[str, str]:
    """What must be equal for two results to be compared."""
    return _flat(msgspec.to_builtins(protocol))


def recipe_facts(result: Result) -> dict[str, str]:
    """What may differ between models: the recipe and the index, without the model's name."""
    if result.recipe is None:
        return run_file_facts(result.fingerprint)
    fields = msgspec.to_builtins(result.recipe)
    hashed = {name: _digest(fields.pop(name)) for name in ("files", "query_files")}
    del fields["model"]
    return {"index": result.index, **_flat(fields), **hashed}


def run_file_facts(sha256: str) -> dict[str, str]:
    """All that is known of a run file's making: its content hash."""
    return {RUN_FILE_FACT: sha256[:HASH_DIGITS]}


def _flat(fields: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{name}.")
        elif name.endswith("sha256"):
            flat[above + name] = value[:HASH_DIGITS]
        elif isinstance(value, list | tuple):
            flat[above + name] = msgspec.json.encode(value).decode() if value else ""
        else:
            flat[above + name] = "" if value is None else str(value)
    return flat


def _digest(files: Mapping[str, str]) -> str:
    content = msgspec.json.encode(files, order="deterministic")
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS] if files else ""


def differing(told: Iterable[Mapping[str, str]]) -> list[str]:
    """Names of the facts that are not the same everywhere."""
    told = list(told)
    names = dict.fromkeys(name for fact in told for name in fact)
    return [name for name in names if len({fact.get(name, "") for fact in told}) > 1]
