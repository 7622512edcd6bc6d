"""An ablation that is checked before any work: its plan, its stages, and what they overlap in.

Nothing is trained on that the cells are scored on: a training split that is itself scored is
refused. Single training queries that read like a scored one are left out of the fine-tuning.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.experiments.evaluate_stage import Evaluate
from bench.experiments.grid import Ablation
from bench.experiments.plan import ExperimentStage, Plan, plan_of
from bench.experiments.training_stages import Adapt, Finetune, Pretrain
from bench.results.result import Conditions
from bench.training.training_sets import find_leaks
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset
from datasets_cfg.verify import differences
from foundation.machine import library_version
from retrievers.models.model import resolve_model
from retrievers.training.engine.arguments import check_device

DECISIVE = (
    *("torch", "transformers", "sentence-transformers", "adapters", "peft"),
    *("faiss-cpu", "faiss-gpu", "onnxruntime"),  # the last one decides nothing now
)
EQUAL = 1e-9  # weights


def prepare(ablation: Ablation, workspace: Workspace, conditions: Conditions) -> Plan:
    """Read and check everything.

    Raises:
        BenchError: see `plan_of`, `check_device` and `check_leaks`.
    """
    plan = plan_of(ablation, stages_of(ablation, workspace), _here(ablation, conditions))
    if set(plan.rows[0].settings) != {"evaluate"}:
        check_device(workspace.device)
    on = plan.rows[0].settings["evaluate"]["on"]
    evaluated, weights = workspace.datasets(on), workspace.weights(on)
    alike = max(weights.values()) - min(weights.values()) < EQUAL
    return replace(
        plan,
        leaks=check_leaks(plan, workspace, evaluated),
        differing=tuple(_differing(evaluated)),
        weights={} if alike else weights,
    )


def stages_of(ablation: Ablation, workspace: Workspace) -> dict[str, ExperimentStage]:
    """Return the stages of an ablation by name."""
    on = (ablation.evaluate or {}).get("on")
    held_out = tuple(on) if isinstance(on, list) else ()  # anything else is refused when resolved
    return {
        "base": Pretrain(workspace, shared=True),
        "pretrain": Pretrain(workspace, after_base=ablation.base is not None),
        "adapt": Adapt(workspace, held_out, ablation.model),
        "finetune": Finetune(workspace, held_out),
        "evaluate": Evaluate(workspace),
    }


def _here(ablation: Ablation, conditions: Conditions) -> Mapping[str, str]:
    """Influences on figures besides the grid: libraries, the kind of device, the named model."""
    from retrievers.encoders.device import pick_device

    here = {name: version for name in DECISIVE if (version := library_version(name))}
    here["device"] = str(pick_device(conditions.device).type)
    if ablation.model:
        here["model"] = resolve_model(ablation.model).recipe.fingerprint
    return here


def _differing(evaluated: Sequence[Dataset]) -> Iterator[str]:
    """A sentence for each collection of the evaluation that is not the published one."""
    for dataset in evaluated:
        if different := differences(dataset):
            yield f"This is not the published {dataset.name}: {'; '.join(different)}."


def check_leaks(plan: Plan, workspace: Workspace, evaluated: Sequence[Dataset]) -> tuple[str, ...]:
    """Overlaps of training queries and scored ones, each in a sentence.

    Raises:
        BenchError: a row is trained on queries that it is scored on.
    """
    tables = [row.settings["finetune"] for row in plan.rows if "finetune" in row.settings]
    tuned = {(tuple(table["on"]), table["split"]) for table in tables}
    told = (
        _leaked(training, other)
        for on, split in sorted(tuned)
        for training in workspace.datasets(on, split)
        for other in evaluated
    )
    return tuple(dict.fromkeys(told))


def _leaked(training: Dataset, other: Dataset) -> str:
    leaked = find_leaks(training, other)
    return (
        f"{len(leaked)} queries of the split {training.facts.split} of {training.name} read like "
        f"one of the {len(other.queries):,} scored queries of {other.name}"
        f"{': they are left out.' if leaked else '.'}"
    )
