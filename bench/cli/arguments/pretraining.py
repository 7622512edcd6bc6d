"""Options of ``pretrain``."""

import argparse
from typing import Any

from bench.cli.arguments.shared import (
    add_command,
    local_path,
    place_options,
    positive,
    training_options,
    work_options,
)
from retrievers.training.pretrain.preset import preset_names

EXAMPLES = """\
examples:
  python -m bench pretrain retromae-small --on stdlib-code --out models/retromae-code
  python -m bench pretrain retromae --start path/to/bert --on msmarco/dev --out models/retromae
  python -m bench pretrain my-preset.toml --on beir/scifact beir/nfcorpus --out models/mine
  accelerate launch --num_processes 8 -m bench pretrain retromae --on msmarco/dev --out models/r
  python -m bench run stdlib-code --model models/retromae-code        the finished folder is a model

The same command goes on where it was interrupted.
"""


def add_pretrain(commands: Any) -> None:
    """Make a checkpoint from texts."""
    pretrain = add_command(
        commands,
        "pretrain",
        "pre-train an encoder on the corpora of collections",
        EXAMPLES,
        folders=("out",),
    )
    pretrain.add_argument(
        "preset", metavar="PRESET", help=f"{', '.join(preset_names())}, or a .toml file"
    )
    pretrain.add_argument(
        "--on",
        nargs="+",
        required=True,
        metavar="NAME",
        help="collections, suites or folders; only their documents are read",
    )
    pretrain.add_argument(
        "--out", type=local_path, required=True, metavar="DIR", help="folder of the checkpoint"
    )
    preset_options(pretrain)
    work_options(pretrain)
    place_options(pretrain)


def preset_options(pretrain: argparse.ArgumentParser) -> None:
    """Options whose names are those of the preset's fields, in `CHANGES`."""
    group = pretrain.add_argument_group("instead of the preset's")
    group.add_argument("--start", metavar="MODEL", help="card, folder or Hub id to start from")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, metavar="N")
    length.add_argument("--epochs", type=float, metavar="X", help="how often each text is read")
    group.add_argument("--batch-size", type=positive, metavar="N", help="texts of a forward pass")
    group.add_argument("--accumulate", type=positive, metavar="N", help="forward passes of a step")
    group.add_argument("--max-tokens", type=positive, metavar="N", help="where texts are cut")
    training_options(group, "objective.decoding=basic")
