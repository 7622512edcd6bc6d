"""``leaderboard``: stored results side by side, as a table or as a site."""

import sys
from pathlib import Path

from tqdm import tqdm

from bench.boards.assembly import Choice, assemble, chosen
from bench.boards.records import Board
from bench.boards.rows import columns, results_in
from bench.cli.commands.common import resampling_of
from bench.cli.early_checks import check_out
from bench.cli.options.decide import LeaderboardOptions
from bench.cli.terminal import print_json
from bench.outcomes import ExitCode
from bench.results.location import Place, filling
from foundation.errors import BenchError
from reports.leaderboard import latex, markdown, scores
from reports.pages import LIST, check_free, write_site
from reports.plots.leaderboard import pictures
from reports.plots.style import can_plot
from retrievers.models.card import all_cards

TABLES = {
    "markdown": markdown,
    "csv": lambda board, measure: scores(board, measure).csv(),
    "latex": latex,
}


def leaderboard(options: LeaderboardOptions) -> int:
    """``leaderboard``: stored results side by side, as a table or as a site."""
    kind = "json" if options.output.json else options.format
    if kind == "html":
        _check_place(options.out)
    board = _board(options, kind)
    if kind == "html":
        _write(board, options)
    elif kind == "json":
        print_json(board)
    else:
        print(TABLES[kind](board, options.measure), end="" if kind != "markdown" else "\n")
    return ExitCode.OK


def _check_place(out: Place) -> None:
    check_out(out)
    if isinstance(out, Path):
        check_free(out)
    elif out.exists() and not (out / LIST).exists():
        raise BenchError(f"{out} holds other files than a leaderboard", "name a new one with --out")


def _board(options: LeaderboardOptions, kind: str) -> Board:
    stored = results_in(*options.results)
    site = kind == "html"
    pairs = tuple((a, b) for a, b in options.pair)
    published = None if options.published is None else tuple(options.published)
    choice = Choice(
        suite=options.suite,
        measure=options.measure,
        every_measure=site,
        neighbours=site,
        pairs=pairs,
        published=published,
    )
    resampling = resampling_of(options.resampling)
    shown = chosen(stored, choice)
    with tqdm(desc="resampling", total=len(columns(shown)), unit=" collections") as bar:
        return assemble(shown, all_cards(), choice, resampling, bar.update)


def _write(board: Board, options: LeaderboardOptions) -> None:
    drawn = pictures(board, options.measure)
    if not can_plot():
        print("no plots: pip install 'retrieval-bench[plots]'", file=sys.stderr)
        drawn = iter(())
    with filling(options.out, LIST) as folder:
        index = write_site(board, folder, options.measure, drawn)
    print(options.out / index.name)
    print(
        f"{len(board.rows)} models on {len(board.columns)} collections: open it in a browser",
        file=sys.stderr,
    )
