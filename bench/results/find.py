"""Stored results: found in a folder, and by what a user types for a model."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from bench.results.choose import CHOICE
from bench.results.facts import facts
from bench.results.load import load, load_all
from bench.results.location import Place, files_below, place_of
from bench.results.result import RESULT_FILE, Evaluation, Result
from datasets_cfg.catalogue import collections_of, expand, is_suite
from foundation.errors import BenchError, did_you_mean

SHOWN = 6  # models that an error lists


def find_results(root: Place, model: str = "") -> list[Evaluation]:
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


def find_named(name: str, *roots: Place) -> list[Evaluation]:
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
    results = _called(name, roots)
    plain, *conditions = name.split(CHOICE)
    if not results and conditions and all(conditions):
        results = _meeting(conditions, plain, _called(plain, roots))
    if not results:
        raise _nothing(name, roots)
    return results


def expand_collections(typed: Iterable[str], own: Collection[str]) -> list[str]:
    """Collections in what a user typed: names, suites, and own ones as their results name them.

    Args:
        own: collections that there are results on.

    Raises:
        BenchError: a name is none of the three.
    """
    return [member for name in typed for member in _collections(name, own)]


def _collections(name: str, own: Collection[str]) -> list[str]:
    if name in own:
        return [name]
    return collections_of(name) if is_suite(name) else expand([name])


def _called(name: str, roots: Sequence[Place]) -> list[Evaluation]:
    """Results of a model, or in a folder."""
    if not name:
        return []
    results = [stored for root in roots for stored in find_results(root, name)]
    if not results and place_of(name).exists():
        results = _in_folder(place_of(name))
    return results


def _meeting(
    conditions: Sequence[str], plain: str, results: Sequence[Evaluation]
) -> list[Evaluation]:
    """Results that meet each condition after a name."""
    told = [facts(stored.result) for stored in results]
    fields = {field for fact in told for field in fact}
    kept = [
        stored
        for stored, fact in zip(results, told, strict=True)
        if all(_meets(condition, stored.result, fact, fields) for condition in conditions)
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


def _meets(
    condition: str, result: Result, told: Mapping[str, str], fields: Collection[str]
) -> bool:
    """True where a field has the value of ``field=value``, or where the key begins so.

    A field that only other results have is empty here.
    """
    field, equals, value = condition.partition("=")
    if not equals:
        return result.key.startswith(condition)
    return field in fields and told.get(field, "").lower() == value.lower()


def _in_folder(path: Place) -> list[Evaluation]:
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
            f"{path} holds results of {len(models)} models: {', '.join(models[:SHOWN])}",
            f"name one of them, with --results {path}",
        )
    return results


def _nothing(name: str, roots: Sequence[Place]) -> BenchError:
    models = sorted({stored.result.model for root in roots for stored in find_results(root)})
    root = ", ".join(map(str, roots))
    if not models:
        return BenchError(
            f"{root} holds no results",
            "name the folder with --results, or make results: python -m bench run --help",
        )
    return BenchError(
        f"{root} holds no result of {name!r}, and it is no folder of results",
        did_you_mean(name, models, f"models: {', '.join(models)}"),
    )
