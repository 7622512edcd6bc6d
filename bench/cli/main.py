"""The command line: what is typed, and which room answers.

Heavy libraries are imported by the command that needs them, so that ``--help`` and ``list``
answer at once. Tables go to stdout; progress, warnings and errors to stderr.
"""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import platformdirs

from bench.cli.arguments.ablation import add_ablate
from bench.cli.arguments.adapting import add_adapt, add_compose, add_continual
from bench.cli.arguments.data import add_cache, add_fetch, add_list, add_show, add_verify
from bench.cli.arguments.decisions import add_check, add_compare, add_leaderboard
from bench.cli.arguments.evaluation import add_estimate, add_run, add_score
from bench.cli.arguments.finetuning import add_finetune
from bench.cli.arguments.interchange import add_export, add_import, add_merge
from bench.cli.arguments.pretraining import add_pretrain
from bench.cli.arguments.speed import add_speed
from bench.cli.arguments.watching import add_forgetting, add_watch
from bench.cli.early_checks import check_before_work, check_typed
from foundation.printable import shortened

COMMANDS = (
    add_run,
    add_score,
    add_estimate,
    add_compare,
    add_check,
    add_watch,
    add_forgetting,
    add_ablate,
    add_leaderboard,
    add_export,
    add_import,
    add_merge,
    add_speed,
    add_pretrain,
    add_adapt,
    add_continual,
    add_finetune,
    add_compose,
    add_list,
    add_show,
    add_fetch,
    add_verify,
    add_cache,
)

EXAMPLES = """\
examples:
  python -m bench run stdlib-code --model minilm            the embedded default, no download
  python -m bench run beir --model retromae                 the 14 public sets and their mean
  python -m bench run beir/scifact --model path/to/checkpoint --like retromae
  python -m bench score my-run.trec --dataset beir/scifact  anybody's run file, same scoring
  python -m bench list models
"""


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; returns its exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    check_typed(typed)
    options = parser().parse_args(typed)
    _prepare(options)
    check_before_work(options)
    module = importlib.import_module(f"bench.cli.commands.{options.command}")
    command: Callable[[argparse.Namespace, Path], int] = getattr(module, options.command)
    return command(options, cache_dir(options))


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an argument without repeating all of it."""

    def error(self, message: str) -> NoReturn:
        """Print the message, and end with the exit code of bad input."""
        super().error(shortened(message))


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = Parser(
        prog="python -m bench",
        description="Evaluate dense retrievers: from a checkpoint to scores that can be trusted.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return top


def cache_dir(options: argparse.Namespace) -> Path:
    """Where downloads, corpora and vectors are kept."""
    named = getattr(options, "cache_dir", None) or os.environ.get("BENCH_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("retrieval-bench")


def _prepare(options: argparse.Namespace) -> None:
    """Settings that libraries read when they are imported."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)  # some libraries set their own loggers to DEBUG
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[handler])
    logging.addLevelName(logging.WARNING, "warning")
    if options.quiet:
        os.environ["TQDM_DISABLE"] = "1"
    elif not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # a log file is not redrawn
    if getattr(options, "offline", False):
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
