"""Trainings: `pretrain`, `finetune`, `adapt` and `compose`, from names to a folder for ``run``.

The functions that end in ``_on`` take collections that are open already, as experiments have them.
Trainers, and with them torch, are imported once presets and files have been read: a mistake in them
is found at once.
"""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bench.evaluation.encoding import encode_documents, encode_queries
from bench.evaluation.exact import search_device
from bench.evaluation.index_search import ExactSearch, default_budget
from bench.evaluation.judging import drop_excluded, search_depth
from bench.evaluation.pipeline import current_conditions
from bench.evaluation.retriever import Resources
from bench.evaluation.vector_search import search_bm25
from bench.requests import training as requests
from bench.requests.fields import FolderFields
from bench.runner.workspace import Workspace, open_workspace
from bench.store.store import VectorStore
from bench.training.training_sets import (
    CorpusDocuments,
    CorpusTexts,
    TrainSplit,
    hash_split,
    leaked_queries,
    trained_collections,
    training_set,
)
from datasets_cfg.dataset import Dataset
from datasets_cfg.download import is_training_data
from datasets_cfg.readers.files import read_examples
from foundation.arrays import Float32Array
from foundation.errors import BenchError, MissingFileError
from foundation.machine import library_version
from retrievers.adapters.compose import (
    average_adapters,
    find_adapter_base,
    find_adapters,
    route_adapters,
)
from retrievers.encoders.bm25 import BM25
from retrievers.encoders.protocol import PhaseTimer
from retrievers.encoders.transformer import fit_router_on_queries, open_encoder
from retrievers.index.hits import Hits
from retrievers.models.resolve import Model, count_parameters, resolve_model
from retrievers.models.settings import ModelSettings
from retrievers.training.engine.context import (
    TrainingContext,
    check_device,
    log_folder,
)
from retrievers.training.engine.identity import Training
from retrievers.training.engine.run_folder import RunFolder
from retrievers.training.finetune.training_data import MinedHits
from retrievers.training.preset import FINETUNE_PRESETS, PRETRAIN_PRESETS, Finetuning, Pretraining

if TYPE_CHECKING:
    from retrievers.training.continual.sequence import Method
    from retrievers.training.finetune.finetune import FinetuneResult
    from retrievers.training.pretrain.pretrain import PretrainResult

TRAINING_LIBRARIES = ("accelerate", "sentence-transformers")  # besides those of an evaluation
TRAIN = "train"  # split of a collection that is there to train on


def pretrain(request: requests.PretrainRequest) -> "PretrainResult":
    """Pre-train an encoder on the documents of collections.

    The same request continues an interrupted training, and returns the result of a finished one.
    """
    context, preset = _context(request), load_pretraining(request)
    return pretrain_on(preset, open_workspace(request).documents(request.on), context)


def pretrain_on(
    preset: Pretraining, datasets: Sequence[Dataset], context: TrainingContext
) -> "PretrainResult":
    """Pre-train on the corpora of collections, without reading their queries or judgements."""
    texts = CorpusTexts([dataset.corpus for dataset in datasets])
    if not len(texts):
        raise BenchError(
            "there is nothing to train on: no document has a word", "Name collections with --on."
        )
    from retrievers.training.pretrain import pretrain as pretraining

    names = trained_collections([dataset.name for dataset in datasets])
    return pretraining.pretrain(preset, texts, context, trained_on=names)


def adapt(request: requests.AdaptRequest) -> "tuple[PretrainResult, ...]":
    """Continue pre-training on one collection after the other, and return one result for each."""
    context, preset = _context(request), load_pretraining(request)
    datasets = open_workspace(request).documents(request.on)
    from retrievers.training.continual.sequence import read_method

    method = read_method({"name": request.method, **request.method_settings})
    return adapt_on(preset, datasets, method, context)


def adapt_on(
    preset: Pretraining, datasets: Sequence[Dataset], method: "Method", context: TrainingContext
) -> "tuple[PretrainResult, ...]":
    """Pre-train on the corpus of each collection in turn, without reading queries or judgements."""
    from retrievers.training.continual import sequence

    domains = [
        sequence.Domain(
            dataset.name, CorpusTexts([dataset.corpus]), trained_collections([dataset.name])
        )
        for dataset in datasets
    ]
    return sequence.adapt(preset, domains, method, context)


def load_pretraining(request: requests.PretrainRequest) -> Pretraining:
    """Load the preset of a request, with its changes."""
    given = request.preset
    preset = given if isinstance(given, Pretraining) else PRETRAIN_PRESETS.load(given)
    options = {"objective.name": request.objective, "start.model": request.start}
    chosen = {name: value for name, value in options.items() if value}
    return PRETRAIN_PRESETS.changed(preset, {**chosen, **request.changes}, "--set")


def _context(request: requests.PretrainRequest | requests.FinetuneRequest) -> TrainingContext:
    """Return the context of the training that a request asks for."""
    check_device(request.device)
    log = request.log_dir and log_folder(request.log_dir, request.out)
    context = training_context(request.out, request.device, request, log)
    return replace(context, save_every=request.save_every, progress=request.progress)


def training_context(
    out: Path, device: str, request: FolderFields | None = None, log: Path | None = None
) -> TrainingContext:
    """Return the context of a training, whose record states its request and its conditions."""

    def conditions() -> dict[str, Any]:
        here: dict[str, Any] = msgspec.to_builtins(current_conditions(device, request=request))
        versions = {name: library_version(name) for name in TRAINING_LIBRARIES}
        here["libraries"] |= {name: version for name, version in versions.items() if version}
        return here

    return TrainingContext(out, device, conditions=conditions, log=log)


def finetune(request: requests.FinetuneRequest) -> "FinetuneResult":
    """Fine-tune an encoder on the judged queries of collections.

    Queries with the text of a test query are left out, with a warning. The same request continues
    an interrupted training, and returns the result of a finished one.
    """
    given = request.preset
    preset = given if isinstance(given, Finetuning) else FINETUNE_PRESETS.load(given)
    preset = FINETUNE_PRESETS.changed(preset, request.changes, "--set")
    context, workspace = _context(request), open_workspace(request)
    start = resolve_model(request.model, ModelSettings(like=request.like))
    names = workspace.expand_names(request.on, files=True)
    training = [workspace.dataset(name, request.split) for name in names]
    tested = open_test_sets(names, workspace.expand_names(request.held_out), workspace)
    return finetune_on(
        *(preset, start, training, workspace.resources, context),
        evaluated=list(tested.values()),
        negatives=request.negatives,
    )


def finetune_on(
    preset: Finetuning,
    model: Model,
    training: Sequence[Dataset],
    resources: Resources,
    context: TrainingContext,
    *,
    evaluated: Sequence[Dataset] = (),
    negatives: Path | None = None,
) -> "FinetuneResult":
    """Fine-tune a model on splits of collections, with hard negatives found by exact search.

    Training queries that read like a query of ``evaluated`` are left out, with a warning. Negatives
    that come with the queries, or are in the file ``negatives``, replace BM25's.
    """
    keep = max(mining.keep for mining in preset.rounds)
    splits = tuple(
        TrainSplit.of(dataset, leaked_queries(dataset, evaluated)).with_given(
            read_examples(negatives) if negatives else dataset.reader.examples(), keep
        )
        for dataset in training
    )
    from retrievers.training.finetune import finetune as finetuning

    start = apply_prompts(model, [dataset.name for dataset in training])
    search = CorpusSearch(splits, resources, context.out)
    return finetuning.finetune(preset, start, training_set(splits), context, search=search)


def open_test_sets(
    names: Sequence[str], held_out: Sequence[str], workspace: Workspace
) -> dict[str, Dataset]:
    """Open the test splits whose queries must not be trained on, by the name of the collection.

    They belong to the collections that are trained on, unless these have only a training split, and
    to the collections ``held_out``.
    """
    datasets = {}
    for name in itertools.filterfalse(is_training_data, dict.fromkeys((*held_out, *names))):
        try:
            dataset = workspace.dataset(name)
        except MissingFileError:
            if name in held_out:
                raise
            continue
        if name in held_out or dataset.metadata.split != TRAIN:
            datasets[name] = dataset
    return datasets


def apply_prompts(model: Model, names: Sequence[str]) -> Model:
    """Return ``model`` with the prompts that its card has for the collections ``names``."""
    models = [model.for_dataset(name) for name in names]
    if any(other.recipe.prompts != models[0].recipe.prompts for other in models):
        raise BenchError(
            f"{model.card.name} has different prompts for these collections",
            "Fine-tune on one after the other.",
        )
    return models[0]


@dataclass(frozen=True)
class CorpusSearch:
    """Exact search for negatives that looks up the queries of each collection in its own corpus.

    Vectors of models below ``training_folder``, which training still changes, stay there until
    their search ends.
    """

    splits: tuple[TrainSplit, ...]
    resources: Resources
    training_folder: Path

    def __call__(self, model: Model | None, depth: int) -> MinedHits:
        """Search for all training queries, see `NegativeSearch`."""
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
        dataset = split.dataset
        if model is None:
            bm25 = BM25(resolve_model("bm25").recipe)
            hits = search_bm25(dataset, bm25, search_depth(dataset, depth))
            lowest = np.full(len(split.positives), np.inf, np.float32)
        else:
            hits, lowest = self._with_vectors(split, model, search_depth(dataset, depth))
        return MinedHits(drop_excluded(dataset, hits, depth), lowest)

    def _with_vectors(
        self, split: TrainSplit, model: Model, depth: int
    ) -> tuple[Hits, Float32Array]:
        """Encode and search one collection. Return hits and lowest scores of relevant documents."""
        dataset, timer = split.dataset, PhaseTimer()
        device = self.resources.device
        encoder = open_encoder(model.for_dataset(dataset.name), device)
        folder = self.training_folder / "vectors"
        temporary = self._is_temporary(model)
        store = VectorStore(folder) if temporary else self.resources.store
        vectors = encode_documents(dataset, encoder, store)
        queries = encode_queries(dataset, encoder, store)
        budget = self.resources.max_memory or default_budget()
        exact = ExactSearch(dataset, search_device(device), budget, timer)
        hits = exact(vectors, queries, depth)
        lowest = [
            _dot_products(vectors.rows(rows), query).min()
            for rows, query in zip(split.positives, queries, strict=True)
        ]
        if temporary:
            shutil.rmtree(folder)
        return hits, np.array(lowest, np.float32)

    def _is_temporary(self, model: Model) -> bool:
        folders = [model.adapter, model.document.root if model.document else None]
        training = self.training_folder.resolve()
        return any(folder is not None and folder.is_relative_to(training) for folder in folders)


def _dot_products(documents: Float32Array, query: Float32Array) -> Float32Array:
    """Return dot products as exact search computes them: in float64, rounded to float32."""
    return (documents.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)


class ComposedAdapter(msgspec.Struct, frozen=True):
    """Summary of a composed adapter.

    Attributes:
        folder: folder of the adapter.
        how: method of combination, see `ComposeRequest`.
        base: name of the common base model.
        adapters: folders of the combined adapters.
        parameters: number of parameters of the adapter, without the base.
        trained_on: collections that the adapters were trained on, and the base was not.
        found: True if the adapter was there before this call, which wrote nothing.
    """

    folder: str
    how: str
    base: str
    adapters: tuple[str, ...]
    parameters: int
    trained_on: tuple[str, ...]
    found: bool = False


def compose(request: requests.ComposeRequest) -> ComposedAdapter:
    """Combine adapters of one base, and write the result. The same request finds it again."""
    base = find_adapter_base(request.adapters)
    parts = find_adapters(base, request.adapters)
    splits = _open_domains(request)
    known = base.card.trained_on
    training = Training(
        start={"base": base.recipe.fingerprint, **parts.hashes},
        data={name: hashed for split in splits for name, hashed in hash_split(split).items()},
        kind="compose",
        preset={"how": request.how},
        trained_on=tuple(name for name in parts.trained_on if name not in known),
    )
    folder = RunFolder(training_context(request.out, "cpu", request), training)

    def write() -> ComposedAdapter:
        if splits and not folder.has_model:
            domains = [trained_collections([split.name]) for split in splits]
            texts = [split.queries.texts for split in splits]
            route_adapters(parts, request.out, domains, fit_router_on_queries(base, texts))
        elif not folder.has_model:
            average_adapters(parts, request.out)
        counted = count_parameters(resolve_model(str(request.out)))
        return ComposedAdapter(
            folder=str(request.out),
            how=request.how,
            base=base.card.name,
            adapters=tuple(map(str, request.adapters)),
            parameters=(counted.adapter or counted.total) if counted else 0,
            trained_on=training.trained_on,
        )

    return folder.train_once(ComposedAdapter, write)


def _open_domains(request: requests.ComposeRequest) -> list[Dataset]:
    """Return the training split of the collection that each routed adapter is for."""
    if request.how != "route":
        return []
    workspace = open_workspace(request)
    training = [workspace.dataset(name, TRAIN) for name in workspace.expand_names(request.on)]
    if len(training) != len(request.adapters):
        raise BenchError(
            f"{len(training)} collections for {len(request.adapters)} adapters",
            "Name one collection for each adapter, in the same order: --on A B.",
        )
    return [TrainSplit.of(dataset).dataset for dataset in training]
