"""Training on collections: names in, checkpoints that ``run`` evaluates out."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.evaluate.index_search import ExactSearch, default_budget
from bench.evaluate.retrieval import (
    apply_exclude_self,
    depth_with_self_match,
    encode_documents,
    search_bm25,
    search_device,
)
from bench.store import VectorStore
from bench.training.training_sets import (
    CorpusDocuments,
    CorpusTexts,
    TrainingSplit,
    draw_queries,
    leaked_queries,
    trained_collections,
    training_set,
)
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from foundation.errors import BenchError
from retrievers.adapters.compose import route_adapters
from retrievers.encoders.bm25 import BM25
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.routed import fit_router_on_queries, open_encoder
from retrievers.index.faiss_index import Hits
from retrievers.models.model import Model, resolve_model
from retrievers.training.continual.sequence import Domain, Method, adapt
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.finetune.finetune import FinetuneResult, finetune
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.finetune.training_data import MinedHits
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import PretrainResult, pretrain


def pretrain_on(
    preset: Pretraining, datasets: Sequence[Dataset], context: TrainingContext
) -> PretrainResult:
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
    return pretrain(preset, texts, context, trained_on=trained_collections(names))


def adapt_on(
    preset: Pretraining,
    datasets: Sequence[Dataset],
    method: Method,
    context: TrainingContext,
) -> tuple[PretrainResult, ...]:
    """Pre-train on the corpus of each collection in turn; queries and judgements are not read.

    Args:
        preset: of each training.
        context: whose folder gets the checkpoints.

    Raises:
        BenchError: see `Dataset.corpus` and `retrievers.training.continual.sequence`.
    """
    domains = [
        Domain(dataset.name, CorpusTexts([dataset.corpus]), trained_collections([dataset.name]))
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
) -> FinetuneResult:
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
        max_memory: see `CollectionSearch`.

    Raises:
        BenchError: a split is itself evaluated, or there is nothing or too little to train on.
        BenchError: see `retrievers.training.finetune.finetune.finetune`.
    """
    splits = tuple(
        TrainingSplit.of(dataset, leaked_queries(dataset, evaluated)) for dataset in training
    )
    if queries is not None:
        splits = draw_queries(splits, queries, preset.seed)
    return finetune(
        preset,
        apply_prompts(model, [dataset.name for dataset in training]),
        training_set(splits),
        context,
        search=CollectionSearch(splits, store, context.out, context.device, max_memory),
    )


def apply_prompts(model: Model, names: Sequence[str]) -> Model:
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
            `retrievers.adapters.compose.route_adapters`.
    """
    if len(training) != len(folders):
        raise BenchError(
            f"{len(training)} collections for {len(folders)} adapters",
            "name one for each, in their order: --on A B",
        )
    domains = [trained_collections([dataset.name]) for dataset in training]
    texts = [TrainingSplit.of(dataset).dataset.queries.texts for dataset in training]
    route_adapters(base, folders, out, domains, fit_router_on_queries(base, texts))


@dataclass(frozen=True)
class CollectionSearch:
    """The suite's search for negatives: each collection of a training set, by its own queries.

    Attributes:
        splits: as the training set was made of.
        store: of vectors of models that others use too.
        training_folder: vectors of models below it are temporary: training still changes them.
        max_memory: bytes that this process may hold while it searches; None for most of what is
            free.
    """

    splits: tuple[TrainingSplit, ...]
    store: VectorStore
    training_folder: Path
    device: str = "auto"
    max_memory: int | None = None

    def __call__(self, model: Model | None, depth: int) -> MinedHits:
        """Search with an encoder, exactly; with BM25 where ``model`` is None."""
        found = [self._search(split, model, depth) for split in self.splits]
        starts = CorpusDocuments(tuple(split.dataset.corpus for split in self.splits)).starts
        rows = [
            np.where(mined.hits.rows >= 0, mined.hits.rows + start, -1)
            for mined, start in zip(found, starts[:-1], strict=True)
        ]
        scores = np.concatenate([mined.hits.scores for mined in found])
        lowest = np.concatenate([mined.lowest for mined in found])
        return MinedHits(Hits(scores, np.concatenate(rows)), lowest)

    def _search(self, split: TrainingSplit, model: Model | None, depth: int) -> MinedHits:
        dataset = split.dataset
        if model is None:
            bm25 = BM25(resolve_model("bm25").recipe)
            hits = search_bm25(dataset, bm25, depth_with_self_match(dataset, depth))
            lowest = np.full(len(split.positives), np.inf, np.float32)
        else:
            hits, lowest = self._with_vectors(split, model, depth_with_self_match(dataset, depth))
        return MinedHits(apply_exclude_self(dataset, hits, depth), lowest)

    def _with_vectors(
        self, split: TrainingSplit, model: Model, depth: int
    ) -> tuple[Hits, Float32Array]:
        dataset, timer = split.dataset, PhaseTimer()
        encoder = open_encoder(model.for_dataset(dataset.name), self.device)
        folder = self.training_folder / "vectors"
        temporary = self._is_temporary(model)
        store = VectorStore(folder) if temporary else self.store
        vectors = encode_documents(dataset, encoder, store)
        queries = store.queries(encoder, dataset.queries.texts)
        budget = self.max_memory or default_budget()
        exact = ExactSearch(dataset, search_device(self.device), budget, timer)
        hits = exact(vectors, queries, depth)
        lowest = [
            _dot_products(vectors.rows(rows), query).min()
            for rows, query in zip(split.positives, queries, strict=True)
        ]
        if temporary:
            shutil.rmtree(folder)
        return hits, np.array(lowest, np.float32)

    def _is_temporary(self, model: Model) -> bool:
        """True if its weights, or those of its adapter, change when training goes on."""
        folders = [model.adapter, model.document.root if model.document else None]
        training = self.training_folder.resolve()
        return any(folder is not None and folder.is_relative_to(training) for folder in folders)


def _dot_products(documents: Float32Array, query: Float32Array) -> Float32Array:
    """Scores of exact search: the dot product in float64, rounded to float32."""
    return (documents.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
