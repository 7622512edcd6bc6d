"""Preparation of an experiment: all checks before any training.

A training split that is itself evaluated is refused. Single training queries that read like an
evaluated query are left out of the fine-tuning.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.evaluation.result_record import Conditions
from bench.experiments.command_stage import CommandStage
from bench.experiments.evaluate_stage import EvaluateStage
from bench.experiments.experiment import COMMAND, Experiment, ExperimentStage, plan_experiment
from bench.experiments.grid import Grid, rename_options
from bench.experiments.training_stages import AdaptStage, FinetuneStage, PretrainStage
from bench.runner.workspace import Workspace
from bench.training.training_sets import count_queries, find_leaks
from datasets_cfg.dataset import Dataset
from datasets_cfg.verify import count_differences
from foundation.machine import library_version
from retrievers.models.resolve import resolve_model
from retrievers.training.engine.arguments import check_device

DECISIVE = (
    *("torch", "transformers", "sentence-transformers", "adapters", "peft"),
    *("faiss-cpu", "faiss-gpu"),
)
EQUAL = 1e-9  # weights


def prepare_experiment(grid: Grid, workspace: Workspace, conditions: Conditions) -> Experiment:
    """Plan an experiment and check its data, device and leaks.

    Args:
        grid: the grid.
        workspace: folders and device.
        conditions: libraries and machine, which are part of the keys.

    Raises:
        BenchError: invalid settings, an unavailable device, or training queries that are evaluated.
    """
    anchors = {name: resolve_model(name).recipe.fingerprint for name in grid.anchors}
    here = _environment(grid, conditions)
    experiment = plan_experiment(grid, make_stages(grid, workspace), here, anchors)
    if set(experiment.rows[0].settings) != {"evaluate"}:
        check_device(workspace.device)
    on = experiment.rows[0].settings["evaluate"]["on"]
    evaluated, weights = workspace.datasets(on), workspace.weights(on)
    is_equal = max(weights.values()) - min(weights.values()) < EQUAL
    return replace(
        experiment,
        leaks=check_leaks(experiment, workspace, evaluated),
        differing=tuple(_describe_differences(evaluated)),
        weights={} if is_equal else weights,
    )


def make_stages(grid: Grid, workspace: Workspace) -> dict[str, ExperimentStage]:
    """Return the stages of a ``grid`` by name, which use the folders of ``workspace``."""
    on = rename_options(grid.evaluate or {}).get("on")
    held_out = tuple(on) if isinstance(on, list) else ()  # resolve_settings refuses anything else
    has_base, seeds = grid.base is not None, len(grid.seeds)
    return {
        "base": PretrainStage(workspace, "base", shared=not grid.base_per_seed),
        "pretrain": PretrainStage(workspace, after_base=has_base),
        f"pretrain {COMMAND}": CommandStage("pretrain", workspace, has_base, seeds),
        "adapt": AdaptStage(workspace, held_out, grid.model),
        "finetune": FinetuneStage(workspace, held_out),
        f"finetune {COMMAND}": CommandStage("finetune", workspace, True, seeds),
        "evaluate": EvaluateStage(workspace),
    }


def _environment(grid: Grid, conditions: Conditions) -> Mapping[str, str]:
    """Return further influences on results: library versions, the kind of device and the model."""
    from retrievers.encoders.device import pick_device

    here = {name: version for name in DECISIVE if (version := library_version(name))}
    here["device"] = str(pick_device(conditions.device).type)
    if grid.model:
        here["model"] = resolve_model(grid.model).recipe.fingerprint
    return here


def _describe_differences(evaluated: Sequence[Dataset]) -> Iterator[str]:
    """Yield a sentence for each evaluated collection that differs from the published one."""
    for dataset in evaluated:
        if different := count_differences(dataset):
            yield f"This is not the published {dataset.name}: {'; '.join(different)}."


def check_leaks(
    experiment: Experiment, workspace: Workspace, evaluated: Sequence[Dataset]
) -> tuple[str, ...]:
    """Describe the overlaps between training queries and evaluated queries, a sentence each.

    Args:
        experiment: experiment whose rows may have a stage ``finetune``.
        workspace: folders of the collections.
        evaluated: collections of the evaluation.

    Raises:
        BenchError: a row is trained on queries that it is evaluated on.
    """
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
    """Describe the overlap of one training split and one evaluated collection.

    A command trains on all queries: no query can be left out of files of the user.
    """
    leaked = find_leaks(training, other)
    treatment = "not left out of the command's training" if by_command else "left out"
    return (
        f"split {training.facts.split} of {training.name}: {count_queries(len(leaked))} with the "
        f"text of a scored query of {other.name} ({len(other.queries):,} scored)"
        f"{f', {treatment}' if leaked else ''}"
    )
