"""``check``."""

import sys

from bench.cli.command_table import OutputOptions
from bench.cli.terminal import print_result
from bench.gate import check as check_case
from bench.gate.check import Scope
from bench.gate.check_record import Sensitivity
from bench.requests.deciding import CheckRequest
from bench.requests.outcomes import RecordedWarnings
from foundation.files import replace_file
from reports.check import describe_sensitivity, junit, markdown


def _announce(candidate: str, scope: Scope, sensitivity: Sensitivity | None) -> None:
    """Print models and collections, and what the queries can show, before hours of encoding."""
    against = " and ".join(f"the {other.role}, {other.name}" for other in scope.references)
    print(f"{candidate} against {against}, on {', '.join(scope.weights)}", file=sys.stderr)
    if scope.left_out:
        print(f"left out by --on: {', '.join(scope.left_out)}", file=sys.stderr)
    if sensitivity:
        print(describe_sensitivity(sensitivity), file=sys.stderr)


def check(request: CheckRequest, output: OutputOptions) -> int:
    """Print the verdict, write the JUnit file, and return the exit code of the verdict."""
    with RecordedWarnings() as recorded:
        done = check_case.check(request, _announce)
    if output.junit is not None:
        with replace_file(output.junit) as file:
            file.write(junit(done).encode())
    print_result(output.json, done, markdown(done))
    for warning in done.warnings:
        if warning not in recorded.texts:  # those are on stderr already
            print(f"warning: {warning}", file=sys.stderr)
    return done.exit_code
