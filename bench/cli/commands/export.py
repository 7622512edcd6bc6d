"""``export``."""

import sys

from bench.cli.command_table import OutputOptions
from bench.cli.terminal import print_result
from bench.requests.deciding import ExportRequest
from bench.result_store import export as export_case


def export(request: ExportRequest, output: OutputOptions) -> int:
    """Print the files that were written."""
    written = list(map(str, export_case.export(request)))
    print(f"{len(written)} files in {request.out}", file=sys.stderr)
    return print_result(output.json, {"files": written}, "\n".join(written))
