"""The stage ``evaluate``: scores of a checkpoint, or of every checkpoint of a sequence."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bench.evaluation.collection_search import EvaluationOptions, LoadedModel
from bench.evaluation.judging import resolve_measures
from bench.evaluation.pipeline import evaluate
from bench.experiments.experiment import MODEL, CellTask, Cost, ExperimentStage
from bench.experiments.grid import Table, rename_options
from bench.experiments.training_stages import CheckpointSequence, read_sequence, write_sequence
from bench.result_store.find import find_results
from bench.result_store.result import save
from bench.runner.workspace import Workspace
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.records import Record, convert_table
from retrievers.encoders.open import open_encoder
from retrievers.encoders.views import View, recipe_with_every_pooling
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import write_card
from retrievers.models.recipe import ModelDtype, Prompts, StoreDtype
from retrievers.models.resolve import Model, resolve_model

RESULTS, VECTORS, START = "results", "vectors", "start"
Count = Annotated[int, msgspec.Meta(ge=1)]


class EvaluateSettings(Record, kw_only=True):
    """Settings of the stage ``evaluate``.

    Attributes:
        on: collections or suites.
        measures: measures besides the main one; None for the further measures of each collection.
        depth: documents per query; None for the collection's depth.
        index: FAISS factory string; ``flat`` is exact search.
        dtype, store_dtype, max_query_tokens, max_document_tokens: as for `resolve_model`.
        query_prompt, document_prompt: prompts instead of the model's.
        view: how vectors are made after the forward pass, instead of the model's way. Evaluations
            that differ only in their view share one encoding.
    """

    on: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    measures: tuple[str, ...] | None = None
    depth: Count | None = None
    index: str = "flat"
    dtype: ModelDtype | None = None
    store_dtype: StoreDtype = "float32"
    max_query_tokens: Count | None = None
    max_document_tokens: Count | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    view: View | None = None


@dataclass(frozen=True)
class CheckpointScores:
    """Scores of a checkpoint on one collection.

    Attributes:
        measure: name of the measure.
        query_ids: ids of the queries.
        values: float64 ``(queries,)``, values of the measure.
    """

    measure: str
    query_ids: tuple[str, ...]
    values: Float64Array


@dataclass(frozen=True)
class EvaluateStage(ExperimentStage):
    """The stage that encodes, searches and scores."""

    workspace: Workspace

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """Return all fields of `EvaluateSettings` for ``table``, after all checks."""
        settings = convert_table(rename_options(table), EvaluateSettings, "[evaluate]")
        spec = IndexSpec.parse(settings.index)
        if spec.is_bm25 and settings.view and settings.view.similarity == "euclidean":
            raise BenchError(
                "[evaluate]: the index bm25 multiplies with similarities, and euclidean ones are "
                "below 0",
                'similarity = "dot"',
            )
        for dataset in self.workspace.datasets(settings.on):
            resolve_measures(dataset, settings.measures, settings.depth)
            self.workspace.open(dataset)
        resolved: Table = msgspec.to_builtins(settings)
        return resolved

    def with_seed(self, settings: Table, seed: int) -> Table:
        """Return ``settings`` without a ``seed``, because an evaluation is deterministic."""
        return settings

    def hash_inputs(self, settings: Table) -> dict[str, str]:
        """Return protocol, hashes and measures of each collection in ``settings``."""
        chosen = convert_table(settings, EvaluateSettings, "[evaluate]")
        rules = {}
        for dataset in self.workspace.datasets(chosen.on):
            protocol = self.workspace.open(dataset).protocol(chosen.depth)
            measures = resolve_measures(dataset, chosen.measures, chosen.depth)
            rules[dataset.name] = msgspec.json.encode([protocol, measures]).decode()
        return rules

    def run(self, settings: Table, model: str, out: Path) -> Cost:
        """Evaluate ``model`` with ``settings``, and save the results below ``out``.

        Vectors of checkpoints that this experiment trained are deleted at the end.
        """
        chosen = convert_table(settings, EvaluateSettings, "[evaluate]")
        tokens, parameters = 0, 0
        for name, like in _models_to_evaluate(model, out):
            is_trained_here = MODEL in (Path(name).name, Path(name).parent.name)
            vectors = str((out / VECTORS).resolve()) if is_trained_here else self.workspace.vectors
            workspace = replace_field(self.workspace, vectors=vectors)
            loaded = self._load(_resolve_with_settings(name, chosen, like), chosen.view)
            for dataset in self.workspace.datasets(chosen.on):
                spent, parameters = _evaluate_on(workspace, dataset, loaded, chosen, out)
                tokens += spent
        shutil.rmtree(out / VECTORS, ignore_errors=True)
        return Cost(tokens=tokens, parameters=parameters)

    def _load(self, model: Model, view: View | None) -> LoadedModel:
        """Open the encoder of a model."""
        if model.recipe.kind == "bm25":
            return LoadedModel(model, None)
        encoder = open_encoder(model, self.workspace.device)
        if view:
            model = replace_field(model, recipe=view.recipe(model.recipe))
        return LoadedModel(model, encoder)


def _evaluate_on(
    workspace: Workspace, dataset: Dataset, model: LoadedModel, chosen: EvaluateSettings, out: Path
) -> tuple[int, int]:
    """Evaluate one collection, and return encoded tokens and parameters of the encoder."""
    options = EvaluationOptions(
        index=IndexSpec.parse(chosen.index),
        depth=chosen.depth,
        measures=chosen.measures,
        view=chosen.view,
    )
    done = evaluate(workspace.prepare(workspace.open(dataset), model, options))
    save(done, out / RESULTS)
    counted = done.record.parameters
    return done.record.timings.encoded_tokens, counted.total if counted else 0


def _models_to_evaluate(model: str, out: Path) -> Iterator[tuple[str, str | None]]:
    """Yield models to evaluate, each with the card whose settings it uses, if it has none itself.

    A sequence yields its initial model, then each checkpoint with the settings of the initial
    model. Its record is saved next to the results.
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
        # An adapter has its own card, made of the initial model's.
        yield folder, None if resolve_model(folder).adapter else start


def _resolve_with_settings(model: str, chosen: EvaluateSettings, like: str | None) -> Model:
    """Resolve a model with the stage's settings, with every pooling if there is a view."""
    resolved = resolve_model(
        model,
        like=like,
        dtype=chosen.dtype,
        store_dtype=chosen.store_dtype,
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
    """A sequence of checkpoints and their scores.

    Attributes:
        sequence: the checkpoints.
        scores: scores by model and collection.
    """

    sequence: CheckpointSequence
    scores: Mapping[tuple[str, str], CheckpointScores]

    @property
    def start(self) -> str:
        """Name of the initial model in results."""
        return next(name for name, _ in self.scores if name not in self.sequence.checkpoints)

    def select(self, checkpoints: Mapping[str, str]) -> dict[str, CheckpointScores]:
        """Return scores by collection, each of the checkpoint that ``checkpoints`` names for it."""
        return {name: self.scores[model, name] for name, model in checkpoints.items()}


def read_sequence_scores(task: CellTask, out: Path) -> SequenceScores | None:
    """Read the sequence that ``task`` evaluated below ``out``, or return None."""
    folder = task.folder(out)
    sequence = read_sequence(folder)
    return SequenceScores(sequence, _read_results(folder)) if sequence else None


def read_scores(task: CellTask, out: Path) -> dict[str, CheckpointScores]:
    """Read the main measure of each query of the finished evaluation ``task`` below ``out``.

    Returns:
        Scores by collection. After a sequence, a collection is searched with the checkpoint of
        `CheckpointSequence.searched_with`.
    """
    folder = task.folder(out)
    sequence = read_sequence(folder)
    return {
        collection: scored
        for (model, collection), scored in _read_results(folder).items()
        if sequence is None or model == sequence.searched_with(collection)
    }


def _read_results(folder: Path) -> dict[tuple[str, str], CheckpointScores]:
    """Read the main measure of each query of stored results, by model and collection."""
    found = {}
    for stored in find_results(folder / RESULTS):
        measure, scores = stored.record.main_measure, stored.scores
        scored = CheckpointScores(measure, scores.query_ids, scores.values[measure])
        found[stored.record.model, stored.dataset] = scored
    return found
