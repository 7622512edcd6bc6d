"""Options of the commands about checkpoints of a training: ``watch``, ``forgetting``."""

import argparse
import math
from typing import Any

from bench.cli.arguments.shared import (
    add_command,
    device_option,
    local_path,
    memory_option,
    mismatch_option,
    place_options,
    positive,
    recipe_options,
    resampling_options,
    results_option,
)

WATCH_EXAMPLES = """\
examples:
  python -m bench watch runs/retromae --like retromae --on beir/nfcorpus --split dev
  python -m bench watch runs/retromae --like retromae --on beir/nfcorpus beir/fiqa --once
  python -m bench watch runs/minilm --on beir/scifact --select half --until 20000

A checkpoint is evaluated when it is complete and no file of it changes any more. The ledger and
the curve lie in DIR/watch (--out); a second watch goes on where the first one ended.
"""

FORGETTING_EXAMPLES = """\
examples:
  python -m bench forgetting ckpt-bio ckpt-finance --like retromae --base retromae-pretrained \\
      --on beir/nfcorpus beir/fiqa --also beir/scidocs
  python -m bench forgetting after-bio after-finance --stored --on beir/nfcorpus beir/fiqa

The first checkpoint was trained on the first collection, the second went on from it on the second
one, and so on. --also names collections that none was trained on.
"""


def add_watch(commands: Any) -> None:
    """A running training."""
    watch = add_command(
        commands,
        "watch",
        "evaluate the checkpoints of a running training as they are completed",
        WATCH_EXAMPLES,
        folders=("results", "out"),
    )
    watch.add_argument(
        "folder", type=local_path, metavar="DIR", help="where checkpoint-N folders appear"
    )
    watch.add_argument(
        "--on", nargs="+", required=True, metavar="NAME", help="collections, suites or folders"
    )
    _ending(watch)
    group = watch.add_argument_group("choosing the best")
    group.add_argument(
        "--select",
        choices=("all", "half"),
        default="all",
        help="all: p adjusted for every pair of checkpoints; half: choose on half of the queries "
        "and report on the other (default: all)",
    )
    group.add_argument(
        "--baseline", metavar="NAME", help="a model with stored results, compared with the others"
    )
    resampling_options(group)
    _measuring(watch)
    watch.add_argument(
        "--out", type=local_path, metavar="DIR", help="ledger and curve (default: DIR/watch)"
    )
    watch.add_argument(
        "--keep-vectors",
        action="store_true",
        help="of each checkpoint; by default they are removed when it is evaluated",
    )


def _ending(watch: argparse.ArgumentParser) -> None:
    group = watch.add_argument_group("when to look, and when to end (Ctrl-C ends at any time)")
    group.add_argument("--once", action="store_true", help="evaluate what is there, and end")
    group.add_argument(
        "--every", type=seconds, default=60.0, metavar="S", help="seconds between looks (60)"
    )
    group.add_argument(
        "--until", type=positive, metavar="STEP", help="end after a checkpoint of this step"
    )
    group.add_argument(
        "--stop-after",
        type=seconds,
        metavar="S",
        help="end when no checkpoint was completed for S seconds",
    )


def _measuring(command: argparse.ArgumentParser) -> None:
    results_option(command)
    command.add_argument("--measure", metavar="NAME", help="instead of the main measure")
    command.add_argument("--depth", type=positive, metavar="N", help="documents per query")
    command.add_argument("--split", help="instead of the collection's")
    mismatch_option(command)
    device_option(command)
    memory_option(command)
    recipe_options(command)
    place_options(command)


def add_forgetting(commands: Any) -> None:
    """What a sequence of trainings keeps and loses."""
    forgetting = add_command(
        commands,
        "forgetting",
        "checkpoints of successive trainings by collections: backward and forward transfer",
        FORGETTING_EXAMPLES,
        files=("plot",),
    )
    forgetting.add_argument(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="in the order trained: folders, names, or results with --stored",
    )
    forgetting.add_argument(
        "--on",
        nargs="+",
        required=True,
        metavar="NAME",
        help="collection that each checkpoint was trained on, in the same order",
    )
    forgetting.add_argument(
        "--also", nargs="+", default=[], metavar="NAME", help="further collections"
    )
    forgetting.add_argument(
        "--base", metavar="MODEL", help="what the first training started from: forward transfer"
    )
    forgetting.add_argument(
        "--stored", action="store_true", help="names are of stored results; evaluate nothing"
    )
    forgetting.add_argument(
        "--format", choices=("markdown", "csv"), default="markdown", help="default: markdown"
    )
    forgetting.add_argument(
        "--plot", type=local_path, metavar="FILE", help="heat map, as SVG and PNG"
    )
    resampling_options(forgetting)
    _measuring(forgetting)


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return found
