"""The stage ``evaluate``: a checkpoint on collections, or every checkpoint of a sequence."""

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bench.evaluate.judging import measure_names
from bench.evaluate.pipeline import evaluate
from bench.evaluate.retrieval import LoadedModel, Options
from bench.experiments.adapt_stage import read_sequence, write_sequence
from bench.experiments.grid import Table
from bench.experiments.plan import MODEL, CellTask, Cost
from bench.results.find import find_results
from bench.results.result import Evaluation, save
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.records import Record, convert_table
from retrievers.encoders.routed import open_encoder
from retrievers.encoders.views import View, every_pooling
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.models.card import write_card
from retrievers.models.model import Model, resolve_model
from retrievers.models.recipe import Backend, Dtype, Prompts, Recipe, StoreDtype

RESULTS, VECTORS, START = "results", "vectors", "start"
Count = Annotated[int, msgspec.Meta(ge=1)]
MULTIPLE = 3072  # of the usual widths: what divides one of them, as PQ does, divides this


class EvaluateSettings(Record, kw_only=True):
    """Settings of the stage that scores a checkpoint.

    Attributes:
        on: collections or suites.
        measures: besides the main one of each collection; None for the collection's own.
        depth: documents per query; None for the collection's.
        index: ``flat`` is exact.
        dtype, store_dtype, backend, max_query_tokens, max_document_tokens: as `resolve_model`.
        query_prompt, document_prompt: instead of the model's.
        adapter_drop: first layers that go without their adapter of AdapterHub (AdapterDrop, see
            `AdapterIdentity`).
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
    adapter_drop: Annotated[int, msgspec.Meta(ge=0)] = 0
    view: View | None = None


@dataclass(frozen=True)
class Scored:
    """A checkpoint on one collection.

    Attributes:
        values: float64 ``(queries,)`` of the measure.
    """

    measure: str
    query_ids: tuple[str, ...]
    values: Float64Array


@dataclass(frozen=True)
class Evaluate:
    """See `bench.experiments.plan.ExperimentStage`."""

    space: Workspace

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """All fields of `EvaluateSettings`."""
        settings = convert_table(table, EvaluateSettings, "[evaluate]")
        spec = IndexSpec.parse(settings.index)
        _check_index(spec)
        if spec.is_bm25 and settings.view and settings.view.similarity == "euclidean":
            raise BenchError(
                "[evaluate]: the index bm25 multiplies with similarities, and euclidean ones are "
                "below 0",
                'similarity = "dot"',
            )
        if not settings.on:
            raise BenchError("[evaluate] needs on, a list of collections")
        for dataset in self.space.datasets(settings.on):
            measure_names(dataset, settings.measures, settings.depth)
            self.space.open(dataset)
        resolved: Table = msgspec.to_builtins(settings)
        return resolved

    def seeded(self, settings: Table, seed: int) -> Table:
        """An evaluation draws nothing."""
        return settings

    def keyed(self, settings: Table) -> Table:
        """All of them."""
        return settings

    def reads(self, settings: Table) -> dict[str, str]:
        """The protocol of each collection, with its hashes, and the measures."""
        chosen = convert_table(settings, EvaluateSettings, "[evaluate]")
        rules = {}
        for dataset in self.space.datasets(chosen.on):
            protocol = self.space.open(dataset).protocol(chosen.depth)
            measures = measure_names(dataset, chosen.measures, chosen.depth)
            rules[dataset.name] = msgspec.json.encode([protocol, measures]).decode()
        return rules

    def work(self, settings: Table, model: str, out: Path) -> Cost:
        """Encode, search and score; vectors of checkpoints of the ablation are not kept."""
        start = time.perf_counter()
        chosen = convert_table(settings, EvaluateSettings, "[evaluate]")
        tokens, parameters = 0, 0
        for name, like in _models(model, out):
            own = MODEL in (Path(name).name, Path(name).parent.name)
            kept = str((out / VECTORS).resolve()) if own else self.space.vectors
            space = replace_field(self.space, vectors=kept)
            loaded = self._loaded(_resolved(name, chosen, like), chosen.view)
            for dataset in self.space.datasets(chosen.on):
                spent, parameters = self._score(space, dataset, loaded, chosen, out)
                tokens += spent
        shutil.rmtree(out / VECTORS, ignore_errors=True)
        return Cost(time.perf_counter() - start, tokens, parameters)

    def _loaded(self, model: Model, view: View | None) -> LoadedModel:
        if model.recipe.kind == "bm25":
            return LoadedModel(model, None)
        encoder = open_encoder(model, self.space.device)
        if view:
            model = replace_field(model, recipe=view.recipe(model.recipe))
        return LoadedModel(model, encoder)

    def _score(
        self,
        space: Workspace,
        dataset: Dataset,
        model: LoadedModel,
        chosen: EvaluateSettings,
        out: Path,
    ) -> tuple[int, int]:
        """Tokens that were encoded, and parameters of the encoder."""
        options = Options(
            index=IndexSpec.parse(chosen.index),
            depth=chosen.depth,
            measures=chosen.measures,
            view=chosen.view,
        )
        done = evaluate(space.prepare(space.open(dataset), model, options))
        save(done, out / RESULTS)
        counted = done.result.parameters
        return done.result.timings.encoded_tokens, counted.total if counted else 0


def _models(model: str, out: Path) -> Iterator[tuple[str, str | None]]:
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


def _resolved(model: str, chosen: EvaluateSettings, like: str | None) -> Model:
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
    if chosen.adapter_drop:
        recipe = _with_fewer_adapters(resolved, recipe, chosen.adapter_drop)
    if chosen.view:
        recipe = every_pooling(recipe)
        chosen.view.width(recipe.dim)
    return replace_field(resolved, recipe=recipe)


def _with_fewer_adapters(model: Model, recipe: Recipe, dropped: int) -> Recipe:
    """The recipe with no adapter in the first layers.

    Raises:
        BenchError: there is no adapter of AdapterHub, or the encoder has fewer layers.
    """
    depth = model.document.config.get("num_hidden_layers", 0) if model.document else 0
    if recipe.adapter is None or recipe.adapter.kind != "adapterhub" or dropped > depth:
        has = f"{depth} layers" if recipe.adapter else "no adapter"
        if recipe.adapter and recipe.adapter.kind != "adapterhub":
            has += f" and a {recipe.adapter.kind} adapter"
        raise BenchError(
            f"adapter_drop is {dropped}, and {model.card.name} has {has}",
            "evaluate an encoder with an adapter of AdapterHub, of as many layers or more",
        )
    adapter = msgspec.structs.replace(recipe.adapter, dropped=dropped)
    return msgspec.structs.replace(recipe, adapter=adapter)


def _check_index(spec: IndexSpec) -> None:
    """FAISS reads the factory string when an index is made: do that before hours of training."""
    if spec.needs_faiss:
        FaissIndex(spec, MULTIPLE)


def read_scores(task: CellTask, out: Path) -> dict[str, Scored]:
    """Main measure of each query of a finished evaluation, by collection.

    After a sequence, a collection is searched as `LearntSequence.after` says.
    """
    folder = task.folder(out)
    sequence = read_sequence(folder)
    return {
        stored.collection: scored(stored)
        for stored in find_results(folder / RESULTS)
        if sequence is None or stored.result.model == sequence.after(stored.collection)
    }


def scored(stored: Evaluation) -> Scored:
    """The main measure of each query of a stored result."""
    scores, measure = stored.scores, stored.result.main_measure
    return Scored(measure, scores.query_ids, scores.values[measure])
