"""``ablate`` trains and evaluates the cells of a grid, and reports effects with intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cli.commands.common import make_workspace
from bench.cli.options.commands import AblateOptions
from bench.cli.terminal import print_json
from bench.evaluation.pipeline import current_conditions
from bench.experiments.execute import count_cells, load_outcome
from bench.experiments.experiment import Experiment
from bench.experiments.grid import load_grid
from bench.experiments.prepare import prepare_experiment
from bench.outcomes import ExitCode
from bench.train import run_grid
from reports.experiment import plan_table


def ablate(options: AblateOptions) -> int:
    """Check the grid, run unfinished tasks, and write a report per endpoint.

    Args:
        options: parsed options of the command.
    """
    seeds = options.seeds or ()
    grid = load_grid(options.file, options.variant, seeds)
    workspace = make_workspace(options.common, options.hardware, options.allow_mismatch)
    if options.dry_run:
        conditions = current_conditions(options.hardware.device)
        parts = [prepare_experiment(part, workspace, conditions) for part in grid.split_endpoints()]
        return _show_plan(parts, options)
    reports = run_grid(workspace, options.out, options.file, options.variant, seeds)
    if options.common.json:
        print_json(reports if grid.endpoints else reports[0])
    else:
        for report in reports:
            print((options.out / report.name / "report.md").read_text(encoding="utf-8"), end="")
    return ExitCode.MISSING if any(report.gaps for report in reports) else ExitCode.OK


def _show_plan(parts: Sequence[Experiment], options: AblateOptions) -> int:
    """Print the plan, for ``--dry-run``."""
    documents = [_plan_document(part, options.out) for part in parts]
    if options.common.json:
        print_json(documents if len(parts) > 1 else documents[0])
        return ExitCode.OK
    for part, document in zip(parts, documents, strict=True):
        if len(parts) > 1:
            print(f"## {part.grid.title}", end="\n\n")
        print(plan_table(document["rows"], document["tasks"]), end="\n\n")
        print("\n".join([count_cells(part, options.out), *part.differing, *part.leaks]))
    return ExitCode.OK


def _plan_document(experiment: Experiment, out: Path) -> dict[str, Any]:
    """Return the rows, tasks and findings of an experiment for JSON."""
    outcome = load_outcome(experiment, out)
    tasks = []
    for stage in experiment.rows[0].settings:
        keys = [task.key for task in experiment.tasks() if task.stage == stage]
        tasks.append((stage, len(keys), sum(key in outcome.finished for key in keys)))
    return {
        "rows": [(row.name, row.against, row.change) for row in experiment.rows],
        "tasks": tasks,
        "leaks": experiment.leaks,
        "differing": experiment.differing,
        "cells": len(experiment.cells),
    }
