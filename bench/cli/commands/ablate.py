"""``ablate``: from a grid in TOML to trained cells, and from those to a table with intervals."""

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.cli.commands.common import make_workspace
from bench.cli.options.train import AblateOptions
from bench.cli.terminal import print_json
from bench.evaluate.pipeline import conditions_here
from bench.experiments.evaluate_stage import read_scores
from bench.experiments.execute import execute, finished, isolated, timed
from bench.experiments.findings import report_of, with_sequences
from bench.experiments.grid import load_ablation, replaced
from bench.experiments.plan import CellTask, Cost, ExperimentStage, Plan
from bench.experiments.prepare import prepare
from bench.experiments.report_record import Report
from bench.outcomes import ExitCode
from bench.results.result import Conditions
from foundation.files import replacing
from reports.experiment import markdown, plan_table
from reports.plots import can_plot


def ablate(options: AblateOptions) -> int:
    """Check the whole grid, run unfinished tasks, write a report for each endpoint."""
    ablation = load_ablation(options.file, options.variant)
    if options.seeds:
        ablation = replaced(ablation, "--seeds", seeds=tuple(options.seeds))
    workspace = make_workspace(options.folder_options, options.hardware, options.allow_mismatch)
    conditions = conditions_here(options.hardware.device)
    parts = [prepare(part, workspace, conditions) for part in ablation.parts()]
    if options.dry_run:
        return _show(parts, options)
    for part in parts:
        _say(_overview(part, options.out))
    records = [_run(part, options, conditions) for part in parts]
    if options.output.json:
        print_json(records if ablation.endpoints else records[0])
    return ExitCode.MISSING if any(record.gaps for record in records) else ExitCode.OK


def _run(plan: Plan, options: AblateOptions, conditions: Conditions) -> Report:
    """Work through a plan and write its report."""
    outcome = execute(plan, options.out, _apart, _say, conditions.commit)
    scores = partial(read_scores, out=options.out)
    record = report_of(plan, outcome, scores, _typed(options), conditions)
    record = with_sequences(record, plan, outcome, options.out)
    folder = options.out / plan.ablation.name
    text = markdown(record, _pictures(record, folder))
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=1)
    for name, content in (("md", text.encode()), ("json", encoded)):
        with replacing(folder / f"report.{name}") as file:
            file.write(content)
    _say(f"kept in {folder}")
    if not options.output.json:
        print(text, end="")
    return record


def _apart(stage: ExperimentStage, task: CellTask, out: Path) -> Cost:
    """A task in a process of its own."""
    cost: Cost = isolated(timed, stage, task.settings, task.starts_from(out), task.folder(out))
    return cost


def _show(parts: Sequence[Plan], options: AblateOptions) -> int:
    """``--dry-run``."""
    documents = [_plan_document(part, options.out) for part in parts]
    if options.output.json:
        print_json(documents if len(parts) > 1 else documents[0])
        return ExitCode.OK
    for part, document in zip(parts, documents, strict=True):
        if len(parts) > 1:
            print(f"## {part.ablation.title}", end="\n\n")
        print(plan_table(document["rows"], document["tasks"]), end="\n\n")
        print("\n".join([_overview(part, options.out), *part.differing, *part.leaks]))
    return ExitCode.OK


def _plan_document(plan: Plan, out: Path) -> dict[str, Any]:
    """Rows and tasks of a plan, and what was checked."""
    outcome = finished(plan, out)
    tasks = []
    for stage in plan.rows[0].settings:
        keys = [task.key for task in plan.tasks() if task.stage == stage]
        tasks.append((stage, len(keys), sum(key in outcome.finished for key in keys)))
    return {
        "rows": [(row.name, row.against, row.change) for row in plan.rows],
        "tasks": tasks,
        "leaks": plan.leaks,
        "differing": plan.differing,
        "cells": len(plan.cells),
    }


def _overview(plan: Plan, out: Path) -> str:
    """Sizes of the grid, and the number of tasks left."""
    outcome = finished(plan, out)
    cells = f"{len(plan.cells)} cells: {len(plan.rows)} rows, {len(plan.ablation.seeds)} seeds"
    return f"{cells}; {outcome.left(plan)}"


def _pictures(record: Report, folder: Path) -> list[tuple[str, str]]:
    """Draw every axis."""
    if not can_plot():
        _say("no pictures: pip install 'retrieval-bench[plots]'")
        return []
    from reports.plots import draw

    return draw(record, folder)


def _typed(options: AblateOptions) -> str:
    """The command line that makes the same report again."""
    words = ["python", "-m", "bench", "ablate", options.file]
    if options.variant:
        words += ["--variant", options.variant]
    if options.seeds:
        words += ["--seeds", *map(str, options.seeds)]
    if options.allow_mismatch:
        words.append("--allow-mismatch")
    return shlex.join(words)


def _say(text: str) -> None:
    """Print to people, beside the output."""
    print(text, file=sys.stderr, flush=True)
