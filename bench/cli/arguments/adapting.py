"""Options of ``adapt``."""

import argparse
from typing import Any

from bench.cli.arguments.pretraining import preset_options
from bench.cli.arguments.shared import (
    add_command,
    local_path,
    memory_option,
    place_options,
    plan_options,
    positive,
    resampling_options,
    work_options,
)

EXAMPLES = """\
examples:
  python -m bench adapt mlm-small --on beir/nfcorpus beir/scifact --method das --out models/das
  python -m bench adapt mlm --start path/to/bert --on beir/nfcorpus beir/fiqa --method ewc \\
      --steps 10000 --out models/ewc
  python -m bench adapt retromae-small --on beir/nfcorpus beir/fiqa --out models/plain

The same command goes on where it was interrupted; collections may be added at the end of --on.
At the end it says what to type for the forgetting matrix.
"""

COMPOSE_EXAMPLES = """\
examples:
  python -m bench compose average models/a models/b --out models/mean
  python -m bench compose average models/a models/b --weights 3 1 --out models/mean
  python -m bench compose stack models/domain models/task --out models/both
  python -m bench run beir/scifact --model models/mean             the folder is a model

average  the mean of the weights: one adapter, as fast as each (AdapterSoup); of one method and size
outputs  all side by side: each layer adds up their outputs by fixed weights; of AdapterHub
stack    the first at the bottom, such as a domain's under a task's (MAD-X); of AdapterHub

All are of one base, which is not read again. A folder is what `finetune` with an adapter or
`adapt --method adapter` wrote, or an adapter inside one. Weights that are learned:
  python -m bench finetune adapter-small --model minilm --on beir/nfcorpus --out models/fused \\
      --set 'adapter={method="fusion", over=["models/a", "models/b"]}'
"""

CONTINUAL_EXAMPLES = """\
examples:
  python -m bench continual three-domains --dry-run               what it would do
  python -m bench continual three-domains --variant small         on two cores
  python -m bench continual my-sequence.toml --out sequences      a file of one's own

Each method of the file learns the collections one after the other, as `adapt` does, and every
checkpoint is evaluated on all of them when it is there. The report has a table of the methods and
the forgetting matrix of each. The same command goes on where it was interrupted.
"""


def add_continual(commands: Any) -> None:
    """Ways to learn a sequence of collections, side by side."""
    continual = add_command(
        commands,
        "continual",
        "compare ways to learn one collection after the other: what each gains and forgets",
        CONTINUAL_EXAMPLES,
        folders=("out",),
    )
    plan_options(continual, "sequences", "models, results")
    memory_option(continual)
    resampling_options(continual.add_argument_group("intervals"))
    work_options(continual)
    place_options(continual)


def add_compose(commands: Any) -> None:
    """Trained adapters as one."""
    compose = add_command(
        commands,
        "compose",
        "put trained adapters of one base together",
        COMPOSE_EXAMPLES,
        folders=("out",),
    )
    compose.add_argument("how", choices=("average", "outputs", "stack"))
    compose.add_argument(
        "folders", nargs="+", type=local_path, metavar="ADAPTER", help="folders of trained adapters"
    )
    compose.add_argument(
        "--weights",
        nargs="+",
        type=float,
        metavar="X",
        help="one for each adapter, of any sum (default: equal ones); not of a stack",
    )
    compose.add_argument(
        "--out", type=local_path, required=True, metavar="DIR", help="folder of what comes out"
    )


def add_adapt(commands: Any) -> None:
    """One domain after the other."""
    adapt = add_command(
        commands,
        "adapt",
        "go on pre-training on one collection after the other, a checkpoint for each",
        EXAMPLES,
        folders=("out",),
    )
    adapt.add_argument(
        "preset", metavar="PRESET", help="of `pretrain`, or a .toml file; for each collection"
    )
    adapt.add_argument(
        "--on",
        nargs="+",
        required=True,
        metavar="NAME",
        help="collections, suites or folders, in the order that they are learnt",
    )
    adapt.add_argument(
        "--out", type=local_path, required=True, metavar="DIR", help="folder of the checkpoints"
    )
    _method(adapt)
    preset_options(adapt)
    work_options(adapt)
    place_options(adapt)


def _method(adapt: argparse.ArgumentParser) -> None:
    group = adapt.add_argument_group("against forgetting")
    group.add_argument(
        "--method",
        choices=("plain", "ewc", "das", "adapter"),
        default="plain",
        help="plain: nothing; ewc: hold the weights that earlier collections depend on; das: spare "
        "the units that they and what was known before depend on; adapter: one for each, "
        "on the frozen start (default: plain)",
    )
    group.add_argument(
        "--measured",
        type=positive,
        default=256,
        metavar="N",
        help="texts of a collection that this is measured on (default: 256)",
    )
    group.add_argument(
        "--strength", type=float, default=5_000.0, metavar="X", help="of ewc (default: 5000)"
    )
    group.add_argument(
        "--soften",
        choices=("gradient", "update"),
        default="gradient",
        help="of das: as published, which AdamW largely undoes, or the optimizer's step "
        "(default: gradient)",
    )
    group.add_argument(
        "--adapter",
        default="double_seq_bn",
        metavar="METHOD",
        help="of AdapterHub, for adapter (default: double_seq_bn)",
    )
