"""An ablation that was checked before any work: its plan, its stages, and what they overlap in.

Nothing is trained on that the cells are scored on: a training split that is itself scored is
refused. Single training queries that read like a scored one are left out of the fine-tuning; a
text of the pre-training that is a scored query is reported.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.experiments.adapt_stage import Adapt
from bench.experiments.evaluate_stage import Evaluate
from bench.experiments.finetune_stage import Finetune
from bench.experiments.grid import Ablation, Table
from bench.experiments.plan import ExperimentStage, Plan, plan_of
from bench.experiments.pretrain_stage import Pretrain
from bench.results.result import Conditions
from bench.training.training_sets import CorpusTexts, leaks, normalised
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
SPACE = 4  # a text of more than so many times a query's characters does not read like it


@dataclass(frozen=True)
class Prepared:
    """An ablation, or one endpoint of it.

    Attributes:
        leaks, differing, weights: see `bench.experiments.report_record.Report`.
    """

    stages: Mapping[str, ExperimentStage]
    plan: Plan
    leaks: tuple[str, ...]
    differing: tuple[str, ...]
    weights: Mapping[str, float]


def prepare(ablation: Ablation, space: Workspace, conditions: Conditions) -> Prepared:
    """Read and check everything.

    Raises:
        BenchError: see `plan_of`, `check_device` and `check_leaks`.
    """
    stages = stages_of(ablation, space)
    plan = plan_of(ablation, stages, _here(ablation, conditions))
    if set(plan.rows[0].settings) != {"evaluate"}:
        check_device(space.device)
    on = plan.rows[0].settings["evaluate"]["on"]
    evaluated, weights = space.datasets(on), space.weights(on)
    alike = max(weights.values()) - min(weights.values()) < EQUAL
    return Prepared(
        stages=stages,
        plan=plan,
        leaks=check_leaks(plan, space, evaluated),
        differing=tuple(_differing(evaluated)),
        weights={} if alike else weights,
    )


def stages_of(ablation: Ablation, space: Workspace) -> dict[str, ExperimentStage]:
    """Return the stages of an ablation by name."""
    on = (ablation.evaluate or {}).get("on")
    held_out = tuple(on) if isinstance(on, list) else ()  # anything else is refused when resolved
    return {
        "base": Pretrain(space, "base"),
        "pretrain": Pretrain(space, after_base=ablation.base is not None),
        "adapt": Adapt(space, held_out, ablation.model),
        "finetune": Finetune(space, held_out),
        "evaluate": Evaluate(space),
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


def check_leaks(plan: Plan, space: Workspace, evaluated: Sequence[Dataset]) -> tuple[str, ...]:
    """Overlaps of training and scored texts, each in a sentence.

    Raises:
        BenchError: a row is trained on queries that it is scored on.
    """
    tuned = {(tuple(table["on"]), table["split"]) for table in _tables(plan, "finetune")}
    reading = ("base", "pretrain", "adapt")
    # The same collections in another order are read once.
    read = {name for stage in reading for table in _tables(plan, stage) for name in table["on"]}
    queries = [
        line
        for on, split in sorted(tuned)
        for dataset in space.datasets(on, split)
        for line in _queries(dataset, evaluated)
    ]
    texts = [
        line
        for name in sorted(read)
        for dataset in space.datasets([name])
        for line in _texts(dataset, evaluated)
    ]
    if read and not texts:
        texts = ["No text of the pre-training is, word for word, a scored query."]
    return tuple(dict.fromkeys([*queries, *texts]))


def _tables(plan: Plan, stage: str) -> Iterator[Table]:
    """Settings of a stage, of each row that has it."""
    return (row.settings[stage] for row in plan.rows if stage in row.settings)


def _queries(training: Dataset, evaluated: Sequence[Dataset]) -> Iterator[str]:
    split = f"split {training.facts.split} of {training.name}"
    for other in evaluated:
        leaked = leaks(training, other)
        left_out = ": they are left out." if leaked else "."
        yield (
            f"{len(leaked)} queries of the {split} read like one of the "
            f"{len(other.queries):,} scored queries of {other.name}{left_out}"
        )


def _texts(training: Dataset, evaluated: Sequence[Dataset]) -> Iterator[str]:
    """Documents of the pre-training that are a scored query, word for word."""
    texts = CorpusTexts([training.corpus])
    for other in evaluated:
        known = {normalised(text) for text in other.queries.texts}
        longest = SPACE * max(map(len, other.queries.texts), default=0)
        count = sum(len(text) <= longest and normalised(text) in known for text in texts)
        if count:
            yield (
                f"{count} texts of {training.name} for pre-training are word for word a scored "
                f"query of {other.name}."
            )
