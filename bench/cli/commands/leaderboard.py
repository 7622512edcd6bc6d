"""``leaderboard`` shows stored results side by side, as a table, page, CSV or JSON."""

from tqdm import tqdm

from bench.boards.build import BoardFilter, build_leaderboard, select_results
from bench.boards.records import Leaderboard
from bench.boards.rows import find_distinct_results, group_by_column
from bench.cli.commands.common import make_resampling, make_workspace
from bench.cli.options.commands import LeaderboardOptions
from bench.cli.terminal import print_json
from bench.comparing.changed_queries import check_scores_against_rankings
from bench.outcomes import ExitCode
from reports.leaderboard import markdown, page, scores
from retrievers.models.card import all_cards

FORMATS = {
    "markdown": lambda board, measure: markdown(board, measure) + "\n",
    "csv": lambda board, measure: scores(board, measure).csv(),
    "html": page,
}


def leaderboard(options: LeaderboardOptions) -> int:
    """Print stored results side by side in the chosen format.

    Args:
        options: parsed options of the command.
    """
    board = _build_board(options)
    if options.output.json or options.format == "json":
        print_json(board)
    else:
        print(FORMATS[options.format](board, options.measure), end="")
    return ExitCode.OK


def _build_board(options: LeaderboardOptions) -> Leaderboard:
    """Select the results, warn about outdated ones, and compute the leaderboard."""
    board_filter = BoardFilter(
        suite=options.suite,
        measure=options.measure,
        every_measure=options.format == "html" and not options.output.json,
        published=options.published,
    )
    shown = select_results(find_distinct_results(*options.results), board_filter)
    check_scores_against_rankings(shown, make_workspace(options.folders))
    with tqdm(desc="resampling", total=len(group_by_column(shown)), unit=" collections") as bar:
        resampling = make_resampling(options.resampling)
        return build_leaderboard(shown, all_cards(), board_filter, resampling, bar.update)
