"""Options of ``ablate``."""

from typing import Any

from bench.cli.arguments.shared import (
    add_command,
    device_option,
    not_negative,
    place_options,
    plan_options,
    resampling_options,
)

EXAMPLES = """\
examples:
  python -m bench ablate objectives --variant small --dry-run    what it would do
  python -m bench ablate objectives --variant small              on two cores
  python -m bench ablate retromae-table6.toml                    as published
  python -m bench ablate my-grid.toml --seeds 0 1 2 3 4          a file of one's own

Exit code 4: a cell failed and is a gap; the same command tries it again.
"""


def add_ablate(commands: Any) -> None:
    """A grid of trainings, as a table."""
    ablate = add_command(
        commands,
        "ablate",
        "change one field a row, train and evaluate with several seeds, and say what it did",
        EXAMPLES,
        folders=("out",),
    )
    plan_options(ablate, "ablations", "cells")
    ablate.add_argument(
        "--seeds", nargs="+", type=not_negative, metavar="N", help="instead of the file's"
    )
    ablate.add_argument(
        "--no-rehearsal",
        action="store_true",
        help="do not first take two steps of every row's trainings",
    )
    device_option(ablate)
    resampling_options(ablate.add_argument_group("intervals of one seed"))
    place_options(ablate)
