"""``compare``, ``check``, ``deploy``, ``cutoff``, ``tune``, ``judge`` and others that decide."""

import shlex
import sys
from collections.abc import Callable

from attrs import evolve

from bench.boards.leaderboard import leaderboard as build_leaderboard
from bench.boards.leaderboard_record import Leaderboard
from bench.cli.command_table import OutputOptions
from bench.cli.terminal import as_json, print_document, print_result
from bench.comparing import comparison, judging_list
from bench.cutoffs import cutoff as cutoff_case
from bench.deploying import deploy as deploy_case
from bench.explain import explain as explain_case
from bench.explain.ledger import Ledger
from bench.gate import check as check_case
from bench.requests import deciding
from bench.requests.outcomes import ExitCode, RecordedWarnings
from bench.result_store.find import export as export_rankings
from bench.tuning import tune as tune_case
from foundation.errors import BenchError
from foundation.files import replace_file
from reports.check import junit
from reports.check import markdown as check_markdown
from reports.checkpoints import forgetting_markdown
from reports.comparison import changes_table, comparison_table, holes_text, legend, slices_text
from reports.cutoff import cutoff_text
from reports.deploy import deployment_text
from reports.explain import answer_text, ledger_text
from reports.judging_list import report_text, write_list
from reports.latex import board_latex, comparisons_latex
from reports.leaderboard import markdown as board_markdown
from reports.leaderboard import page, scores
from reports.plots import draw_costs, draw_cutoff, draw_deployment, draw_slices, draw_tuning
from reports.tuning import tuning_text


def compare(request: deciding.CompareRequest, output: OutputOptions) -> int:
    """Print a table per pair of models and the queries that changed most, or the transfer."""
    report = comparison.compare(request)
    if report.transfer:
        return print_result(output.json, report.transfer, forgetting_markdown(report.transfer))
    if output.format == "latex":
        return print_result(output.json, None, comparisons_latex(report.comparisons))
    tables = [*map(comparison_table, report.comparisons)]
    if output.figure and report.slices:
        draw_slices(report.slices, output.figure)
    tables += map(slices_text, report.slices)
    tables += [holes_text(report.holes)] if report.holes else []
    tables += [
        legend(report.resampling, len(report.comparisons)),
        *map(changes_table, report.changed),
    ]
    document = {name: value for name, value in vars(report).items() if name != "transfer"}
    return print_result(output.json, document, "\n\n".join(tables))


FORMATS: dict[str, Callable[[Leaderboard, str], str]] = {
    "markdown": lambda board, measure: board_markdown(board, measure) + "\n",
    "csv": lambda board, measure: scores(board, measure).csv(),
    "html": page,
    "latex": board_latex,
    "json": lambda board, measure: as_json(board) + "\n",
}


def leaderboard(request: deciding.LeaderboardRequest, output: OutputOptions) -> int:
    """Print stored results side by side in the chosen format."""
    form = "json" if output.json else output.format
    if request.by and form in ("csv", "latex"):
        problem = f"--format {form} has no slices, which --by asks for"
        raise BenchError(problem, "Use --format html, markdown or json.")
    board = build_leaderboard(evolve(request, every_measure=form == "html"))
    if output.figure:
        draw_costs(board, request.measure, output.figure)
    print_document(FORMATS[form](board, request.measure), end="")
    return ExitCode.OK


def check(request: deciding.CheckRequest, output: OutputOptions) -> int:
    """Print the verdict, write the JUnit file, and return the exit code of the verdict."""
    with RecordedWarnings() as recorded:
        done = check_case.check(request)
    if output.junit is not None:
        with replace_file(output.junit) as file:
            file.write(junit(done).encode())
    code = print_result(output.json, done, check_markdown(done))
    for warning in done.warnings:
        if warning not in recorded.texts:  # those are on stderr already
            print(f"warning: {warning}", file=sys.stderr)
    return code


def deploy(request: deciding.DeployRequest, output: OutputOptions) -> int:
    """Print the answer with the tested settings. The exit code says whether there is one."""
    done = deploy_case.deploy(request)
    if output.figure and done.baseline:
        draw_deployment(done, output.figure)
    code = print_result(output.json, done, deployment_text(done))
    if done.chosen and request.write and not done.recipe.traits.has_members:
        words = ["run", request.on[0], "--model", request.model, "--index", str(request.write)]
        if rescore := done.chosen.compression.settings["rescore"]:
            words += ["--rescore", rescore]
        command = shlex.join(["python", "-m", "bench", *words])
        print(f"\nEvaluate the index: {command}", file=sys.stderr if output.json else sys.stdout)
    return code


def cutoff(request: deciding.CutoffRequest, output: OutputOptions) -> int:
    """Print the cut-off and what it does. The exit code says whether it is proved and useful."""
    done = cutoff_case.cutoff(request)
    if output.figure and done.all_done:
        draw_cutoff(done, output.figure)
    return print_result(output.json, done, cutoff_text(done))


def tune(request: deciding.TuneRequest, output: OutputOptions) -> int:
    """Print the answer with the tested settings. The exit code says whether there is one."""
    done = tune_case.tune(request)
    if output.figure:
        draw_tuning(done, output.figure)
    return print_result(output.json, done, tuning_text(done, request.out))


def judge(request: deciding.JudgeRequest, output: OutputOptions) -> int:
    """Print what was written, or the scores with the imported judgements."""
    report = judging_list.judge(request, write_list)
    return print_result(output.json, report, report_text(report))


def explain(request: deciding.ExplainRequest, output: OutputOptions) -> int:
    """Print an answer, with exit code 0 even if nothing explains it, or a system's ledger."""
    answer = explain_case.explain(request)
    text = ledger_text(answer) if isinstance(answer, Ledger) else answer_text(answer)
    return print_result(output.json, answer, text)


def export(request: deciding.ExportRequest, output: OutputOptions) -> int:
    """Print the files that were written."""
    written = list(map(str, export_rankings(request)))
    print(f"{len(written)} files in {request.out}", file=sys.stderr)
    return print_result(output.json, {"files": written}, "\n".join(written))
