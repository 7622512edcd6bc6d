"""Options of the command that times: ``speed``."""

import argparse
import math
from typing import Any

from bench.cli.arguments.shared import (
    add_command,
    device_option,
    local_path,
    model_options,
    place_options,
    positive,
)

PARTS = ("phases", "encode", "latency", "indexes", "growth")
TOOLS = ("sentence-transformers", "beir", "mteb")

SPEED_EXAMPLES = """\
examples:
  python -m bench speed --model minilm --plots plots
  python -m bench speed --model minilm --parts encode --against sentence-transformers
  python -m bench speed beir/nfcorpus --model minilm --parts --against mteb beir

The last line of stdout is one JSON document. Timings compare only within one machine.
"""


def add_speed(commands: Any) -> None:
    """What a model costs on this machine."""
    speed = add_command(
        commands,
        "speed",
        "how fast a model is on this machine, alone and against other tools",
        SPEED_EXAMPLES,
        folders=("plots",),
    )
    speed.add_argument(
        "names", nargs="*", metavar="NAME", help="collections to race on, from start to scores"
    )
    speed.add_argument(
        "--against",
        nargs="+",
        choices=TOOLS,
        default=[],
        metavar="TOOL",
        help=f"other tools that are installed here: {', '.join(TOOLS)}",
    )
    _amounts(speed)
    speed.add_argument("--split", help="instead of the collection's")
    speed.add_argument(
        "--plots", type=local_path, metavar="DIR", help="draw PNG and SVG files there"
    )
    speed.add_argument(
        "--history",
        type=local_path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="earlier outputs of speed, oldest first, for the plot of the history",
    )
    device_option(speed)
    model_options(speed, required=True)
    place_options(speed)


def _amounts(speed: argparse.ArgumentParser) -> None:
    """What is measured, and how long."""
    group = speed.add_argument_group("amounts")
    group.add_argument(
        "--parts",
        nargs="*",
        choices=PARTS,
        default=list(PARTS),
        metavar="PART",
        help=f"of {', '.join(PARTS)} (default: all; with none, only the race)",
    )
    for name, default, help_ in (
        ("--repeats", 5, "samples of each timing, after one that is not counted"),
        ("--rounds", 1, "of the race: every tool once in each"),
        ("--rows", 30_000, "vectors that are searched"),
    ):
        said = f"{help_} (default: {default})"
        group.add_argument(name, type=positive, default=default, metavar="N", help=said)
    group.add_argument(
        "--seconds",
        type=_seconds,
        default=3.0,
        metavar="S",
        help="about how long one sample of encoding takes (default: 3)",
    )
    group.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="race on the first N documents only: a quick look",
    )


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return found
