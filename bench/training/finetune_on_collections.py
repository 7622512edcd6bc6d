"""Fine-tune on collections: names in, a checkpoint that ``run`` evaluates out."""

import sys
from collections.abc import Sequence

from bench.store import VectorStore
from bench.training.leaks import leaks
from bench.training.mining import Searcher
from bench.training.training_sets import Split, draw_queries, training_set
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.models.model import Model
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.finetune.finetune import Finetuned, finetune
from retrievers.training.finetune.finetune_preset import Finetuning

NAMED_QUERIES = 3


def finetune_on(
    preset: Finetuning,
    model: Model,
    training: Sequence[Dataset],
    store: VectorStore,
    context: TrainingContext,
    *,
    evaluated: Sequence[Dataset] = (),
    queries: int | None = None,
    max_memory: int | None = None,
) -> Finetuned:
    """Fine-tune a model on splits of collections, with negatives that the suite's search mines.

    Training queries that read like an evaluated one are left out, with a warning.

    Args:
        model: where training starts.
        training: collections, opened with the split that is trained on.
        store: of vectors that other commands use too; those of models that are still trained are
            kept in the context's folder until they were searched.
        context: whose folder gets the checkpoint.
        evaluated: what the result will be scored on.
        queries: how many to train on, drawn at random with the preset's seed from those of all
            collections; None for all.
        max_memory: see `Searcher`.

    Raises:
        BenchError: a split is itself evaluated, or there is nothing or too little to train on.
        BenchError: see `retrievers.training.finetune.finetune.finetune`.
    """
    splits = tuple(Split.of(dataset, leaked(dataset, evaluated)) for dataset in training)
    if queries is not None:
        splits = draw_queries(splits, queries, preset.seed)
    return finetune(
        preset,
        with_prompts(model, [dataset.name for dataset in training]),
        training_set(splits),
        context,
        mine=Searcher(splits, store, context.out, context.device, max_memory),
    )


def leaked(training: Dataset, evaluated: Sequence[Dataset]) -> frozenset[str]:
    """Ids of the training queries that must be left out.

    Raises:
        BenchError: see `leaks`.
    """
    left_out: set[str] = set()
    for other in evaluated:
        if shared := leaks(training, other):
            named = ", ".join(shared[:NAMED_QUERIES])
            more = ", …" if len(shared) > NAMED_QUERIES else ""
            print(
                f"warning: {len(shared)} training queries of {training.name} read like test "
                f"queries of {other.name} and are left out: {named}{more}",
                file=sys.stderr,
            )
        left_out.update(shared)
    return frozenset(left_out)


def with_prompts(model: Model, names: Sequence[str]) -> Model:
    """The model with the prompts of the collections.

    Raises:
        BenchError: it has different ones for them.
    """
    models = [model.for_dataset(name) for name in names]
    if any(other.recipe.prompts != models[0].recipe.prompts for other in models):
        raise BenchError(
            f"{model.card.name} has different prompts for these collections",
            "fine-tune on one after the other",
        )
    return models[0]
