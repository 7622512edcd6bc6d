"""Comparison of stored results, rankings and evaluations: what a user names, found and compared."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.comparing.changed_queries import (
    ChangedQueries,
    check_scores_against_rankings,
    confirm_evaluated,
    find_changed_queries,
    open_evaluated_dataset,
)
from bench.comparing.pairs import ComparedModel, Comparison, ComparisonSettings, compare_models
from bench.comparing.statistics import Resampling
from bench.comparing.transfer import Forgetting, TrainingSequence, measure_forgetting
from bench.evaluation.judging import suites_inner_first
from bench.evaluation.pipeline import OpenDataset, evaluate_run
from bench.evaluation.result_record import Evaluation
from bench.evaluation.runs import read_run_file
from bench.requests.deciding import CompareRequest
from bench.result_store.find import choose_results, expand_collections, find_named
from bench.result_store.result import RESULT_FILE
from bench.runner.score import run_file_name
from bench.runner.workspace import Workspace, open_workspace, refuse_duplicates
from datasets_cfg.catalogue import is_suite, user_folder
from datasets_cfg.dataset import name_in_results
from foundation.errors import BenchError
from foundation.locations import parse_location


@dataclass(frozen=True)
class ComparisonReport:
    """Comparisons of every pair of models, or the transfer of a sequence of trainings.

    Attributes:
        resampling: number of resamples and seed of intervals and p-values.
        comparisons: a comparison for each pair of models.
        changed: queries with the largest differences, by pair and collection.
        transfer: transfer between collections, if models were trained one after the other.
    """

    resampling: Resampling
    comparisons: tuple[Comparison, ...] = ()
    changed: tuple[ChangedQueries, ...] = ()
    transfer: Forgetting | None = None


@dataclass(frozen=True)
class _Entrant:
    """One of the models that a user gave.

    Attributes:
        label: name in tables, unless another model has the same one.
        typed: longer name, which is unique.
        found: all stored results of this name, or the evaluations given.
        run_file: ranking to score instead.
    """

    label: str
    typed: str
    found: Sequence[Evaluation] = ()
    run_file: Path | None = None


def compare(request: CompareRequest) -> ComparisonReport:
    """Compare models: which is better, by how much, and on which queries.

    Raises:
        BenchError: wrong input, different protocols, no common collection, or too few resamples.
    """
    workspace = open_workspace(request)
    resampling = Resampling(request.resamples, request.seed)
    opened = _open_judgements(request, workspace)
    entrants = _find_entrants(request, opened)
    known = {result.dataset for entrant in entrants for result in entrant.found}
    on = [opened.name] if opened else resolve_names(request.on, known, workspace)
    if request.sequence:
        transfer = _measure_transfer(request, entrants, on, workspace, resampling)
        return ComparisonReport(resampling, transfer=transfer)
    models = _choose_models(entrants, request, opened, on, workspace)
    settings = ComparisonSettings(
        measure=request.measure,
        force=request.force,
        collections=on or None,
        suites=suites_inner_first(request.on) if request.on else None,
        resampling=resampling,
    )
    comparisons = tuple(compare_models(models, settings))
    changed = _find_changes(comparisons, models, opened, request.changed, workspace)
    return ComparisonReport(resampling, comparisons, tuple(changed))


def model_of(results: Any) -> ComparedModel:
    """Return the one model of an evaluation, or of a list of them.

    Raises:
        BenchError: they are of several models, or two are of one collection.
        TypeError: something is not an evaluation.
    """
    several = list(results) if isinstance(results, list | tuple) else [results]
    for each in several:
        if not isinstance(each, Evaluation):
            raise TypeError(
                "a model is given by the name of its results, an Evaluation or a list of them, not "
                f"by a {type(each).__name__}: {each!r}"
            )
    names = sorted({result.model for result in several})
    if len(names) != 1:
        listed = ", ".join(names) or "none"
        raise BenchError(
            f"results of one model are needed, and these are of {listed}",
            "pass a result, or a list of results of one model",
        )
    by_collection = {result.dataset: result for result in several}
    if len(by_collection) < len(several):
        raise BenchError(f"{names[0]} has two results on one collection", "pass one of them")
    return ComparedModel(names[0], by_collection)


def resolve_names(
    typed: Sequence[str], with_results: Iterable[str], workspace: Workspace
) -> list[str]:
    """Return the names of collections as results contain them.

    A collection of the user is given by the name in its results or by its folder.

    Args:
        typed: collections, suites and folders.
        with_results: collections that have results.
        workspace: folders of collections.

    Raises:
        BenchError: a folder has no results, or a name is unknown.
    """
    known = set(with_results)
    chosen: list[str] = []
    for name in typed:
        folder = None if name in known or is_suite(name) else user_folder(name, workspace.data_dir)
        collection = name_in_results(folder) if folder else name
        if folder and collection not in known:
            raise BenchError(
                f"there are no results on {collection}, the collection in {folder}",
                f"python -m bench run {folder} --model MODEL",
            )
        chosen += expand_collections([collection], known)
    return list(dict.fromkeys(chosen))


def _open_judgements(request: CompareRequest, workspace: Workspace) -> OpenDataset | None:
    """Open the collection that scores run files, with its documents only if texts are shown."""
    if not request.dataset:
        return None
    opened = workspace.open_judgements(request.dataset, request.split)
    if request.changed:
        return replace(opened, dataset=workspace.dataset(request.dataset, request.split))
    return opened


def _find_entrants(request: CompareRequest, opened: OpenDataset | None) -> list[_Entrant]:
    """Find the results of all models, in the order given."""
    given: list[Any] = [request.a, request.b, *request.others]
    refuse_duplicates([str(each) for each in given if isinstance(each, str | Path)])
    entrants = []
    for each in given:
        if not isinstance(each, str | Path):
            model = model_of(each)
            entrants.append(_Entrant(model.name, model.name, list(model.results.values())))
        elif opened and _is_run_file(str(each)):
            entrants.append(_Entrant(run_file_name(Path(each)), str(each), run_file=Path(each)))
        else:
            name = str(each)
            found = find_named(name, *request.results)
            models = {result.model for result in found}
            is_folder_of_one = len(models) == 1 and parse_location(name).exists()
            entrants.append(_Entrant(models.pop() if is_folder_of_one else name, name, found))
    return entrants


def _is_run_file(name: str) -> bool:
    """Return True for a file or pipe, False for a folder or a stored result."""
    path = Path(name)
    return path.exists() and not path.is_dir() and path.name != RESULT_FILE


def _choose_models(
    entrants: Sequence[_Entrant],
    request: CompareRequest,
    opened: OpenDataset | None,
    on: Sequence[str],
    workspace: Workspace,
) -> list[ComparedModel]:
    """Choose one result for each model and collection, under the shortest names that are unique."""
    names = _unique_names(entrants)
    models = []
    for entrant, name in zip(entrants, names, strict=True):
        chosen: Mapping[str, Evaluation]
        if opened and entrant.run_file:
            chosen = {opened.name: _score_run_file(entrant.run_file, opened, request)}
        else:
            chosen = choose_results(entrant.typed, entrant.found, on or None)
            stored = [result for result in chosen.values() if result.folder is not None]
            check_scores_against_rankings(stored, workspace)
        models.append(ComparedModel(name, chosen))
    return models


def _unique_names(entrants: Sequence[_Entrant]) -> list[str]:
    """Return a label for each model: the shortest name, the typed one, or one with a letter."""
    for names in ([each.label for each in entrants], [each.typed for each in entrants]):
        if len(set(names)) == len(names):
            return names
    return [f"{each.typed} ({chr(97 + number)})" for number, each in enumerate(entrants)]


def _score_run_file(path: Path, opened: OpenDataset, request: CompareRequest) -> Evaluation:
    """Score a run file by the collection's own protocol, as ``score`` does."""
    wanted = None if request.measure is None else [request.measure]
    file = read_run_file(path)
    done = evaluate_run(
        *(file.run, path.name, file.sha256, opened.dataset),
        *(wanted, request.depth, opened.official),
    )
    if done.scores.unanswered:
        print(
            f"warning: {done.scores.unanswered:,} of {done.record.queries:,} queries of "
            f"{opened.name} have no document in {path}; they score 0",
            file=sys.stderr,
        )
    return done


def _find_changes(
    comparisons: Sequence[Comparison],
    models: Sequence[ComparedModel],
    given: OpenDataset | None,
    changed: int,
    workspace: Workspace,
) -> Iterator[ChangedQueries]:
    """Yield the queries with the largest differences, per pair and collection."""
    by_name = {model.name: model.results for model in models}
    for comparison in comparisons if changed else ():
        names = (comparison.a, comparison.b)
        for row in comparison.collections:
            if row.paired is not None:
                a, b = (by_name[name][row.on] for name in names)
                protocol = a.record.protocol
                shown = (
                    confirm_evaluated(given.dataset, protocol)
                    if given
                    else open_evaluated_dataset(protocol, workspace)
                )
                yield find_changed_queries(names, (a, b), row.measure, changed, shown)


def _measure_transfer(
    request: CompareRequest,
    entrants: Sequence[_Entrant],
    also: Sequence[str],
    workspace: Workspace,
    resampling: Resampling,
) -> Forgetting:
    """Measure backward and forward transfer between the collections of successive trainings."""
    known = {result.dataset for entrant in entrants for result in entrant.found}
    trained = resolve_names(request.sequence, known, workspace)
    refuse_duplicates([*trained, *also])
    models = _choose_models(entrants, request, None, [*trained, *also], workspace)
    extra = len(models) - len(trained)
    if extra not in (0, 1):
        raise BenchError(
            f"{len(models)} models do not match {len(trained)} collections of --sequence",
            "name one collection per model, in training order; the start of the training may come "
            "first, and other collections go after --on",
        )
    sequence = TrainingSequence(models[extra:], trained, also, models[0] if extra else None)
    return measure_forgetting(sequence, request.measure, resampling)
