"""``list``: what there is."""

import argparse
from pathlib import Path

from bench.cli import describe as catalogue
from bench.cli.commands.common import print_rows
from bench.exit_codes import ExitCode


def listing(options: argparse.Namespace, cache_dir: Path) -> int:
    """Names with a line about each."""
    rows = [{"name": name, "about": about} for name, about in catalogue.listing(options.what)]
    print_rows(rows, options.json)
    return ExitCode.OK
