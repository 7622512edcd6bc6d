"""Training on collections: names in, checkpoints that ``run`` evaluates out."""

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.store import VectorStore
from bench.training.leaks import leaks, seen
from bench.training.mining import Searcher
from bench.training.training_sets import CorpusTexts, Split, draw_queries, training_set
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.adapters.routing import route_adapters
from retrievers.encoders.routed import learn_router
from retrievers.models.model import Model
from retrievers.training.continual.sequence import Domain, Method, adapt
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.finetune.finetune import Finetuned, finetune
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import Trained, pretrain

NAMED_QUERIES = 3


def pretrain_on(
    preset: Pretraining, datasets: Sequence[Dataset], context: TrainingContext
) -> Trained:
    """Pre-train on the corpora of collections; queries and judgements are not read.

    Args:
        preset: see `retrievers.training.pretrain.preset`.
        context: whose folder gets the checkpoint.

    Raises:
        BenchError: no collection has a document with a word.
        BenchError: see `Dataset.corpus` and `retrievers.training.pretrain.pretrain`.
    """
    texts = CorpusTexts([dataset.corpus for dataset in datasets])
    if not len(texts):
        raise BenchError("there is nothing to train on", "name collections with --on")
    names = [dataset.name for dataset in datasets]
    return pretrain(preset, texts, context, trained_on=seen(names))


def adapt_on(
    preset: Pretraining,
    datasets: Sequence[Dataset],
    method: Method,
    context: TrainingContext,
) -> tuple[Trained, ...]:
    """Pre-train on the corpus of each collection in turn; queries and judgements are not read.

    Args:
        preset: of each training.
        context: whose folder gets the checkpoints.

    Raises:
        BenchError: see `Dataset.corpus` and `retrievers.training.continual.sequence`.
    """
    domains = [
        Domain(dataset.name, CorpusTexts([dataset.corpus]), seen([dataset.name]))
        for dataset in datasets
    ]
    return adapt(preset, domains, method, context)


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


def route_on(base: Model, folders: Sequence[Path], out: Path, training: Sequence[Dataset]) -> None:
    """Write adapters that queries choose among.

    Args:
        training: for each adapter the collection of its domain, opened with the split whose
            queries are its texts.

    Raises:
        BenchError: not one collection for each adapter, one without such queries, or see
            `retrievers.adapters.routing.route_adapters`.
    """
    if len(training) != len(folders):
        raise BenchError(
            f"{len(training)} collections for {len(folders)} adapters",
            "name one for each, in their order: --on A B",
        )
    domains = [seen([dataset.name]) for dataset in training]
    texts = [Split.of(dataset).queries.texts for dataset in training]
    route_adapters(base, folders, out, domains, learn_router(base, texts))
