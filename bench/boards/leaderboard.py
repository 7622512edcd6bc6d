"""Leaderboard of stored results."""

from collections.abc import Callable

from bench.boards.build import build_leaderboard, select_results
from bench.boards.leaderboard_record import Leaderboard
from bench.boards.rows import find_distinct_results, group_by_column
from bench.comparing.comparison import check_scores_against_rankings
from bench.comparing.statistics import Resampling
from bench.requests.deciding import LeaderboardRequest
from bench.runner.workspace import open_workspace
from retrievers.models.card import all_cards


def leaderboard(
    request: LeaderboardRequest, advance: Callable[[int, int], None] = lambda done, total: None
) -> Leaderboard:
    """Build the leaderboard of the results in some folders, whose rankings are scored again.

    Args:
        request: what to show.
        advance: called after each column with 1 and the number of columns.

    Raises:
        BenchError: there are no results, one is damaged or contradicts its ranking, or a name is
            unknown.
    """
    shown = select_results(find_distinct_results(*request.results), request)
    check_scores_against_rankings(shown, open_workspace(request))
    total = len(group_by_column(shown))
    resampling = Resampling(request.resamples, request.seed)
    return build_leaderboard(
        shown, all_cards(), request, resampling, lambda done: advance(done, total)
    )
