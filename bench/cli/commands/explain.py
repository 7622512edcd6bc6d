"""``explain``."""

from bench.cli.command_table import OutputOptions
from bench.cli.terminal import print_result
from bench.explain import explain as explain_case
from bench.requests.deciding import ExplainRequest
from bench.requests.outcomes import ExitCode
from reports.explain import answer_text


def explain(request: ExplainRequest, output: OutputOptions) -> int:
    """Print an answer. The exit code is 0 even if nothing explains the evidence."""
    answer = explain_case.explain(request)
    if answer is None:
        return ExitCode.OK
    return print_result(output.json, answer, answer_text(answer))
