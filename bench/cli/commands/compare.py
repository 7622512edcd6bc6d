"""``compare`` shows which model is better, by how much, and on which queries.

``leaderboard`` shows stored results side by side, as a table, page, CSV or JSON.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from bench.boards.build import BoardFilter, build_leaderboard, select_results
from bench.boards.leaderboard_record import Leaderboard
from bench.boards.rows import find_distinct_results, group_by_column
from bench.cli.commands.common import make_resampling, make_workspace, refuse_duplicates
from bench.cli.options.commands import CompareOptions, LeaderboardOptions
from bench.cli.terminal import as_json, print_json, print_result
from bench.comparing.changed_queries import (
    ChangedQueries,
    check_scores_against_rankings,
    confirm_evaluated,
    find_changed_queries,
    open_evaluated_dataset,
)
from bench.comparing.compare import ComparedModel, Comparison, ComparisonSettings
from bench.comparing.compare import compare as compare_entrants
from bench.comparing.transfer import TrainingSequence, measure_forgetting
from bench.evaluation.judging import suites_inner_first
from bench.evaluation.pipeline import OpenDataset, evaluate_run
from bench.evaluation.result_record import Evaluation
from bench.evaluation.runs import read_run_file
from bench.outcomes import ExitCode
from bench.result_store.find import choose_results, expand_collections, find_named
from bench.result_store.result import RESULT_FILE
from bench.workspace import Workspace
from datasets_cfg.catalogue import is_suite, user_folder
from datasets_cfg.dataset import name_in_results
from foundation.errors import BenchError
from foundation.locations import parse_location
from reports.comparison import changes_table, comparison_table, legend
from reports.leaderboard import markdown, page, scores
from reports.training import forgetting_markdown
from retrievers.models.card import all_cards

ResultsByName = Mapping[str, Sequence[Evaluation]]  # results by what was typed; run files have none


def compare(options: CompareOptions) -> int:
    """Print a table per pair of models, then the queries that changed most.

    Args:
        options: parsed options of the command.
    """
    if len(options.names) < 2:
        raise BenchError("compare needs two models or more", "python -m bench compare minilm bm25")
    refuse_duplicates(options.names)
    workspace = make_workspace(options.common)
    opened = _open_judgements(options, workspace)
    found = {
        name: () if opened and _is_run_file(name) else find_named(name, *options.results)
        for name in options.names
    }
    on = [opened.name] if opened else _resolve_names(options.on, found, workspace)
    if options.sequence:
        return _print_transfer(options, found, on, workspace)
    models = _compared_models(options, opened, found, on, workspace)
    comparing = ComparisonSettings(
        measure=options.measure,
        force=options.force,
        collections=on or None,
        suites=suites_inner_first(options.on) if options.on else None,
        resampling=make_resampling(options.resampling),
    )
    comparisons = compare_entrants(models, comparing)
    changes = _find_changes(comparisons, models, opened, options.changed, workspace)
    if options.common.json:
        summary = {"resampling": comparing.resampling, "comparisons": comparisons}
        print_json({**summary, "changed": list(changes)})
        return ExitCode.OK
    for comparison in comparisons:
        print(comparison_table(comparison), end="\n\n")
    print(legend(comparing.resampling), flush=True)
    for change in changes:
        print(f"\n{changes_table(change)}", flush=True)
    return ExitCode.OK


def _open_judgements(options: CompareOptions, workspace: Workspace) -> OpenDataset | None:
    """Open the collection that scores run files, with its documents only if texts are shown."""
    if not options.dataset:
        return None
    opened = workspace.open_judgements(options.dataset, options.split)
    if options.changed:
        return replace(opened, dataset=workspace.dataset(options.dataset, options.split))
    return opened


def _is_run_file(name: str) -> bool:
    """Return True for a file or pipe, False for a folder or a stored result."""
    path = Path(name)
    return path.exists() and not path.is_dir() and path.name != RESULT_FILE


def _resolve_names(typed: Sequence[str], found: ResultsByName, workspace: Workspace) -> list[str]:
    """Return the names of the collections of ``--on`` as results contain them.

    A collection of the user is given by the name in its results or by its folder.
    """
    known = {stored.collection for results in found.values() for stored in results}
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


def _compared_models(
    options: CompareOptions,
    opened: OpenDataset | None,
    found: ResultsByName,
    on: Sequence[str],
    workspace: Workspace,
) -> list[ComparedModel]:
    """Return the models in the order typed, under the shortest names that are unique."""
    results_of: dict[str, Mapping[str, Evaluation]] = {}
    short: dict[str, str] = {}
    for name, results in found.items():
        if opened and not results:
            results_of[name] = {opened.name: _score_run_file(Path(name), opened, options)}
            short[name] = "_".join(Path(name).name.split(".trec")[0].split())
        else:
            chosen = choose_results(name, results, on or None)
            check_scores_against_rankings(chosen.values(), workspace)
            results_of[name] = chosen
            models = {stored.result.model for stored in chosen.values()}
            is_folder_of_one = len(models) == 1 and parse_location(name).exists()
            short[name] = models.pop() if is_folder_of_one else name
    once = [label for label in short.values() if list(short.values()).count(label) == 1]
    shown = {name: label if label in once else name for name, label in short.items()}
    return [ComparedModel(shown[name], results_of[name]) for name in found]


def _score_run_file(path: Path, opened: OpenDataset, options: CompareOptions) -> Evaluation:
    """Score a run file by the collection's own protocol, as ``score`` does."""
    wanted = None if options.measure is None else [options.measure]
    file = read_run_file(path)
    done = evaluate_run(
        *(file.run, path.name, file.sha256, opened.dataset),
        *(wanted, options.depth, opened.official),
    )
    if done.scores.unanswered:
        print(
            f"warning: {done.scores.unanswered:,} of {done.result.queries:,} queries of "
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
                protocol = a.result.protocol
                shown = (
                    confirm_evaluated(given.dataset, protocol)
                    if given
                    else open_evaluated_dataset(protocol, workspace)
                )
                yield find_changed_queries(names, (a, b), row.measure, changed, shown)


def _print_transfer(
    options: CompareOptions, found: ResultsByName, also: Sequence[str], workspace: Workspace
) -> int:
    """Print backward and forward transfer between the collections of successive trainings."""
    trained = _resolve_names(options.sequence, found, workspace)
    refuse_duplicates([*trained, *also])
    models = _compared_models(options, None, found, [*trained, *also], workspace)
    extra = len(models) - len(trained)
    if extra not in (0, 1):
        raise BenchError(
            f"{len(models)} models do not match {len(trained)} collections of --sequence",
            "name one collection per model, in training order; the start of the training may come "
            "first, and other collections go after --on",
        )
    sequence = TrainingSequence(models[extra:], trained, also, models[0] if extra else None)
    matrix = measure_forgetting(sequence, options.measure, make_resampling(options.resampling))
    return print_result(options.common.json, matrix, forgetting_markdown(matrix))


FORMATS: dict[str, Callable[[Leaderboard, str], str]] = {
    "markdown": lambda board, measure: markdown(board, measure) + "\n",
    "csv": lambda board, measure: scores(board, measure).csv(),
    "html": page,
    "json": lambda board, measure: as_json(board) + "\n",
}


def leaderboard(options: LeaderboardOptions) -> int:
    """Print stored results side by side in the chosen format.

    Args:
        options: parsed options of the command.
    """
    form = "json" if options.common.json else options.format
    board_filter = BoardFilter(
        suite=options.suite,
        measure=options.measure,
        every_measure=form == "html",
        published=options.published,
    )
    shown = select_results(find_distinct_results(*options.results), board_filter)
    check_scores_against_rankings(shown, make_workspace(options.common))
    with tqdm(desc="resampling", total=len(group_by_column(shown)), unit=" collections") as bar:
        resampling = make_resampling(options.resampling)
        board = build_leaderboard(shown, all_cards(), board_filter, resampling, bar.update)
    print(FORMATS[form](board, options.measure), end="")
    return ExitCode.OK
