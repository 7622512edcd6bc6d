"""``bundle`` and ``replay``."""

from bench.bundling import bundle as bundle_case
from bench.bundling import replay as replay_case
from bench.cli.command_table import OutputOptions
from bench.cli.terminal import print_result
from bench.requests.data import BundleRequest, ReplayRequest
from reports.bundling import bundle_text, replay_text


def bundle(request: BundleRequest, output: OutputOptions) -> int:
    """Print the commands of the bundle and what they do not repeat."""
    written = bundle_case.bundle(request)
    return print_result(output.json, written, bundle_text(written, str(request.out)))


def replay(request: ReplayRequest, output: OutputOptions) -> int:
    """Print what is repeated, differs or is missing. The exit code says which."""
    done = replay_case.replay(request)
    return print_result(output.json, done, replay_text(done))
