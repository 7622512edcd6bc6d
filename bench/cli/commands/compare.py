"""``compare`` and ``leaderboard``."""

from collections.abc import Callable

from attrs import evolve
from tqdm import tqdm

from bench.boards.leaderboard import leaderboard as build_leaderboard
from bench.boards.leaderboard_record import Leaderboard
from bench.cli.command_table import OutputOptions
from bench.cli.terminal import as_json, print_json, print_result
from bench.comparing import comparison
from bench.requests.deciding import CompareRequest, LeaderboardRequest
from bench.requests.outcomes import ExitCode
from reports.comparison import changes_table, comparison_table, legend
from reports.leaderboard import markdown, page, scores
from reports.training import forgetting_markdown


def compare(request: CompareRequest, output: OutputOptions) -> int:
    """Print a table per pair of models and the queries that changed most, or the transfer."""
    report = comparison.compare(request)
    if report.transfer:
        return print_result(output.json, report.transfer, forgetting_markdown(report.transfer))
    if output.json:
        summary = {"resampling": report.resampling, "comparisons": report.comparisons}
        print_json({**summary, "changed": report.changed})
        return ExitCode.OK
    tables = [*map(comparison_table, report.comparisons), legend(report.resampling)]
    print("\n\n".join([*tables, *map(changes_table, report.changed)]))
    return ExitCode.OK


FORMATS: dict[str, Callable[[Leaderboard, str], str]] = {
    "markdown": lambda board, measure: markdown(board, measure) + "\n",
    "csv": lambda board, measure: scores(board, measure).csv(),
    "html": page,
    "json": lambda board, measure: as_json(board) + "\n",
}


def leaderboard(request: LeaderboardRequest, output: OutputOptions) -> int:
    """Print stored results side by side in the chosen format."""
    form = "json" if output.json else output.format
    with tqdm(desc="resampling", unit=" collections") as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done)

        board = build_leaderboard(evolve(request, every_measure=form == "html"), show)
    print(FORMATS[form](board, request.measure), end="")
    return ExitCode.OK
