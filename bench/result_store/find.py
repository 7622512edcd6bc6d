"""Search for stored results by the names that a user types, and export of their rankings.

The results of a name have one recipe, and there is one for each collection. An ambiguous name is an
error that lists the choices. A name stands for a model; text after ``@`` selects among its results,
see `find_named`.
"""

import hashlib
import logging
import sys
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from bench.evaluation.result_record import Evaluation, Protocol, Result
from bench.evaluation.run_files import encode_trec
from bench.requests.deciding import ExportRequest
from bench.result_store.result import RESULT_FILE, load, load_all
from datasets_cfg.catalogue import collections_of, expand_names, is_suite
from foundation.errors import BenchError, did_you_mean
from foundation.files import replace_file
from retrievers.models.card import STATE

SELECTOR = "@"
LISTED = 6  # choices or models that an error lists
HASH_DIGITS = 12
EXACT = "flat"  # the index of exact search
RUN_FILE = "run file"
TOKENS = "tokens"  # digest of token ids, which depend on the versions of libraries
FILES = ("files", "query_files", "adapter.files")  # by one hash each

logger = logging.getLogger(__name__)


def recipe_key(result: Result) -> Hashable:
    """Return a key that is equal for results with the same recipe and index, prompts aside.

    Prompts and the state of a search system depend on the collection.
    """
    if result.recipe is None:
        return None
    return result.recipe.across_datasets.fingerprint, result.index


def describe_result(result: Result) -> dict[str, str]:
    """Return protocol, recipe, index and token ids of ``result`` as readable names and values.

    Nested fields have dotted names. Hashes are shortened, and a table of hashes is one hash.
    """
    tokens = {TOKENS: result.tokens_sha256[:HASH_DIGITS]}
    return {**describe_protocol(result.protocol), **describe_recipe(result), **tokens}


def describe_protocol(protocol: Protocol) -> dict[str, str]:
    """Return the fields of ``protocol``, all of which must be equal to compare two results."""
    return _flatten(msgspec.to_builtins(protocol))


def describe_recipe(result: Result) -> dict[str, str]:
    """Return recipe and index of ``result`` without its name. They may differ between models."""
    if result.recipe is None:
        return {RUN_FILE: result.fingerprint[:HASH_DIGITS]}  # the only known setting
    fields = msgspec.to_builtins(result.recipe)
    adapter = fields["adapter"] or {"kind": "", "files": {}}
    files = (fields.pop("files"), fields.pop("query_files"), adapter.pop("files"))
    hashed = dict(zip(FILES, map(_hash_files, files), strict=True))
    del fields["model"], fields["compression"]
    fields |= {**result.recipe.compression.settings, "adapter": adapter}
    traits = result.recipe.traits
    if not traits.makes_vectors:
        known = {"kind", "checkpoint", "revision", "options", *traits.fields}
        fields = {name: value for name, value in fields.items() if name in known}
    return {"index": result.index, **_flatten(fields), **hashed}


def _flatten(fields: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Flatten nested fields to dotted names with readable values."""
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
    """Return the first digits of a hash of file hashes, or "" without files."""
    content = msgspec.json.encode(files, order="deterministic")
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS] if files else ""


def find_differing_settings(described: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the names of ``described`` that differ between results."""
    described = list(described)
    names = dict.fromkeys(name for each in described for name in each)
    return [name for name in names if len({each.get(name, "") for each in described}) > 1]


def choose_results(
    name: str, results: Iterable[Evaluation], on: Collection[str] | None = None
) -> dict[str, Evaluation]:
    """Choose one result for each collection, all of one recipe, and the newest if repeated.

    If only the index makes a name ambiguous, exact search is chosen, with a note on stderr.

    Args:
        name: name that the user typed, for messages.
        results: results of one model.
        on: collections that are needed; None for all. Others do not make the name ambiguous.

    Raises:
        BenchError: several recipes, several evaluations on one collection, or token ids of
            different library versions.
    """
    wanted = [stored for stored in results if on is None or stored.dataset in on]
    if not _go_together(wanted):
        exact = [stored for stored in wanted if stored.record.index == EXACT]
        if not _cover_one_recipe(exact, wanted):
            raise _ambiguous(name, wanted)
        others = sorted({stored.record.index for stored in wanted} - {EXACT})
        print(
            f"note: using the results of exact search of {name}; type "
            f"'{name}{SELECTOR}index={others[0]}' for other results",
            file=sys.stderr,
        )
        wanted = exact
    return {
        collection: choose_newest(name, repeated)
        for collection, repeated in sorted(_group_by_collection(wanted).items())
    }


def _cover_one_recipe(exact: Sequence[Evaluation], results: Sequence[Evaluation]) -> bool:
    """Return True if the exact results cover all collections of one recipe."""
    alike = (msgspec.structs.replace(one.record, index=EXACT) for one in results)
    covered = _group_by_collection(exact).keys() == _group_by_collection(results).keys()
    return covered and len(set(map(recipe_key, alike))) == 1 and _go_together(exact)


def choose_newest(name: str, repeated: Sequence[Evaluation]) -> Evaluation:
    """Return the newest result of a repeated evaluation, and warn if their scores differ."""
    newest = max(repeated, key=lambda stored: stored.record.conditions.time)
    measures = [pair for stored in repeated for pair in stored.record.measures.items()]
    if any(newest.record.measures.get(measure, value) != value for measure, value in measures):
        logger.warning(
            "%s on %s was evaluated %d times with different scores; using the newest: %s",
            *(name, newest.dataset, len(repeated), newest.folder),
        )
    return newest


def _go_together(results: Sequence[Evaluation]) -> bool:
    """Return True for one recipe, its token ids, and one evaluation on each collection."""
    recipes = {recipe_key(stored.record) for stored in results}
    return (
        len(recipes) <= 1
        and not mix_token_ids(results)
        and all(
            len({stored.record.key for stored in repeated}) == 1
            for repeated in _group_by_collection(results).values()
        )
    )


def mix_token_ids(results: Sequence[Evaluation]) -> bool:
    """Return True if the same model has different token ids, due to other library versions."""
    digests = {(stored.record.fingerprint, stored.record.tokens_sha256) for stored in results}
    return len(digests) > len({fingerprint for fingerprint, _ in digests})


def _differing_fields(results: Sequence[Evaluation]) -> list[str]:
    """Return the fields in which results differ, apart from their collection.

    Fields of protocol, prompts and state count only if they differ on one collection.
    """
    of_recipes = find_differing_settings(describe_recipe(stored.record) for stored in results)
    names = {name for name in of_recipes if not name.startswith(("prompts.", f"options.{STATE}"))}
    for repeated in _group_by_collection(results).values():
        names.update(find_differing_settings(describe_result(stored.record) for stored in repeated))
    names.discard(TOKENS)  # those of different recipes may differ
    if mix_token_ids(results):
        names.add(TOKENS)
    ordered = dict.fromkeys(name for stored in results for name in describe_result(stored.record))
    return [name for name in ordered if name in names]


def _group_by_collection(results: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    grouped: dict[str, list[Evaluation]] = {}
    for stored in results:
        grouped.setdefault(stored.dataset, []).append(stored)
    return grouped


def _ambiguous(name: str, results: Sequence[Evaluation]) -> BenchError:
    """Return an error that lists the fields in which results differ, with their values."""
    described = [describe_result(stored.record) for stored in results]
    values = {
        field: list(dict.fromkeys(each.get(field, "") for each in described))
        for field in _differing_fields(results)
    }
    lines = [
        f"\n  {field}: {', '.join(value or '-' for value in found[:LISTED])}"
        for field, found in values.items()
    ]
    hint = f"Name one of the folders, such as {results[0].folder}"
    for field in sorted(values, key=lambda field: field in FILES):
        is_hash = field.endswith("sha256") or field == RUN_FILE  # which nobody types
        if not is_hash and not any(SELECTOR in value for value in values[field]):
            names = [f"'{name}{SELECTOR}{field}={value}'" for value in values[field][:LISTED]]
            hint = f"Type {' or '.join(names)}; several conditions can follow each other."
            break
    return BenchError(
        f"{name} has {len(results)} results, which differ in {', '.join(values)}:{''.join(lines)}",
        hint,
    )


def find_results(root: Path, model: str = "") -> list[Evaluation]:
    """Return the results below ``root``, of one ``model`` or all, sorted by path.

    Raises:
        BenchError: a record is damaged, has an unknown schema, or contradicts itself.
    """
    end = f"/{model}" if model else ""
    files = [
        file
        for file in sorted(root.rglob(RESULT_FILE))
        if f"/{file.parent.parent.as_posix()}".endswith(end)
    ]
    found = [stored for stored in load_all(files) if model in ("", stored.record.model)]
    return _drop_superseded(found)


def _drop_superseded(results: Sequence[Evaluation]) -> list[Evaluation]:
    """Drop results of objects without a fingerprint, but for the newest that differ in nothing."""
    kept: dict[Hashable, Evaluation] = {}
    for place, stored in enumerate(results):
        recipe = stored.record.recipe
        key: Hashable = place
        if recipe is not None and not recipe.is_identified:
            record = msgspec.structs.replace(stored.record, recipe=recipe.stateless)
            key = (stored.model, stored.dataset, *describe_result(record).items())
        other = kept.get(key, stored)
        if other is not stored:
            logger.warning(
                "%s is an object of unknown content: its newest result on %s counts. Give "
                'bench.evaluate(..., fingerprint="v1") another one for each state to keep all',
                *(stored.model, stored.dataset),
            )
        kept[key] = max(other, stored, key=lambda one: one.record.conditions.time)
    return list(kept.values())


def find_named(name: str, *roots: Path) -> list[Evaluation]:
    """Return all results that a name stands for.

    Args:
        name: name of a model (``minilm``) or a folder with results of one model, with optional
            conditions (``minilm@dtype=float16``, ``minilm@depth=100@index=flat``,
            ``minilm@adapter.kind=`` for results without an adapter, or ``minilm@`` and the first
            digits of a key).
        *roots: folders of all results.

    Raises:
        BenchError: no result matches, or the folder has results of several models.
    """
    results = _find_by_name(name, roots)
    plain, *conditions = name.split(SELECTOR)
    if not results and conditions and all(conditions):
        results = _select(conditions, plain, _find_by_name(plain, roots))
    if not results:
        raise no_result_error(name, roots)
    return results


def expand_collections(typed: Iterable[str], with_results: Collection[str]) -> list[str]:
    """Return the collections that a user ``typed``: suites, names, or names ``with_results``.

    Raises:
        BenchError: a name is none of these.
    """
    names: list[str] = []
    for name in typed:
        if name in with_results:
            names.append(name)
        else:
            names += collections_of(name) if is_suite(name) else expand_names([name])
    return names


def _find_by_name(name: str, roots: Sequence[Path]) -> list[Evaluation]:
    """Return the results of a model, or those in a folder."""
    if not name:
        return []
    results = [stored for root in roots for stored in find_results(root, name)]
    if not results and Path(name).exists():
        results = _find_in_folder(Path(name))
    return results


def _select(conditions: list[str], name: str, results: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the results that meet each condition."""
    described = [describe_result(stored.record) for stored in results]
    fields = {field for each in described for field in each}
    kept = [
        stored
        for stored, each in zip(results, described, strict=True)
        if all(_meets_condition(condition, stored.record, each, fields) for condition in conditions)
    ]
    if results and not kept:
        shown = f"Run `python -m bench show {results[0].folder}` to see the fields of a result."
        typed = (condition.partition("=") for condition in conditions)
        unknown = (field for field, equals, _ in typed if equals and field not in fields)
        problem = f"no result of {name} has {' and '.join(conditions)}"
        raise BenchError(problem, did_you_mean(next(unknown, ""), fields, shown))
    return kept


def _meets_condition(
    condition: str, result: Result, described: Mapping[str, str], fields: Collection[str]
) -> bool:
    """Return True if a setting equals ``field=value``, or if the key starts with the condition.

    A setting that only other results have counts as empty.
    """
    field, equals, value = condition.partition("=")
    if not equals:
        return result.key.startswith(condition)
    return field in fields and described.get(field, "").lower() == value.lower()


def _find_in_folder(path: Path) -> list[Evaluation]:
    """Return the results of one model in a folder, or the result of a ``result.json``."""
    if path.is_file():
        if path.name != RESULT_FILE:
            hint = f"To score a TREC run file, run `bench score {path} --dataset NAME`."
            raise BenchError(f"{path} is not a result", hint)
        return [load(path)]
    results = find_results(path)
    models = sorted({stored.record.model for stored in results})
    if len(models) > 1:
        problem = f"{path} holds results of {len(models)} models: {', '.join(models[:LISTED])}"
        raise BenchError(problem, f"Name one of them, with --results {path}")
    return results


def no_result_error(name: str, roots: Sequence[Path]) -> BenchError:
    """Return the error for a name without results."""
    models = sorted({stored.record.model for root in roots for stored in find_results(root)})
    root = ", ".join(map(str, roots))
    if not models:
        hint = "Name the folder of the results with --results; `python -m bench run` makes results."
        return BenchError(f"{root} holds no results", hint)
    return BenchError(
        f"{root} has no results for {name!r}, and no folder of results has this name",
        did_you_mean(name.rpartition("/")[2], models, f"Name one of {', '.join(models)}."),
    )


def export(request: ExportRequest) -> list[Path]:
    """Write rankings as files, without overwriting other content, and return the files.

    Raises:
        BenchError: wrong input, nothing to export, or a file exists with other content.
    """
    chosen = {name: _choose(name, request) for name in request.names}
    written = []
    for typed, stored in chosen.items():
        for collection, evaluation in tqdm(stored.items(), desc=typed, unit=" files"):
            content = encode_trec(evaluation.run, evaluation.model)
            file = request.out / evaluation.model / f"{collection}.trec.gz"
            if not file.exists():
                with replace_file(file) as opened:
                    opened.write(content)
            elif file.read_bytes() != content:
                problem = f"{file} exists already, with different content"
                raise BenchError(problem, "Choose another folder.")
            written.append(file)
    return written


def _choose(typed: str, request: ExportRequest) -> dict[str, Evaluation]:
    """Choose the results of one model, by collection."""
    results = find_named(typed, *request.results)
    known = {each.dataset for each in results}
    wanted = expand_collections(request.on, known) if request.on else None
    stored = choose_results(typed, results, wanted)
    if not stored:
        raise BenchError(f"{typed} has no results on these collections", "Choose others with --on.")
    return stored
