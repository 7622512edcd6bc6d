"""``speed``."""

import sys

import msgspec

from bench.cli.command_table import OutputOptions
from bench.requests.evaluating import SpeedRequest
from bench.requests.outcomes import ExitCode
from bench.speed import speed as speed_case
from reports.speed import speed_tables


def speed(request: SpeedRequest, output: OutputOptions) -> int:
    """Print tables and one JSON document.

    Returns:
        The exit code of bad input if the tools disagree on scores: their times are not comparable.
    """
    report = speed_case.speed(request, lambda text: print(f"speed: {text}", file=sys.stderr))
    if not output.json:
        print(speed_tables(report), end="\n\n")
    print(msgspec.json.encode(report).decode())
    return ExitCode.OK if all(race.agree for race in report.races) else ExitCode.BAD_INPUT
