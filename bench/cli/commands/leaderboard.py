"""``leaderboard`` shows stored results side by side, as a table, page, CSV or JSON."""

from collections.abc import Callable

from tqdm import tqdm

from bench.boards.build import BoardFilter, build_leaderboard, select_results
from bench.boards.records import Leaderboard
from bench.boards.rows import find_distinct_results, group_by_column
from bench.cli.commands.common import make_resampling, make_workspace
from bench.cli.options.commands import LeaderboardOptions
from bench.cli.terminal import as_json
from bench.comparing.changed_queries import check_scores_against_rankings
from bench.outcomes import ExitCode
from reports.leaderboard import markdown, page, scores
from retrievers.models.card import all_cards

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
