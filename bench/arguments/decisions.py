"""Options of the commands that read stored results: ``compare``, ``leaderboard``."""

from pathlib import Path
from typing import Any

from bench.arguments.shared import add_command, not_negative, place_options, positive

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
    compare.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where results are (default: results)",
    )
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
    compare.add_argument(
        "--resamples", type=positive, default=9_999, metavar="N", help="default: 9999"
    )
    compare.add_argument("--seed", type=not_negative, default=0, metavar="N", help="default: 0")
    group = compare.add_argument_group("run files")
    group.add_argument("--dataset", metavar="NAME", help="collection or folder that scores them")
    group.add_argument("--depth", type=positive, metavar="N", help="documents per query")
    group.add_argument("--split", help="instead of the collection's")
    group.add_argument(
        "--allow-mismatch",
        action="store_true",
        help="go on though counts differ from the published ones; marked",
    )
    place_options(compare)


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
    board.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="where results are, also in folders below (default: results)",
    )
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
    board.add_argument(
        "--resamples", type=positive, default=9_999, metavar="N", help="default: 9999"
    )
    board.add_argument("--seed", type=not_negative, default=0, metavar="N", help="default: 0")
