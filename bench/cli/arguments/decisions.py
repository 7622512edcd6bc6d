"""Options of the commands that read stored results: ``compare``, ``check``, ``leaderboard``."""

import argparse
import re
from pathlib import Path
from typing import Any

from bench.cli.arguments.shared import (
    add_command,
    device_option,
    local_path,
    memory_option,
    mismatch_option,
    not_negative,
    place_options,
    positive,
    recipe_options,
    resampling_options,
    results_option,
    results_place,
    share,
)

_DECIMAL = r"[0-9]{1,9}(?:\.[0-9]{0,9})?"  # bounded: a pattern that is not takes minutes to fail

CHECK_EXAMPLES = """\
examples:
  python -m bench check path/to/ckpt --like retromae --baseline retromae --on beir
  python -m bench check path/to/ckpt --like minilm --baseline minilm --rule margin
  python -m bench check path/to/ckpt --like minilm --baseline minilm --speed --slower 1.05
  python -m bench check path/to/ckpt --like minilm --baseline minilm --quick --budget 5m
  python -m bench check minilm --baseline published --expect-same

exit codes: 0 may ship, 1 regression, 2 bad input, 3 inconclusive (and always with --quick where no
loss is clear), 4 an evaluation or a baseline is missing, 5 not the checkpoint that it claims to be.
`bench/gate/verdicts.py` has the table from what is found to the exit code. In JUnit XML a
regression is a failure, missing and drift are errors, inconclusive is skipped; each has its word as
type, and first in its message.
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
        folders=("results",),
        files=("markdown", "junit"),
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
        help="collections, suites or folders (default: all that the baseline or the candidate has "
        "results on, or that the baseline was checked on before)",
    )
    _terms(check)
    _first_look(check)
    _speed(check)
    check.add_argument("--markdown", type=local_path, metavar="FILE", help="for a pull request")
    check.add_argument("--junit", type=local_path, metavar="FILE", help="JUnit XML")
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
        help="loss: fail on a significant loss; margin: pass only if a loss beyond --margin is "
        "ruled out",
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


def _first_look(check: argparse.ArgumentParser) -> None:
    """Parts of collections."""
    group = check.add_argument_group("a first look")
    group.add_argument(
        "--quick",
        action="store_true",
        help="on parts of the collections (judged documents, hard candidates of BM25 and of two "
        "stored models, a random sample), by rule loss; never exits 0",
    )
    group.add_argument(
        "--budget",
        type=duration,
        default=300.0,
        metavar="TIME",
        help="of --quick: about how long encoding may take, such as 90s, 5m or 1h (default: 5m)",
    )


def _speed(check: argparse.ArgumentParser) -> None:
    """Beside the baseline, on this machine."""
    group = check.add_argument_group("speed")
    group.add_argument(
        "--speed",
        action="store_true",
        help="time both models by turns here: encoding and answering; part of the decision",
    )
    group.add_argument(
        "--slower",
        type=times,
        default=1.1,
        metavar="X",
        help="times as long as the baseline that is allowed (default: 1.1)",
    )
    group.add_argument(
        "--speed-time",
        type=duration,
        default=30.0,
        metavar="TIME",
        help="how long to measure (default: 30s)",
    )
    group.add_argument(
        "--baseline-model",
        metavar="MODEL",
        help="the baseline's card, folder or Hub id, where its name is none",
    )


def duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``1.5h``."""
    match = re.fullmatch(rf"({_DECIMAL})([smh]?)", text)
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text} is no time like 90s, 5m or 1h")
    return seconds


def times(text: str) -> float:
    """A factor of 1 or more."""
    factor = float(text) if re.fullmatch(_DECIMAL, text) else 0.0
    if factor < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return factor


def add_leaderboard(commands: Any) -> None:
    """Stored results as tables or pages."""
    board = add_command(
        commands,
        "leaderboard",
        "stored results side by side, as a table or as a site",
        "examples:\n"
        "  python -m bench leaderboard --format html\n"
        "  python -m bench leaderboard --format html --pair minilm bm25\n"
        "  python -m bench leaderboard --suite beir --format latex\n"
        "  python -m bench leaderboard --published beir-paper dupmae\n\n"
        "Published scores are in `bench/leaderboard/published`.\n",
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
        type=results_place,
        default=Path("leaderboard"),
        metavar="DIR",
        help="folder or URL of the pages (default: leaderboard)",
    )
    _shown(board)
    resampling_options(board)
    group = board.add_argument_group("places")
    group.add_argument(
        "--data-dir",
        type=local_path,
        metavar="DIR",
        help="where collections lie, for texts of queries (default: $BENCH_DATA)",
    )
    group.add_argument(
        "--cache-dir", type=local_path, metavar="DIR", help="of `run` (default: $BENCH_CACHE)"
    )


def _shown(board: argparse.ArgumentParser) -> None:
    """What a leaderboard shows."""
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
        help="a page that compares these two rows, as neighbours have one; repeatable",
    )
    board.add_argument(
        "--changed",
        type=not_negative,
        default=3,
        metavar="N",
        help="on pages of pairs, queries on which each is better by most (default: 3)",
    )
    board.add_argument(
        "--published",
        nargs="*",
        metavar="NAME",
        help="show what was published of other systems, marked as claims: these tables, `cards` "
        "for models of `list models`, or all",
    )
