"""Options of ``finetune``."""

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
from retrievers.training.finetune.finetune_preset import preset_names

EXAMPLES = """\
examples:
  python -m bench finetune dpr-small --model minilm --on stdlib-code/train --out models/code
  python -m bench finetune dpr-small --model minilm --on beir/nfcorpus --out models/mine
  python -m bench finetune retromae-beir --model models/retromae --on msmarco/dev --out models/r
  python -m bench finetune mined-small --model path/to/bert --like bert --on beir/scifact \\
      --out models/mined --set rounds.1.margin=0.5
  python -m bench run beir/nfcorpus --model minilm models/mine         before and after

The same command goes on where it was interrupted. Training queries that read like the test
queries of these collections (and of --held-out) are left out.
"""


def add_finetune(commands: Any) -> None:
    """Make a retriever from a checkpoint and judged queries."""
    finetune = add_command(
        commands,
        "finetune",
        "fine-tune an encoder on the judged queries of collections",
        EXAMPLES,
        folders=("out",),
    )
    finetune.add_argument(
        "preset", metavar="PRESET", help=f"{', '.join(preset_names())}, or a .toml file"
    )
    finetune.add_argument(
        "--model", required=True, metavar="MODEL", help="card, folder or Hub id to start from"
    )
    finetune.add_argument("--like", metavar="CARD", help="use a plain checkpoint as this card says")
    finetune.add_argument(
        "--on",
        nargs="+",
        required=True,
        metavar="NAME",
        help="collections, suites or folders with a split to train on",
    )
    finetune.add_argument(
        "--split", default="train", help="which judgements are trained on (default: train)"
    )
    finetune.add_argument(
        "--held-out",
        nargs="+",
        default=[],
        metavar="NAME",
        help="further collections whose test queries must not be trained on",
    )
    finetune.add_argument(
        "--out", type=local_path, required=True, metavar="DIR", help="folder of the checkpoint"
    )
    _changes(finetune)
    work_options(finetune)
    place_options(finetune)


def _changes(finetune: argparse.ArgumentParser) -> None:
    """Options whose names are those of the preset's fields, in `CHANGES`."""
    group = finetune.add_argument_group("instead of the preset's")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive, metavar="N", help="of each round")
    length.add_argument("--epochs", type=float, metavar="X", help="how often each query is shown")
    group.add_argument("--batch-size", type=positive, metavar="N", help="queries of a step")
    training_options(group, "loss.temperature=0.02 or rounds.0.depth=50")
