"""Ablations: every row of a grid is trained and evaluated with several seeds."""

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.evaluation.pipeline import current_conditions
from bench.experiments import execute
from bench.experiments.evaluate_stage import read_scores
from bench.experiments.experiment import Experiment
from bench.experiments.findings import add_sequences, make_report
from bench.experiments.grid import Grid, load_grid
from bench.experiments.prepare import prepare_experiment
from bench.experiments.report_record import Report
from bench.requests.training import AblateRequest
from bench.runner.workspace import open_workspace


class Plan(msgspec.Struct, frozen=True):
    """Work of an experiment before it starts.

    Attributes:
        title: title of the experiment.
        rows: name of each row, the row that it is compared with, and the change.
        tasks: name of each stage, its tasks, and how many are finished.
        leaks: training queries that are also evaluated.
        differing: sentences on collections that differ from the published ones.
        cells: number of cells.
        progress: sentence about finished cells.
    """

    title: str
    rows: tuple[tuple[str, str, str], ...]
    tasks: tuple[tuple[str, int, int], ...]
    leaks: tuple[str, ...]
    differing: tuple[str, ...]
    cells: int
    progress: str


def ablate(
    request: AblateRequest, write: Callable[[Report, Path], None] = lambda report, folder: None
) -> tuple[Report, ...]:
    """Run the unfinished tasks of a grid, and make a report for each endpoint.

    The same request continues an interrupted experiment; finished cells are not computed again.

    Args:
        request: the grid and its folder.
        write: called with each report and its folder.

    Raises:
        BenchError: the grid is invalid, a collection or model is missing, or a training query is
            evaluated.
    """
    grid, parts, conditions = _prepare(request)
    for part in parts:
        _print_line(execute.count_cells(part, request.out))
    code = execute.describe_code(conditions)
    plan = execute.fix_plan(request.out / f"{grid.name}-plan.json", parts, request.out, code)
    reports = []
    for part in parts:
        outcome = execute.run_experiment(part, request.out, execute.run_task, _print_line, code)
        scores = partial(read_scores, out=request.out)
        report = make_report(part, outcome, scores, _command(request), conditions, plan)
        report = add_sequences(report, part, outcome, request.out)
        write(report, request.out / part.grid.name)
        _print_line(f"report saved to {request.out / part.grid.name}")
        reports.append(report)
    return tuple(reports)


def plan(request: AblateRequest) -> tuple[Plan, ...]:
    """Check a grid and return the plan of each endpoint. Nothing is trained.

    Raises:
        BenchError: as `ablate`.
    """
    return tuple(_plan_of(part, request.out) for part in _prepare(request)[1])


def _prepare(request: AblateRequest) -> tuple[Grid, list[Experiment], Any]:
    """Load and check a grid, and divide it into its endpoints."""
    grid = load_grid(request.grid, request.variant, request.seeds)
    workspace = open_workspace(request)
    conditions = current_conditions(workspace.device)
    parts = [prepare_experiment(part, workspace, conditions) for part in grid.split_endpoints()]
    return grid, parts, conditions


def _command(request: AblateRequest) -> str:
    """Return the command that repeats a request."""
    words = ["python", "-m", "bench", "ablate", request.grid]
    words += ["--variant", request.variant] if request.variant else []
    words += ["--seeds", *map(str, request.seeds)] if request.seeds else []
    words += ["--allow-mismatch"] if request.allow_mismatch else []
    return shlex.join(words)


def _plan_of(experiment: Experiment, out: Path) -> Plan:
    """Return the rows, tasks and findings of an experiment."""
    outcome = execute.load_outcome(experiment, out)
    tasks = []
    for stage in experiment.rows[0].settings:
        keys = [task.key for task in experiment.tasks() if task.stage == stage]
        tasks.append((stage, len(keys), sum(key in outcome.finished for key in keys)))
    return Plan(
        title=experiment.grid.title,
        rows=tuple((row.name, row.against, row.change) for row in experiment.rows),
        tasks=tuple(tasks),
        leaks=tuple(experiment.leaks),
        differing=tuple(experiment.differing),
        cells=len(experiment.cells),
        progress=execute.count_cells(experiment, out),
    )


def _print_line(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)
