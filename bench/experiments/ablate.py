"""Ablations: every row of a grid is trained and evaluated with several seeds.

All checks come before any training. A training split that is itself evaluated is refused. Single
training queries that read like an evaluated query are left out of the fine-tuning.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from bench.evaluation.pipeline import current_conditions
from bench.evaluation.result_record import Conditions
from bench.experiments.command_stage import CommandStage
from bench.experiments.evaluate_stage import EvaluateStage, read_scores
from bench.experiments.experiment import (
    COMMAND,
    Experiment,
    ExperimentOutcome,
    ExperimentStage,
    load_outcome,
    plan_experiment,
    run_experiment,
)
from bench.experiments.grid import Grid, load_grid
from bench.experiments.report import make_report
from bench.experiments.report_record import Report
from bench.experiments.training_stages import AdaptStage, FinetuneStage, PretrainStage
from bench.requests.fields import typed_words
from bench.requests.training import AblateRequest
from bench.runner.workspace import Workspace, open_workspace
from bench.training.training_sets import find_leaks
from datasets_cfg.dataset import Dataset
from datasets_cfg.verification import count_differences
from foundation.errors import format_count
from foundation.machine import library_version
from retrievers.encoders.device import pick_device
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings
from retrievers.training.engine.context import check_device, log_folder
from retrievers.training.pretrain.start import hash_heads

DECISIVE = (
    *("torch", "transformers", "sentence-transformers", "adapters", "peft"),
    *("faiss-cpu", "faiss-gpu"),
)
EQUAL = 1e-9  # weights


class Plan(msgspec.Struct, frozen=True):
    """Work of an experiment before it starts.

    ``rows`` have name, compared row and change, ``tasks`` stage, number and number of finished
    ones.
    """

    rows: tuple[tuple[str, str, str], ...]
    tasks: tuple[tuple[str, int, int], ...]
    leaks: tuple[str, ...]
    differing: tuple[str, ...]
    cells: int
    progress: str


def ablate(request: AblateRequest, write: Callable[[Report, Path], None]) -> Report:
    """Run the unfinished tasks of a grid, and return its report.

    The same request continues an interrupted experiment. ``write`` is called with the report and
    its folder.
    """
    experiment, conditions = prepare_experiment(request)
    out, code = request.out, describe_code(conditions)
    _print_line(_describe_progress(experiment, load_outcome(experiment, out)))
    outcome = run_experiment(experiment, out, _print_line, code)
    scores = partial(read_scores, out=out)
    words = typed_words(conditions.command, conditions.request, "grid")
    command = shlex.join(["python", "-m", "bench", *words])
    report = make_report(experiment, outcome, scores, command, conditions)
    write(report, out / report.name)
    _print_line(f"report saved to {out / report.name}")
    return report


def plan(request: AblateRequest) -> Plan:
    """Check a grid and return its plan. Nothing is trained."""
    experiment, _ = prepare_experiment(request)
    outcome, tasks = load_outcome(experiment, request.out), experiment.tasks()
    total = Counter(task.stage for task in tasks)
    finished = Counter(task.stage for task in tasks if task.key in outcome.finished)
    return Plan(
        rows=tuple((row.name, row.against, row.change) for row in experiment.rows),
        tasks=tuple((stage, total[stage], finished[stage]) for stage in total),
        leaks=experiment.leaks,
        differing=experiment.differing,
        cells=len(experiment.cells),
        progress=_describe_progress(experiment, outcome),
    )


def prepare_experiment(request: AblateRequest) -> tuple[Experiment, Conditions]:
    """Load a grid, plan its experiment, and check its data, device and leaks."""
    grid = load_grid(request.grid, request.seeds)
    workspace = open_workspace(request)
    logs = request.log_dir and log_folder(request.log_dir, request.out / grid.name)
    stages = make_stages(grid, workspace, logs)
    environment = _describe_environment(grid, workspace)
    experiment = plan_experiment(grid, stages, environment)
    reference = experiment.rows[0].settings
    if set(reference) != {"evaluate"}:
        check_device(workspace.device)
    on = reference["evaluate"]["on"]
    evaluated, weights = workspace.datasets(on), workspace.weights(on)
    is_equal = max(weights.values()) - min(weights.values()) < EQUAL
    differing = {dataset.name: count_differences(dataset) for dataset in evaluated}
    experiment = replace(
        experiment,
        leaks=check_leaks(experiment, workspace, evaluated),
        differing=tuple(
            f"This is not the published {name}: {'; '.join(different)}."
            for name, different in differing.items()
            if different
        ),
        weights={} if is_equal else weights,
    )
    # with the files that rows have loaded
    return experiment, current_conditions(workspace.device, request=request)


def make_stages(
    grid: Grid, workspace: Workspace, logs: Path | None = None
) -> dict[str, ExperimentStage]:
    """Return the stages of a ``grid`` by name, which write TensorBoard's ``logs``."""
    on = grid.evaluate.get("on")
    held_out = tuple(on) if isinstance(on, list) else ()  # resolve_settings refuses anything else
    has_base, seeds = grid.base is not None, len(grid.seeds)
    return {
        "base": PretrainStage(workspace, "base", logs=logs, shared=not grid.base_per_seed),
        "pretrain": PretrainStage(workspace, continues=has_base, logs=logs),
        f"pretrain {COMMAND}": CommandStage("pretrain", workspace, has_base, seeds),
        "adapt": AdaptStage(workspace, logs=logs, evaluated=held_out),
        "finetune": FinetuneStage(workspace, logs=logs, evaluated=held_out),
        f"finetune {COMMAND}": CommandStage("finetune", workspace, True, seeds),
        "evaluate": EvaluateStage(workspace, grid.model),
    }


def _describe_environment(grid: Grid, workspace: Workspace) -> dict[str, str]:
    """Return further influences on results: library versions, the kind of device and the model."""
    here = {name: version for name in DECISIVE if (version := library_version(name))}
    here["device"] = str(pick_device(workspace.device).type)
    if grid.model:
        model = resolve_model(grid.model, ModelSettings(trust_code=workspace.trust_code))
        here["model"] = model.recipe.fingerprint
        if grid.adapt is not None and model.document is not None:
            here |= hash_heads(model.document.root)
    return here


def check_leaks(
    experiment: Experiment, workspace: Workspace, evaluated: Sequence[Dataset]
) -> tuple[str, ...]:
    """Describe the overlaps of training and evaluated queries, or raise if a split is evaluated."""
    tables = [row.settings["finetune"] for row in experiment.rows if "finetune" in row.settings]
    tuned = {(tuple(table["on"]), table["split"], COMMAND in table) for table in tables}
    told = [
        _describe_leak(training, other, by_command)
        for on, split, by_command in sorted(tuned)
        for training in workspace.datasets(on, split)
        for other in evaluated
    ]
    if any(not on for on, *_ in tuned):
        told.append("A command states no training queries (on): leaks were not looked for in them.")
    return tuple(dict.fromkeys(told))


def _describe_leak(training: Dataset, other: Dataset, by_command: bool) -> str:
    leaked = find_leaks(training, other)
    treatment = "not left out of the command's training" if by_command else "left out"
    return (
        f"split {training.metadata.split} of {training.name}: "
        f"{format_count(len(leaked), 'query', 'queries')} with the text of a scored query of "
        f"{other.name} ({len(other.queries):,} scored)"
        f"{f', {treatment}' if leaked else ''}"
    )


def describe_code(conditions: Conditions) -> str:
    """Return the git commit of the code, marked if it was modified, or the installed version."""
    code = conditions.commit or f"version {conditions.bench}"
    return f"{code} modified" if conditions.dirty else code


def _describe_progress(experiment: Experiment, outcome: ExperimentOutcome) -> str:
    cells = format_count(len(experiment.cells), "cell", "cells")
    rows = format_count(len(experiment.rows), "row", "rows")
    seeds = format_count(len(experiment.grid.seeds), "seed", "seeds")
    return f"{cells}: {rows}, {seeds}; {outcome.describe_remaining(experiment)}"


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
