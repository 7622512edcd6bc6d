"""Options of the commands that read stored results: ``compare``, ``check``, ``leaderboard``."""

import argparse
from pathlib import Path
from typing import Any

from bench.arguments.shared import (
    add_command,
    device_option,
    memory_option,
    mismatch_option,
    place_options,
    positive,
    recipe_options,
    resampling_options,
    results_option,
    share,
)

CHECK_EXAMPLES = """\
examples:
  python -m bench check path/to/ckpt --like retromae --baseline retromae --on beir
  python -m bench check path/to/ckpt --like minilm --baseline minilm --rule margin
  python -m bench check minilm --baseline published --expect-same

`bench/decisions/verdicts.py` has the table from what is found to the exit code.
"""

COMPARE_EXAMPLES = """\
examples:
  python -m bench compare minilm bm25
  python -m bench compare minilm bm25 --on beir --changed 3
  python -m bench compare minilm@dtype=float16 minilm@dtype=float32
  python -m bench compare one.trec other.trec --dataset beir/scifact
"""


def add_compare(commands: Any) -> None:
    """Stored results or run files, beside each other."""
    compare = add_command(
        commands,
        "compare",
        "which model is better, by how much, and on which queries",
        COMPARE_EXAMPLES,
    )
    compare.add_argument(
        "names",
        nargs="+",
        metavar="MODEL",
        help="models with stored results, MODEL@FIELD=VALUE, folders of results, or run files",
    )
    results_option(compare)
    compare.add_argument(
        "--on", nargs="+", default=[], metavar="NAME", help="only these collections or suites"
    )
    compare.add_argument(
        "--measure", metavar="NAME", help="instead of the main measure of each collection"
    )
    compare.add_argument(
        "--force", action="store_true", help="compare across different protocols; marked"
    )
    compare.add_argument(
        "--changed",
        type=positive,
        default=0,
        metavar="N",
        help="show the N queries on which each model of a pair is better by most",
    )
    resampling_options(compare)
    group = compare.add_argument_group("run files")
    group.add_argument("--dataset", metavar="NAME", help="collection or folder that scores them")
    group.add_argument("--depth", type=positive, metavar="N", help="documents per query")
    group.add_argument("--split", help="instead of the collection's")
    mismatch_option(group)
    place_options(compare)


def add_check(commands: Any) -> None:
    """The gate of a release."""
    check = add_command(
        commands,
        "check",
        "may this checkpoint ship? exit 0 yes, 1 regression, 3 inconclusive, 4 missing, 5 drift",
        CHECK_EXAMPLES,
    )
    check.add_argument("checkpoint", metavar="CHECKPOINT", help="name, card file, folder or Hub id")
    check.add_argument(
        "--baseline",
        required=True,
        metavar="NAME",
        help="model with stored results, MODEL@FIELD=VALUE, folder of results, or `published`",
    )
    check.add_argument(
        "--anchor", metavar="NAME", help="a fixed older release too; the worse outcome decides"
    )
    check.add_argument(
        "--on",
        nargs="+",
        default=[],
        metavar="NAME",
        help="collections, suites or folders (default: the baseline's)",
    )
    _terms(check)
    check.add_argument("--markdown", type=Path, metavar="FILE", help="for a pull request")
    check.add_argument("--junit", type=Path, metavar="FILE", help="JUnit XML")
    results_option(check)
    check.add_argument("--measure", metavar="NAME", help="instead of the main measure")
    check.add_argument("--depth", type=positive, metavar="N", help="documents per query")
    check.add_argument("--split", help="instead of the collection's")
    mismatch_option(check)
    device_option(check)
    memory_option(check)
    recipe_options(check)
    place_options(check)


def _terms(check: argparse.ArgumentParser) -> None:
    """How it is decided."""
    group = check.add_argument_group("terms")
    group.add_argument(
        "--rule",
        choices=("loss", "margin"),
        default="loss",
        help="fail on a significant loss, or unless a loss beyond the margin is ruled out",
    )
    group.add_argument(
        "--margin",
        type=share,
        default=0.01,
        metavar="M",
        help="loss of the mean that is allowed (default: 0.01)",
    )
    group.add_argument(
        "--floor",
        type=share,
        default=0.1,
        metavar="F",
        help="largest loss of any collection that is allowed (default: 0.1)",
    )
    group.add_argument(
        "--expect-same",
        action="store_true",
        help="the checkpoint claims to be the baseline: a difference either way is drift",
    )
    group.add_argument(
        "--tolerance",
        type=share,
        default=0.0005,
        metavar="T",
        help="of --expect-same; published scores have their own (default: 0.0005)",
    )
    resampling_options(group)


def add_leaderboard(commands: Any) -> None:
    """Stored results as tables or pages."""
    board = add_command(
        commands,
        "leaderboard",
        "stored results side by side, as a table or as a site",
        "examples:\n"
        "  python -m bench leaderboard --format html\n"
        "  python -m bench leaderboard --suite beir --format latex\n",
    )
    results_option(board)
    board.add_argument(
        "--format",
        choices=("markdown", "csv", "latex", "json", "html"),
        default="markdown",
        help="on stdout; html is a folder of pages (default: markdown)",
    )
    board.add_argument(
        "--out",
        type=Path,
        default=Path("leaderboard"),
        metavar="DIR",
        help="folder of the pages (default: leaderboard)",
    )
    board.add_argument(
        "--suite", default="", metavar="NAME", help="only its collections, its mean even as a gap"
    )
    board.add_argument(
        "--measure", default="", metavar="NAME", help="instead of the main one of each collection"
    )
    board.add_argument(
        "--pair",
        nargs=2,
        action="append",
        default=[],
        metavar="ROW",
        help="compare these two rows as well as neighbours; repeatable",
    )
    resampling_options(board)
