"""Training on collections: takes their names, writes checkpoints that ``run`` can evaluate."""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.evaluation.collection_search import encode_documents, search_bm25, search_device
from bench.evaluation.index_search import (
    ExactSearch,
    apply_exclude_self,
    default_budget,
    search_depth,
)
from bench.runner.workspace import Workspace
from bench.store.store import VectorStore
from bench.training.training_sets import (
    CorpusDocuments,
    CorpusTexts,
    TrainSplit,
    draw_queries,
    leaked_queries,
    trained_collections,
    training_set,
)
from datasets_cfg.dataset import Dataset
from datasets_cfg.locate import is_training_data
from datasets_cfg.readers.files import read_examples
from foundation.arrays import Float32Array
from foundation.errors import BenchError, MissingFileError
from retrievers.adapters.compose import route_adapters
from retrievers.encoders.bm25 import BM25
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.transformer import fit_router_on_queries, open_encoder
from retrievers.index.hits import Hits
from retrievers.models.resolve import Model, resolve_model
from retrievers.training.continual.sequence import Domain, Method, adapt
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.finetune.finetune import FinetuneResult, finetune
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.finetune.training_data import MinedHits
from retrievers.training.pretrain.preset import Pretraining
from retrievers.training.pretrain.pretrain import PretrainResult, pretrain

TRAIN = "train"  # split of a collection that is there to train on


def pretrain_on(
    preset: Pretraining, datasets: Sequence[Dataset], context: TrainingContext
) -> PretrainResult:
    """Pre-train on the corpora of collections, without reading their queries or judgements.

    Args:
        preset: objective, start and length of the training.
        datasets: collections whose documents are read.
        context: device and output folder of the training.

    Raises:
        BenchError: If no collection has a document with a word, or for the reasons listed in
            `Dataset.corpus` and `retrievers.training.pretrain.pretrain`.
    """
    texts = CorpusTexts([dataset.corpus for dataset in datasets])
    if not len(texts):
        raise BenchError(
            "there is nothing to train on: no document has a word", "Name collections with --on."
        )
    names = [dataset.name for dataset in datasets]
    return pretrain(preset, texts, context, trained_on=trained_collections(names))


def adapt_on(
    preset: Pretraining, datasets: Sequence[Dataset], method: Method, context: TrainingContext
) -> tuple[PretrainResult, ...]:
    """Pre-train on the corpus of each collection in turn, without reading queries or judgements.

    Args:
        preset: objective, start and length of each training.
        datasets: collections, in the order in which they are learnt.
        method: continual learning method.
        context: device and output folder of the whole sequence.

    Returns:
        One result for each collection, in order.

    Raises:
        BenchError: For the reasons listed in `Dataset.corpus` and
            `retrievers.training.continual.sequence.adapt`.
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
    negatives: Path | None = None,
    queries: int | None = None,
    max_memory: int | None = None,
) -> FinetuneResult:
    """Fine-tune a model on splits of collections, with hard negatives found by exact search.

    Training queries that read like an evaluated query are left out, with a warning. Negatives that
    come with the queries replace BM25's, see `Finetuning.with_file`.

    Args:
        preset: rounds, loss and length of the training.
        model: model that training starts from.
        training: collections, opened with the split to train on.
        store: vectors shared with other commands. Vectors of models that are still being trained go
            to the training's folder instead, and are removed after the search.
        context: device and output folder of the training.
        evaluated: collections that the result will be scored on.
        negatives: training file with ids of the only collection. Its queries are trained on.
        queries: number of training queries, drawn with the preset's seed from all collections. None
            uses all of them.
        max_memory: bytes that a search may use, see `CorpusSearch`.

    Raises:
        BenchError: If a training split is itself evaluated, if there is too little to train on, or
            for the reasons listed in `retrievers.training.finetune.finetune.finetune`.
    """
    if negatives is not None and len(training) > 1:
        raise BenchError(
            f"{negatives} holds ids of one collection, but there are {len(training)}",
            "Name one collection with --on.",
        )
    keep = max(mining.keep for mining in preset.rounds)
    splits = tuple(
        TrainSplit.of(dataset, leaked_queries(dataset, evaluated)).with_given(
            read_examples(negatives) if negatives else dataset.reader.examples(), keep
        )
        for dataset in training
    )
    if queries is not None:
        splits = draw_queries(splits, queries, preset.seed)
    start = apply_prompts(model, [dataset.name for dataset in training])

    search = CorpusSearch(splits, store, context.out, context.device, max_memory)
    return finetune(preset, start, training_set(splits), context, search=search)


def open_test_sets(
    names: Sequence[str], held_out: Sequence[str], workspace: Workspace
) -> dict[str, Dataset]:
    """Open the test splits whose queries must not be trained on, by the name of the collection.

    Args:
        names: collections that are trained on. Folders with only a training split, and training
            files, have none.
        held_out: further collections.
        workspace: folders of the collections.

    Raises:
        BenchError: If a collection is missing, or cannot be read.
    """
    datasets = {}
    for name in itertools.filterfalse(is_training_data, dict.fromkeys((*held_out, *names))):
        try:
            dataset = workspace.dataset(name)
        except MissingFileError:
            if name in held_out:
                raise
            continue
        if name in held_out or dataset.facts.split != TRAIN:
            datasets[name] = dataset
    return datasets


def apply_prompts(model: Model, names: Sequence[str]) -> Model:
    """Return ``model`` with the prompts that its card has for the collections ``names``.

    Raises:
        BenchError: If the card has different prompts for them.
    """
    models = [model.for_dataset(name) for name in names]
    if any(other.recipe.prompts != models[0].recipe.prompts for other in models):
        raise BenchError(
            f"{model.card.name} has different prompts for these collections",
            "Fine-tune on one after the other.",
        )
    return models[0]


def route_on(base: Model, folders: Sequence[Path], out: Path, training: Sequence[Dataset]) -> None:
    """Write adapters together with a router that picks one of them for each query.

    Args:
        base: model that all adapters were trained on.
        folders: one folder for each adapter.
        out: folder to write.
        training: collection of each adapter's domain, opened with the split whose queries the
            router is fitted on.

    Raises:
        BenchError: If the number of collections and adapters differ, if a collection has no
            training queries, or for the reasons listed in
            `retrievers.adapters.compose.route_adapters`.
    """
    if len(training) != len(folders):
        raise BenchError(
            f"{len(training)} collections for {len(folders)} adapters",
            "Name one collection for each adapter, in the same order: --on A B.",
        )
    domains = [trained_collections([dataset.name]) for dataset in training]
    texts = [TrainSplit.of(dataset).dataset.queries.texts for dataset in training]
    route_adapters(base, folders, out, domains, fit_router_on_queries(base, texts))


@dataclass(frozen=True)
class CorpusSearch:
    """Exact search for negatives that looks up the queries of each collection in its own corpus.

    Attributes:
        splits: the splits that the training set was made from, in order.
        store: vectors of models that other commands use too.
        training_folder: output folder of the training. Vectors of models below it are temporary.
        device: ``auto``, ``cpu`` or ``cuda``.
        max_memory: bytes that this process may use during a search. None takes most of the free
            memory.
    """

    splits: tuple[TrainSplit, ...]
    store: VectorStore
    training_folder: Path
    device: str = "auto"
    max_memory: int | None = None

    def __call__(self, model: Model | None, depth: int) -> MinedHits:
        """Search for all training queries with ``model``, or with BM25 if it is None.

        Args:
            model: encoder to search with, or None.
            depth: documents to return for each query.
        """
        found = [self._search(split, model, depth) for split in self.splits]
        starts = CorpusDocuments(tuple(split.dataset.corpus for split in self.splits)).starts
        rows = [
            np.where(mined.hits.rows >= 0, mined.hits.rows + start, -1)
            for mined, start in zip(found, starts[:-1], strict=True)
        ]
        scores = np.concatenate([mined.hits.scores for mined in found])
        lowest = np.concatenate([mined.lowest for mined in found])
        return MinedHits(Hits(scores, np.concatenate(rows)), lowest)

    def _search(self, split: TrainSplit, model: Model | None, depth: int) -> MinedHits:
        """Search one collection and drop the documents that are the query itself."""
        dataset = split.dataset
        if model is None:
            bm25 = BM25(resolve_model("bm25").recipe)
            hits = search_bm25(dataset, bm25, search_depth(dataset, depth))
            lowest = np.full(len(split.positives), np.inf, np.float32)
        else:
            hits, lowest = self._with_vectors(split, model, search_depth(dataset, depth))
        return MinedHits(apply_exclude_self(dataset, hits, depth), lowest)

    def _with_vectors(
        self, split: TrainSplit, model: Model, depth: int
    ) -> tuple[Hits, Float32Array]:
        """Encode and search one collection. Return hits and lowest scores of relevant documents."""
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
        """Return whether training still changes the weights of the model or of its adapter."""
        folders = [model.adapter, model.document.root if model.document else None]
        training = self.training_folder.resolve()
        return any(folder is not None and folder.is_relative_to(training) for folder in folders)


def _dot_products(documents: Float32Array, query: Float32Array) -> Float32Array:
    """Return dot products as exact search computes them: in float64, rounded to float32."""
    return (documents.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
