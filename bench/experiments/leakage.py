"""Check before any work that nothing is trained on that the cells are scored on.

A training split that is itself scored is refused. Single training queries that read like a scored
one are left out of the fine-tuning; a text of the pre-training that is a scored query is reported.
"""

from collections.abc import Iterator, Sequence

from bench.experiments.grid import Table
from bench.experiments.plan import Plan
from bench.training.leaks import leaks, normalised
from bench.training.training_sets import CorpusTexts
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset

SPACE = 4  # a text of more than so many times a query's characters does not read like it


def check_leaks(plan: Plan, space: Workspace) -> tuple[str, ...]:
    """Overlaps of training and scored texts, each in a sentence.

    Raises:
        BenchError: a row is trained on queries that it is scored on.
    """
    evaluated = space.datasets(plan.rows[0].settings["evaluate"]["on"])
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
