"""The stage ``evaluate``: a checkpoint on collections, or every checkpoint of a sequence."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bench.evaluate.judging import resolve_measures
from bench.evaluate.pipeline import evaluate
from bench.evaluate.retrieval import EvaluationOptions, LoadedModel
from bench.experiments.experiment import MODEL, CellTask, Cost, ExperimentStage
from bench.experiments.grid import Table
from bench.experiments.training_stages import CheckpointSequence, read_sequence, write_sequence
from bench.results.find import find_results
from bench.results.result import save
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.records import Record, convert_table
from retrievers.encoders.routed import open_encoder
from retrievers.encoders.views import View, recipe_with_every_pooling
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import write_card
from retrievers.models.model import Model, resolve_model
from retrievers.models.recipe import Backend, Dtype, Prompts, StoreDtype

RESULTS, VECTORS, START = "results", "vectors", "start"
Count = Annotated[int, msgspec.Meta(ge=1)]


class EvaluateSettings(Record, kw_only=True):
    """Settings of the stage that scores a checkpoint.

    Attributes:
        on: collections or suites.
        measures: besides the main one of each collection; None for the collection's own.
        depth: documents per query; None for the collection's.
        index: ``flat`` is exact.
        dtype, store_dtype, backend, max_query_tokens, max_document_tokens: as `resolve_model`.
        query_prompt, document_prompt: instead of the model's.
        view: what is made of the vectors after the forward pass, instead of what the model does;
            evaluations that differ in nothing else share one encoding.
    """

    on: tuple[str, ...]
    measures: tuple[str, ...] | None = None
    depth: Count | None = None
    index: str = "flat"
    dtype: Dtype | None = None
    store_dtype: StoreDtype = "float32"
    backend: Backend | None = None
    max_query_tokens: Count | None = None
    max_document_tokens: Count | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    view: View | None = None


@dataclass(frozen=True)
class CheckpointScores:
    """A checkpoint on one collection.

    Attributes:
        values: float64 ``(queries,)`` of the measure.
    """

    measure: str
    query_ids: tuple[str, ...]
    values: Float64Array


@dataclass(frozen=True)
class EvaluateStage(ExperimentStage):
    """Encoding, searching and scoring."""

    workspace: Workspace

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """All fields of `EvaluateSettings`."""
        settings = convert_table(table, EvaluateSettings, "[evaluate]")
        spec = IndexSpec.parse(settings.index)
        if spec.is_bm25 and settings.view and settings.view.similarity == "euclidean":
            raise BenchError(
                "[evaluate]: the index bm25 multiplies with similarities, and euclidean ones are "
                "below 0",
                'similarity = "dot"',
            )
        if not settings.on:
            raise BenchError("[evaluate] needs on, a list of collections")
        for dataset in self.workspace.datasets(settings.on):
            resolve_measures(dataset, settings.measures, settings.depth)
            self.workspace.open(dataset)
        resolved: Table = msgspec.to_builtins(settings)
        return resolved

    def with_seed(self, settings: Table, seed: int) -> Table:
        """An evaluation draws nothing."""
        return settings

    def key_settings(self, settings: Table) -> Table:
        """With the first layers that went without an adapter once."""
        return {"adapter_drop": 0, **settings}

    def hash_inputs(self, settings: Table) -> dict[str, str]:
        """The protocol of each collection, with its hashes, and the measures."""
        chosen = convert_table(settings, EvaluateSettings, "[evaluate]")
        rules = {}
        for dataset in self.workspace.datasets(chosen.on):
            protocol = self.workspace.open(dataset).protocol(chosen.depth)
            measures = resolve_measures(dataset, chosen.measures, chosen.depth)
            rules[dataset.name] = msgspec.json.encode([protocol, measures]).decode()
        return rules

    def run(self, settings: Table, model: str, out: Path) -> Cost:
        """Encode, search and score; vectors of checkpoints of the ablation are not kept."""
        chosen = convert_table(settings, EvaluateSettings, "[evaluate]")
        tokens, parameters = 0, 0
        for name, like in _models_to_evaluate(model, out):
            is_trained_here = MODEL in (Path(name).name, Path(name).parent.name)
            vectors = str((out / VECTORS).resolve()) if is_trained_here else self.workspace.vectors
            workspace = replace_field(self.workspace, vectors=vectors)
            loaded = self._load(_resolve_with_settings(name, chosen, like), chosen.view)
            for dataset in self.workspace.datasets(chosen.on):
                spent, parameters = self._score(workspace, dataset, loaded, chosen, out)
                tokens += spent
        shutil.rmtree(out / VECTORS, ignore_errors=True)
        return Cost(tokens=tokens, parameters=parameters)

    def _load(self, model: Model, view: View | None) -> LoadedModel:
        if model.recipe.kind == "bm25":
            return LoadedModel(model, None)
        encoder = open_encoder(model, self.workspace.device)
        if view:
            model = replace_field(model, recipe=view.recipe(model.recipe))
        return LoadedModel(model, encoder)

    def _score(
        self,
        workspace: Workspace,
        dataset: Dataset,
        model: LoadedModel,
        chosen: EvaluateSettings,
        out: Path,
    ) -> tuple[int, int]:
        """Tokens that were encoded, and parameters of the encoder."""
        options = EvaluationOptions(
            index=IndexSpec.parse(chosen.index),
            depth=chosen.depth,
            measures=chosen.measures,
            view=chosen.view,
        )
        done = evaluate(workspace.prepare(workspace.open(dataset), model, options))
        save(done, out / RESULTS)
        counted = done.result.parameters
        return done.result.timings.encoded_tokens, counted.total if counted else 0


def _models_to_evaluate(model: str, out: Path) -> Iterator[tuple[str, str | None]]:
    """Models to evaluate, each with the card that it is used like, where that is another.

    A sequence is evaluated whole: what it starts from, then each checkpoint, which is used as the
    start is. Its record is kept beside the results.
    """
    sequence = read_sequence(Path(model))
    if sequence is None:
        yield model, None
        return
    write_sequence(sequence, out)
    yield sequence.start, None
    (out / START).mkdir(exist_ok=True)
    start = str(write_card(resolve_model(sequence.start).card, out / START))
    for folder in (str(Path(model) / name) for name in sequence.checkpoints):
        # An adapter has a card of its own, made of the start's.
        yield folder, None if resolve_model(folder).adapter else start


def _resolve_with_settings(model: str, chosen: EvaluateSettings, like: str | None) -> Model:
    """The model as it is encoded with: with every pooling where there is a view."""
    resolved = resolve_model(
        model,
        like=like,
        dtype=chosen.dtype,
        store_dtype=chosen.store_dtype,
        backend=chosen.backend,
        max_query_tokens=chosen.max_query_tokens,
        max_document_tokens=chosen.max_document_tokens,
    )
    recipe = resolved.recipe
    if chosen.query_prompt is not None or chosen.document_prompt is not None:
        query, document = chosen.query_prompt, chosen.document_prompt
        prompts = Prompts(
            recipe.prompts.query if query is None else query,
            recipe.prompts.document if document is None else document,
        )
        recipe = msgspec.structs.replace(recipe, prompts=prompts, dataset_prompts={})
    if chosen.view:
        recipe = recipe_with_every_pooling(recipe)
        chosen.view.width(recipe.dim)
    return replace_field(resolved, recipe=recipe)


@dataclass(frozen=True)
class SequenceScores:
    """A sequence and its scores.

    Attributes:
        scores: by model and collection.
    """

    sequence: CheckpointSequence
    scores: Mapping[tuple[str, str], CheckpointScores]

    @property
    def start(self) -> str:
        """Name of what the sequence starts from, by which its results are known."""
        return next(name for name, _ in self.scores if name not in self.sequence.checkpoints)

    def select(self, checkpoints: Mapping[str, str]) -> dict[str, CheckpointScores]:
        """Scores on collections, each of the checkpoint that is named for it."""
        return {name: self.scores[model, name] for name, model in checkpoints.items()}


def read_sequence_scores(task: CellTask, out: Path) -> SequenceScores | None:
    """The sequence of a finished evaluation; None if none was evaluated."""
    folder = task.folder(out)
    sequence = read_sequence(folder)
    return SequenceScores(sequence, _read_results(folder)) if sequence else None


def read_scores(task: CellTask, out: Path) -> dict[str, CheckpointScores]:
    """Main measure of each query of a finished evaluation, by collection.

    After a sequence, a collection is searched as `CheckpointSequence.searched_with` says.
    """
    folder = task.folder(out)
    sequence = read_sequence(folder)
    return {
        collection: scored
        for (model, collection), scored in _read_results(folder).items()
        if sequence is None or model == sequence.searched_with(collection)
    }


def _read_results(folder: Path) -> dict[tuple[str, str], CheckpointScores]:
    """The main measure of each query of stored results, by model and collection."""
    found = {}
    for stored in find_results(folder / RESULTS):
        measure, scores = stored.result.main_measure, stored.scores
        scored = CheckpointScores(measure, scores.query_ids, scores.values[measure])
        found[stored.result.model, stored.collection] = scored
    return found
