"""``ablate`` trains and evaluates the cells of a grid, and reports effects with intervals."""

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.cli.commands.common import make_workspace
from bench.cli.options.commands import AblateOptions
from bench.cli.terminal import print_json
from bench.evaluate.pipeline import current_conditions
from bench.experiments.evaluate_stage import read_scores
from bench.experiments.execute import (
    FixedPlan,
    describe_code,
    fix_plan,
    has_results,
    load_outcome,
    make_plan,
    run_experiment,
    run_in_subprocess,
    run_timed,
)
from bench.experiments.experiment import CellTask, Cost, Experiment, ExperimentStage
from bench.experiments.findings import add_sequences, make_report
from bench.experiments.grid import load_grid, replace_settings
from bench.experiments.prepare import prepare_experiment
from bench.experiments.report_record import Report
from bench.outcomes import ExitCode
from bench.results.result import Conditions
from foundation.files import replace_file
from reports.experiment import markdown, plan_table
from reports.plots import can_plot


def ablate(options: AblateOptions) -> int:
    """Check the grid, run unfinished tasks, and write a report per endpoint.

    Args:
        options: parsed options of the command.
    """
    grid = load_grid(options.file, options.variant)
    if options.seeds:
        grid = replace_settings(grid, "--seeds", seeds=tuple(options.seeds))
    workspace = make_workspace(options.folders, options.hardware, options.allow_mismatch)
    conditions = current_conditions(options.hardware.device)
    parts = [prepare_experiment(part, workspace, conditions) for part in grid.split_endpoints()]
    if options.dry_run:
        return _show_plan(parts, options)
    for part in parts:
        _log(_count_cells(part, options.out))
    fix = partial(fix_plan, options.out / f"{grid.name}-plan.json")
    if has_results(parts, options.out):
        fix(FixedPlan())  # unless one was written at the first result
    fix_now = partial(fix, make_plan(parts, describe_code(conditions)))
    records = [_run_part(part, options, conditions, fix_now) for part in parts]
    if options.output.json:
        print_json(records if grid.endpoints else records[0])
    return ExitCode.MISSING if any(record.gaps for record in records) else ExitCode.OK


def _run_part(
    experiment: Experiment,
    options: AblateOptions,
    conditions: Conditions,
    fix: Callable[[], FixedPlan],
) -> Report:
    """Run the tasks of an experiment and write its report.

    ``fix`` stores the plan before the first result is recorded, and returns the stored one.
    """
    results = {cell.task.key for cell in experiment.cells}

    def run(stage: ExperimentStage, task: CellTask, out: Path) -> Cost:
        cost = _run_in_process(stage, task, out)
        if task.key in results:
            fix()
        return cost

    code = describe_code(conditions)
    outcome = run_experiment(experiment, options.out, run, _log, code)
    scores = partial(read_scores, out=options.out)
    plan = fix() if has_results([experiment], options.out) else None
    command = _command_line(options)
    record = make_report(experiment, outcome, scores, command, conditions, plan)
    record = add_sequences(record, experiment, outcome, options.out)
    folder = options.out / experiment.grid.name
    text = markdown(record, _draw_pictures(record, folder))
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=1)
    for name, content in (("md", text.encode()), ("json", encoded)):
        with replace_file(folder / f"report.{name}") as file:
            file.write(content)
    _log(f"report saved to {folder}")
    if not options.output.json:
        print(text, end="")
    return record


def _run_in_process(stage: ExperimentStage, task: CellTask, out: Path) -> Cost:
    """Run a task in a new process."""
    cost: Cost = run_in_subprocess(
        run_timed, stage, task.settings, task.starts_from(out), task.folder(out)
    )
    return cost


def _show_plan(parts: Sequence[Experiment], options: AblateOptions) -> int:
    """Print the plan, for ``--dry-run``."""
    documents = [_plan_document(part, options.out) for part in parts]
    if options.output.json:
        print_json(documents if len(parts) > 1 else documents[0])
        return ExitCode.OK
    for part, document in zip(parts, documents, strict=True):
        if len(parts) > 1:
            print(f"## {part.grid.title}", end="\n\n")
        print(plan_table(document["rows"], document["tasks"]), end="\n\n")
        print("\n".join([_count_cells(part, options.out), *part.differing, *part.leaks]))
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


def _count_cells(experiment: Experiment, out: Path) -> str:
    """Return the size of the grid and the number of tasks left, as text."""
    outcome = load_outcome(experiment, out)
    rows, seeds = len(experiment.rows), len(experiment.grid.seeds)
    cells = f"{len(experiment.cells)} cells: {rows} rows, {seeds} seeds"
    return f"{cells}; {outcome.describe_remaining(experiment)}"


def _draw_pictures(record: Report, folder: Path) -> list[tuple[str, str]]:
    """Draw a picture per axis."""
    if not can_plot():
        _log("no pictures: pip install 'retrieval-bench[plots]'")
        return []
    from reports.plots import draw_factors

    return draw_factors(record, folder)


def _command_line(options: AblateOptions) -> str:
    """Return the command that produces the same report."""
    words = ["python", "-m", "bench", "ablate", options.file]
    if options.variant:
        words += ["--variant", options.variant]
    if options.seeds:
        words += ["--seeds", *map(str, options.seeds)]
    if options.allow_mismatch:
        words.append("--allow-mismatch")
    return shlex.join(words)


def _log(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)
