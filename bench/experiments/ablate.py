"""Ablations: every row of a grid is trained and evaluated with several seeds."""

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from bench.evaluation.pipeline import current_conditions
from bench.evaluation.result_record import Conditions
from bench.experiments import execute
from bench.experiments.evaluate_stage import read_scores
from bench.experiments.experiment import Experiment
from bench.experiments.findings import add_sequences, make_report
from bench.experiments.grid import load_grid
from bench.experiments.prepare import prepare_experiment
from bench.experiments.report_record import Report
from bench.requests.training import AblateRequest
from bench.runner.workspace import open_workspace


class Plan(msgspec.Struct, frozen=True):
    """Work of an experiment before it starts.

    Attributes:
        rows: name of each row, the row that it is compared with, and the change.
        tasks: name of each stage, its tasks, and how many are finished.
        leaks: training queries that are also evaluated.
        differing: sentences on collections that differ from the published ones.
        cells: number of cells.
        progress: sentence about finished cells.
    """

    rows: tuple[tuple[str, str, str], ...]
    tasks: tuple[tuple[str, int, int], ...]
    leaks: tuple[str, ...]
    differing: tuple[str, ...]
    cells: int
    progress: str


def ablate(
    request: AblateRequest, write: Callable[[Report, Path], None] = lambda report, folder: None
) -> Report:
    """Run the unfinished tasks of a grid, and return its report.

    The same request continues an interrupted experiment; finished cells are not computed again.

    Args:
        request: the grid and its folder.
        write: called with the report and its folder.

    Raises:
        BenchError: the grid is invalid, a collection or model is missing, or a training query is
            evaluated.
    """
    experiment, conditions = _prepare(request)
    out, code = request.out, execute.describe_code(conditions)
    _print_line(execute.count_cells(experiment, out))
    outcome = execute.run_experiment(experiment, out, execute.run_task, _print_line, code)
    scores = partial(read_scores, out=out)
    report = make_report(experiment, outcome, scores, _command(request), conditions)
    report = add_sequences(report, experiment, outcome, out)
    write(report, out / report.name)
    _print_line(f"report saved to {out / report.name}")
    return report


def plan(request: AblateRequest) -> Plan:
    """Check a grid and return its plan. Nothing is trained.

    Raises:
        BenchError: as `ablate`.
    """
    experiment, _ = _prepare(request)
    outcome = execute.load_outcome(experiment, request.out)
    tasks = []
    for stage in experiment.rows[0].settings:
        keys = [task.key for task in experiment.tasks() if task.stage == stage]
        tasks.append((stage, len(keys), sum(key in outcome.finished for key in keys)))
    return Plan(
        rows=tuple((row.name, row.against, row.change) for row in experiment.rows),
        tasks=tuple(tasks),
        leaks=experiment.leaks,
        differing=experiment.differing,
        cells=len(experiment.cells),
        progress=execute.count_cells(experiment, request.out),
    )


def _prepare(request: AblateRequest) -> tuple[Experiment, Conditions]:
    """Load and check a grid."""
    grid = load_grid(request.grid, request.variant, request.seeds)
    workspace = open_workspace(request)
    experiment = prepare_experiment(grid, workspace, current_conditions(workspace.device))
    return experiment, current_conditions(workspace.device)  # now with files that rows have loaded


def _command(request: AblateRequest) -> str:
    """Return the command that repeats a request."""
    words = ["python", "-m", "bench", "ablate", request.grid]
    words += ["--variant", request.variant] if request.variant else []
    words += ["--seeds", *map(str, request.seeds)] if request.seeds else []
    words += ["--allow-mismatch"] if request.allow_mismatch else []
    return shlex.join(words)


def _print_line(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)
