"""``watch``."""

import sys
from pathlib import Path

import msgspec

from bench.cli.command_table import OutputOptions
from bench.cli.terminal import print_json
from bench.monitor import watch as watch_case
from bench.monitor.curve import Curve
from bench.requests.outcomes import ExitCode
from bench.requests.training import WatchRequest
from foundation.files import read_file, replace_file
from reports.plots import draw_quality, load_library
from reports.training import curve_markdown


def watch(request: WatchRequest, output: OutputOptions) -> int:
    """Write the curve after each evaluation, and print it at the end."""
    load_library()
    done = watch_case.watch(request, _write_curve)
    if output.json:
        print_json({"out": str(done.out), "curve": done.curve})
    elif done.curve is not None:
        print(curve_markdown(done.curve), end="")
    if done.interrupted:
        print(f"the evaluation of {done.interrupted} was interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _write_curve(curve: Curve, out: Path) -> None:
    """Write the table, picture and data of a curve, unless they are up to date."""
    content = msgspec.json.format(msgspec.json.encode(curve), indent=1)
    path = out / "curve.json"
    if path.exists() and read_file(path) == content:
        return
    draw_quality(curve, out / "curve")
    for file, text in ((out / "curve.md", curve_markdown(curve).encode()), (path, content)):
        with replace_file(file) as stream:
            stream.write(text)
