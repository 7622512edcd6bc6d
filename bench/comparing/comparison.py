"""Comparison of the stored results, rankings and evaluations that a user names.

With ``changed``, the queries on which two models differ most are shown with relevant documents and
both rankings.
"""

import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.comparing.pairs import (
    ComparedModel,
    Comparison,
    ComparisonSettings,
    Forgetting,
    compare_models,
    measure_forgetting,
)
from bench.comparing.settling import Holes, find_holes, read_texts
from bench.comparing.slices import SliceComparison, compare_slices, find_groups, find_slices
from bench.comparing.statistics import SAME_SCORE, Difference, Resampling
from bench.evaluation.judging import suites_inner_first
from bench.evaluation.pipeline import OpenDataset, evaluate_run
from bench.evaluation.result_record import OVERLAY_FILE, Evaluation, Protocol, read_overlay
from bench.evaluation.run_files import read_run_file
from bench.evaluation.runs import Run
from bench.requests.deciding import CompareRequest
from bench.result_store.find import choose_results, expand_collections, find_named
from bench.result_store.result import RESULT_FILE, UncheckedScores, check_stored_values
from bench.runner.run import run_file_name
from bench.runner.workspace import Workspace, open_workspace, refuse_duplicates
from datasets_cfg.catalogue import is_suite
from datasets_cfg.dataset import Dataset, name_of_user, open_remembered
from foundation.errors import BenchError, UnavailableError
from foundation.files import hash_records
from foundation.records import Record
from retrievers.models.names import is_card

TOP = 5  # documents shown from each ranking
JUDGED = 10  # relevant documents shown for a query
QUICK_COMPARISONS = 14  # whose holes are examined without being asked


class ShownDocument(Record):
    """Document shown for a query: relevant, or among the first of a ranking.

    Attributes:
        grade: relevance grade; None if unjudged or unknown.
        rank_a, rank_b: rank from 1; None if it was not retrieved.
        text: title and text; "" if the corpus does not contain it.
    """

    doc_id: str
    grade: int | None
    rank_a: int | None
    rank_b: int | None
    text: str


class ChangedQuery(Record):
    """Query on which two models differ.

    Attributes:
        text: its text; None if the collection is not available.
        answers: accepted answers, for collections judged by answer strings.
        documents: ten relevant documents at most, the highest grade first, then the best rank; then
            the first documents of both rankings.
    """

    query_id: str
    text: str | None
    score_a: float
    score_b: float
    answers: tuple[str, ...]
    documents: tuple[ShownDocument, ...]


class ChangedQueries(Record):
    """The queries of one collection that changed most between two models.

    Attributes:
        a, b: names of the models.
        changed: number of queries on which the models differ.
        without: reason why texts and grades are missing; "" if they are available.
        queries: queries on which a is better, the largest difference first, then by id; then the
            same for b.
    """

    a: str
    b: str
    collection: str
    measure: str
    changed: int
    without: str
    queries: tuple[ChangedQuery, ...]


@dataclass(frozen=True)
class ComparisonReport:
    """Comparisons of every pair of models, or the transfer of a sequence of trainings.

    ``changed`` are the queries with the largest differences, and ``holes`` what unjudged documents
    can change, by pair and collection. ``slices`` has the slices of each pair.
    """

    resampling: Resampling
    comparisons: tuple[Comparison, ...] = ()
    changed: tuple[ChangedQueries, ...] = ()
    holes: tuple[Holes, ...] = ()
    slices: tuple[SliceComparison, ...] = ()
    transfer: Forgetting | None = None


class _Entrant(NamedTuple):
    """One of the models that a user gave. ``label`` is its name in tables if no other has it."""

    label: str
    typed: str
    found: Sequence[Evaluation]


def compare(request: CompareRequest) -> ComparisonReport:
    """Compare models: which is better, by how much, and on which queries.

    Raises:
        BenchError: wrong input, different protocols, no common collection, or too few resamples.
    """
    workspace = open_workspace(request)
    resampling = Resampling(request.resamples, request.seed)
    opened = None
    if request.dataset:  # its documents are needed only if their texts are shown
        with_corpus = bool(request.changed)
        opened = workspace.open(request.dataset, request.split, with_corpus=with_corpus)
    entrants = _find_entrants(request, opened)
    known = {result.dataset for entrant in entrants for result in entrant.found}
    on = [opened.name] if opened else resolve_names(request.on, known, workspace)
    if request.sequence:
        refuse_duplicates(request.sequence)
        trained = resolve_names(request.sequence, known, workspace)
        models = _choose_models(entrants, trained, workspace)
        transfer = measure_forgetting(models, trained, request.measure, resampling)
        return ComparisonReport(resampling, transfer=transfer)
    models = _choose_models(entrants, on, workspace)
    suites = suites_inner_first(request.on) if request.on else None
    datasets = _open_compared(models, on, workspace, opened)
    grouping = find_groups(request.group, datasets)
    settings = ComparisonSettings(request.measure, on or None, suites, resampling, grouping.groups)
    comparisons = tuple(compare_models(models, settings))
    slices: list[SliceComparison] = []
    warnings = [*grouping.warnings]
    if request.by:
        slicing = find_slices(request.by, datasets)
        slices, warnings = compare_slices(models, settings, slicing), [*warnings, *slicing.warnings]
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    tested = tested_pairs(comparisons, models)
    changed: list[ChangedQueries] = []
    for test, results in tested if request.changed else ():
        dataset = try_open_evaluated(results[0], workspace, opened)
        changed.append(_find_changed_queries(test, results, request.changed, dataset))
    ungrouped = [one for one in tested if one[0].on not in grouping.groups]
    if request.holes and len(ungrouped) < len(tested):
        raise BenchError("holes are of queries, not of groups", "Leave out --holes or --group.")
    holes = find_comparison_holes(ungrouped, request.holes, workspace, opened)
    return ComparisonReport(resampling, comparisons, tuple(changed), tuple(holes), tuple(slices))


def _open_compared(
    models: Sequence[ComparedModel],
    on: Sequence[str],
    workspace: Workspace,
    given: OpenDataset | None,
) -> dict[str, Dataset | UnavailableError]:
    """Open the collections that are compared, or return the reason why not, by name."""
    stored = {name: one for model in models for name, one in model.results.items()}
    shown = {name: one for name, one in stored.items() if not on or name in on}
    return {name: try_open_evaluated(one, workspace, given) for name, one in shown.items()}


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
            f"only results of one model can be compared here, not of {listed}",
            "Pass a result, or a list of results of one model.",
        )
    by_collection = {result.dataset: result for result in several}
    if len(by_collection) < len(several):
        raise BenchError(f"{names[0]} has two results on one collection", "Pass one of them.")
    return ComparedModel(names[0], by_collection)


def resolve_names(typed: Sequence[str], known: set[str], workspace: Workspace) -> list[str]:
    """Return the names of collections as results contain them, of which some are ``known``.

    A collection of the user is ``typed`` by the name in its results or by its folder.
    """
    chosen: list[str] = []
    for name in typed:
        own = "" if name in known or is_suite(name) else name_of_user(name, workspace.data_dir)
        collection = own or name
        if own and collection not in known:
            raise BenchError(
                f"there are no results on {collection}, the collection {name}",
                f"Run `python -m bench run {name} --model MODEL`.",
            )
        chosen += expand_collections([collection], known)
    return list(dict.fromkeys(chosen))


def _find_entrants(request: CompareRequest, opened: OpenDataset | None) -> list[_Entrant]:
    """Find the results of all models, in the order given."""
    given: list[Any] = [request.a, request.b, *request.others]
    refuse_duplicates([str(each) for each in given if isinstance(each, str | Path)])
    entrants = []
    for each in given:
        if not isinstance(each, str | Path):
            model = model_of(each)
            entrants.append(_Entrant(model.name, model.name, list(model.results.values())))
            continue
        name, path = str(each), Path(each)
        is_file = path.exists() and not path.is_dir()  # or a pipe
        if opened and is_file and path.name != RESULT_FILE:
            scored = score_run_file(path, opened, request.measure, request.depth)
            entrants.append(_Entrant(run_file_name(path), name, [scored]))
        else:
            found = find_named(name, *request.results)
            models = {result.model for result in found}
            is_folder_of_one = len(models) == 1 and Path(name).exists()
            entrants.append(_Entrant(models.pop() if is_folder_of_one else name, name, found))
    return entrants


def _choose_models(
    entrants: Sequence[_Entrant], on: Sequence[str], workspace: Workspace
) -> list[ComparedModel]:
    """Choose one result for each model and collection, under the shortest names that are unique."""
    models = []
    for entrant, name in zip(entrants, _unique_names(entrants), strict=True):
        chosen = choose_results(entrant.typed, entrant.found, on or None)
        stored = [result for result in chosen.values() if result.folder is not None]
        check_scores_against_rankings(stored, workspace)
        models.append(ComparedModel(name, chosen))
    return models


def _unique_names(entrants: Sequence[_Entrant]) -> list[str]:
    """Return a label for each model: the short name, the typed one, or one with a letter."""
    for names in ([each.label for each in entrants], [each.typed for each in entrants]):
        if len(set(names)) == len(names):
            return names
    return [f"{each.typed} ({chr(97 + number)})" for number, each in enumerate(entrants)]


def find_run_file(model: Any, settings: Sequence[str]) -> Path | None:
    """Return the path of a ``model`` that is a run file, or None.

    ``settings`` are options of models that were typed. They would have no effect on a run file.
    """
    path = Path(model) if isinstance(model, str | Path) else Path()
    if path.is_dir() or not path.exists() or is_card(str(path)) or path.suffix == ".py":
        return None
    if settings:
        problem = f"{shlex.join(settings)} has no effect on the run file {path}"
        raise BenchError(problem, "Leave it out.")
    return path


def score_run_file(
    path: Path, opened: OpenDataset, measure: str | None, depth: int | None
) -> Evaluation:
    """Score a run file by the collection's own protocol, as ``score`` does."""
    measures = None if measure is None else [measure]
    file = read_run_file(path, split=opened.dataset.metadata.split)
    return evaluate_run(file, path.name, opened, measures, depth)


Evaluations = tuple[Evaluation, Evaluation]  # of two models on one collection
Tested = tuple[Difference, Evaluations]


def tested_pairs(comparisons: Sequence[Comparison], models: list[ComparedModel]) -> list[Tested]:
    """Return the test of each pair of models on each collection, with both results."""
    by_name = {model.name: model.results for model in models}
    rows = chain.from_iterable(comparison.collections for comparison in comparisons)
    tests = [row.paired for row in rows if row.paired]
    return [(test, (by_name[test.a][test.on], by_name[test.b][test.on])) for test in tests]


def find_comparison_holes(
    tested: list[Tested], thorough: bool, workspace: Workspace, given: OpenDataset | None = None
) -> Iterator[Holes]:
    """Yield what unjudged documents can change in tests, or nothing if it takes long to tell."""
    for test, results in tested if thorough or len(tested) <= QUICK_COMPARISONS else ():
        dataset = try_open_evaluated(results[0], workspace, given)
        yield find_holes(results, test, dataset, thorough)


def _find_changed_queries(
    test: Difference, evaluations: Evaluations, count: int, opened: Dataset | UnavailableError
) -> ChangedQueries:
    """Find the ``count`` queries on which each of two models gains most over the other.

    ``opened`` is the collection, or the reason why it is not available and only ids are shown.
    """
    a, b = (evaluation.scores.by_query(test.measure) for evaluation in evaluations)
    queries = sorted(a.keys() & b.keys())
    gains = np.array([a[query] - b[query] for query in queries])
    order = np.argsort(-np.abs(gains), kind="stable")
    wins, losses = order[gains[order] > SAME_SCORE], order[gains[order] < -SAME_SCORE]
    selected = [queries[row] for row in [*wins[:count], *losses[:count]]]
    dataset = None if isinstance(opened, UnavailableError) else opened
    judged = dataset.qrels.by_query if dataset else {}
    grades = {query: judged.get(query, {}) for query in selected}
    ranks = {query: [_ranks(one.run, query) for one in evaluations] for query in selected}
    shown = {query: _documents(grades[query], *ranks[query]) for query in selected}
    found = read_texts(dataset, list(chain(*shown.values()))) if dataset else {}
    texts = dataset.queries.by_id if dataset else {}
    answers = (dataset.answers if dataset else None) or {}
    changed = []
    for query in selected:
        known, (rank_a, rank_b) = grades[query], ranks[query]
        of_query = tuple(
            ShownDocument(doc, known.get(doc), rank_a.get(doc), rank_b.get(doc), found.get(doc, ""))
            for doc in shown[query]
        )
        accepted, text = answers.get(query, ()), texts.get(query)
        changed.append(ChangedQuery(query, text, a[query], b[query], accepted, of_query))
    number, without = len(wins) + len(losses), "" if dataset else str(opened)
    names = (test.a, test.b, test.on, test.measure)
    return ChangedQueries(*names, number, without, tuple(changed))


def _ranks(run: Run, query: str) -> dict[str, int]:
    """Return the rank of each document from 1, or nothing if the run lacks the query."""
    if query not in run.query_ids:
        return {}
    start, end = run.offsets[run.query_ids.index(query) :][:2].tolist()
    ids = run.ids.take(pa.array(run.documents[start:end])).to_pylist()
    return {doc_id: rank for rank, doc_id in enumerate(ids, start=1)}


def _documents(grades: Mapping[str, int], a: Mapping[str, int], b: Mapping[str, int]) -> list[str]:
    """Select the documents to show for a query by their grades and their ranks."""

    def sort_key(doc_id: str) -> tuple[float, ...]:
        best = min(a.get(doc_id, math.inf), b.get(doc_id, math.inf))
        return (-grades.get(doc_id, 0), best)

    relevant = sorted(sorted(doc_id for doc_id in grades if grades[doc_id] > 0), key=sort_key)
    first = [doc_id for ranks in (a, b) for doc_id in ranks if ranks[doc_id] <= TOP]
    return list(dict.fromkeys([*relevant[:JUDGED], *sorted(first, key=sort_key)]))


def check_scores_against_rankings(results: Iterable[Evaluation], workspace: Workspace) -> None:
    """Score stored rankings again and raise if the stored scores differ.

    Nothing is downloaded. One warning names the collections whose scores cannot be computed again.
    Files that agreed once are not scored again.
    """
    opened = cache(lambda protocol: open_evaluated_dataset(protocol, workspace))
    unchecked = UncheckedScores()
    for stored in results:
        result = stored.record
        hashes = result.per_query_sha256, result.run_sha256, result.protocol.qrels_sha256
        agreed = workspace.cache_dir / "agreed" / hash_records([hashes])  # a marker for each set
        if agreed.exists() and stored.has_ranking:
            continue
        with unchecked.collect():
            check_stored_values(stored, _add_judgements(opened(result.protocol), stored))
            if all(hashes) and stored.has_ranking:
                with suppress(OSError):  # a cache that is read-only
                    agreed.parent.mkdir(parents=True, exist_ok=True)
                    agreed.touch()
    unchecked.warn()


def open_evaluated_dataset(protocol: Protocol, workspace: Workspace) -> Dataset:
    """Open the dataset that was evaluated.

    It is looked up by name, then in the folder in which this name and content were last seen.
    Nothing is downloaded.

    Raises:
        UnavailableError: its queries and judgements are not on this machine.
    """
    content = (protocol.collection, protocol.queries_sha256, protocol.qrels_sha256)
    offline = replace(workspace, offline=True)
    try:
        named = offline.dataset(protocol.collection, protocol.split or None)
    except BenchError:
        problem = f"{protocol.collection} is not on this machine (see --data-dir)"
        missing = UnavailableError(problem)
    else:
        try:
            return _confirm_evaluated(named, protocol)
        except UnavailableError as error:
            missing = error
    if remembered := open_remembered(*content, protocol.split, workspace.cache_dir):
        return remembered
    raise missing


def open_evaluated(
    stored: Evaluation, workspace: Workspace, given: OpenDataset | None = None
) -> Dataset:
    """Open the dataset of a result, or take the ``given`` one, with imported judgements.

    Raises:
        UnavailableError: the dataset or the judgements are not on this machine.
    """
    protocol = stored.record.protocol
    if given:
        return _add_judgements(_confirm_evaluated(given.dataset, protocol), stored)
    return _add_judgements(open_evaluated_dataset(protocol, workspace), stored)


def try_open_evaluated(
    stored: Evaluation, workspace: Workspace, given: OpenDataset | None = None
) -> Dataset | UnavailableError:
    """Open the dataset of a result like `open_evaluated`, or return the error."""
    try:
        return open_evaluated(stored, workspace, given)
    except UnavailableError as error:
        return error


def _add_judgements(dataset: Dataset, stored: Evaluation) -> Dataset:
    """Add the imported judgements of a stored result to the dataset that was evaluated."""
    overlay = stored.record.protocol.overlay
    if not overlay:
        return dataset
    if stored.folder is None:
        raise UnavailableError(f"the judgements of overlay {overlay} are not stored")
    try:
        judged = dataset.with_judgements(read_overlay(stored.folder / OVERLAY_FILE))
    except (BenchError, OSError) as error:
        problem = f"the judgements of overlay {overlay} cannot be read: {error}"
        raise UnavailableError(problem) from None
    if judged.overlay != overlay:
        raise UnavailableError(f"{stored.folder} has another {OVERLAY_FILE}")
    return judged


def _confirm_evaluated(dataset: Dataset, protocol: Protocol) -> Dataset:
    """Return ``dataset``, or raise unless ``protocol`` was evaluated on its content."""
    here = (dataset.queries_sha256, dataset.qrels_sha256)
    if here != (protocol.queries_sha256, protocol.qrels_sha256):
        problem = f"the {protocol.collection} on this machine is not the one that was evaluated"
        raise UnavailableError(problem)
    return dataset
