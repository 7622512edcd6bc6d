"""``list``: what there is."""

from bench.cli import describe as catalogue
from bench.cli.commands.common import print_rows
from bench.cli.options.data import ListOptions
from bench.exit_codes import ExitCode


def listing(options: ListOptions) -> int:
    """Names with a line about each."""
    rows = [{"name": name, "about": about} for name, about in catalogue.listing(options.what)]
    print_rows(rows, options.output.json)
    return ExitCode.OK
