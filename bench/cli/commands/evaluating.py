"""``run``, ``score``, ``index``, ``work``, ``speed`` and ``watch``."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import msgspec

from bench import monitor as watch_case
from bench.cli.command_table import OutputOptions
from bench.cli.terminal import print_document, print_result
from bench.evaluation.result_record import Evaluation, Result
from bench.monitor import Curve
from bench.requests import evaluating, training
from bench.requests.outcomes import ExitCode
from bench.runner import run as run_case
from bench.speed import speed as speed_case
from foundation.files import replace_file
from foundation.machine import format_size
from reports.checkpoints import curve_markdown
from reports.evaluation import collection_table, costs_table, gaps_list, means_table
from reports.plots import can_plot, draw_indexes, draw_quality
from reports.speed import speed_tables


class _Printer(run_case.RunProgress):
    """Progress of a run on the terminal: tables on stdout, the rest on stderr."""

    def __init__(self, tables: bool) -> None:
        self._tables = tables

    def finish(self, evaluation: Evaluation, reused: bool) -> None:
        result = evaluation.record
        for warning in result.preflight.get("warnings", ()):
            print(f"warning: {result.model}: {warning}", file=sys.stderr)
        since = f"stored in {evaluation.folder} since {result.conditions.time}"
        again = f"{since}; use --recompute to evaluate again"
        done = again if reused else _describe_work(evaluation)
        print(f"{result.protocol.collection}, {result.model}: {done}", file=sys.stderr)

    def finish_collection(self, results: Sequence[Result], published: run_case.Claims) -> None:
        if self._tables:
            print(collection_table(results, published), end="\n\n", flush=True)


def _describe_work(evaluation: Evaluation) -> str:
    """Return the times of a new result and its folder."""
    spent = evaluation.record.timings
    encode_s = spent.encode_queries_s + spent.encode_documents_s
    rate = f", {spent.encoded_tokens / encode_s:,.0f} tokens/s" if spent.encoded_tokens else ""
    return (
        f"{spent.encoded_documents:,} documents encoded in {spent.encode_documents_s:.1f} s{rate}; "
        f"searched in {spent.search_s:.1f} s; saved to {evaluation.folder}"
    )


def run(request: evaluating.RunRequest, output: OutputOptions) -> int:
    """Print a table per collection, the means of suites and the gaps."""
    if output.dry_run:
        costs, gaps = run_case.estimate(request)
        text = costs_table(costs) + ("\n\n" + gaps_list(gaps) if gaps else "")
        print_result(output.json, {"costs": costs, "gaps": gaps}, text)
        return ExitCode.MISSING if gaps else ExitCode.OK
    report = run_case.run(request, _Printer(tables=not output.json))
    results = [each.record for each in report.evaluations]
    document = {"results": results, "means": report.means, "gaps": report.gaps}
    tables = [means_table(report.means, report.published)] if report.means else []
    tables += [gaps_list(report.gaps)] if report.gaps else []
    print_result(output.json, document, "\n\n".join(tables))
    return ExitCode.MISSING if report.gaps else ExitCode.OK


def score(request: evaluating.ScoreRequest, output: OutputOptions) -> int:
    """Print the scores of a ranking."""
    evaluation = run_case.score(request)
    print(f"saved to {evaluation.folder}", file=sys.stderr)
    document = {"results": [evaluation.record], "means": [], "gaps": []}
    return print_result(output.json, document, collection_table([evaluation.record], {}))


def index(request: evaluating.IndexRequest, output: OutputOptions) -> int:
    """Print the command that searches the written index."""
    manifest = run_case.index(request)
    print(
        f"{manifest.documents:,} documents, {format_size(manifest.bytes)}: {request.out}",
        file=sys.stderr,
    )
    command = f"python {request.out / run_case.PROGRAM_FILE} QUERIES.npy 10"
    return print_result(output.json, manifest, command)


def work(request: evaluating.WorkRequest, output: OutputOptions) -> int:
    """Print what this worker encoded."""
    done = []
    for each in run_case.work(request):
        done.append(each)
        print(
            f"{each.collection}, {each.model}: {each.encoded:,} texts encoded by this worker; the "
            f"vectors of all {each.documents:,} documents are stored",
            file=sys.stderr,
        )
    return print_result(output.json, done, "")


def speed(request: evaluating.SpeedRequest, output: OutputOptions) -> int:
    """Print tables and one JSON document.

    Returns:
        The exit code of bad input if the tools disagree on scores: their times are not comparable.
    """
    report = speed_case.speed(request)
    if not output.json:
        print(speed_tables(report), end="\n\n")
    print_document(msgspec.json.encode(report).decode())
    if output.figure and report.indexes:
        draw_indexes(report.indexes, report.model, output.figure)
    return ExitCode.OK if all(race.agree for race in report.races) else ExitCode.BAD_INPUT


def watch(request: training.WatchRequest, output: OutputOptions) -> int:
    """Write the curve after each evaluation, and print it at the end."""
    if can_plot():  # an import that Ctrl-C interrupts cannot be repeated for the last curve
        import_module("matplotlib.figure")
    done = watch_case.watch(request, _write_curve)
    text = curve_markdown(done.curve) if done.curve else ""
    print_result(output.json, {"out": str(done.out), "curve": done.curve}, text)
    return ExitCode.INTERRUPTED if done.interrupted else ExitCode.OK


def _write_curve(curve: Curve, out: Path) -> None:
    """Write the table, picture and data of a curve, unless they are up to date."""
    content = msgspec.json.format(msgspec.json.encode(curve), indent=1)
    path = out / "curve.json"
    if path.exists() and path.read_bytes() == content:
        return
    draw_quality(curve, out / "curve")
    for file, text in ((out / "curve.md", curve_markdown(curve).encode()), (path, content)):
        with replace_file(file) as stream:
            stream.write(text)
