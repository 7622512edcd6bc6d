"""The stage ``evaluate``: scores of a checkpoint, or of every checkpoint of a sequence."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from attrs import evolve

from bench.evaluation.judging import resolve_measures
from bench.evaluation.pipeline import evaluate
from bench.evaluation.retriever import EvaluationOptions, Retriever
from bench.evaluation.vector_retriever import VectorRetriever
from bench.experiments.experiment import MODEL, CellTask, Cost, ExperimentStage
from bench.experiments.grid import TomlTable, format_label
from bench.experiments.report import CellScores, CheckpointScores
from bench.experiments.training_stages import read_sequence
from bench.result_store.find import find_results
from bench.result_store.result import save
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from foundation.files import replace_file
from foundation.records import SUFFIX, Record, convert_table
from retrievers.encoders.transformer import open_encoder
from retrievers.encoders.views import View, recipe_with_every_pooling
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import Card, ModelDtype, StoreDtype, format_card, replace_fields
from retrievers.models.names import anchor_members, resolve_card
from retrievers.models.resolve import Model, resolve_stated
from retrievers.models.settings import Count, ModelSettings

RESULTS, VECTORS = "results", "vectors"


class EvaluateSettings(Record, kw_only=True):
    """Settings of the stage ``evaluate``.

    Attributes:
        on: collections or suites.
        measures: measures besides the main one; None for the further measures of each collection.
        depth: documents per query; None for the collection's depth.
        index: FAISS factory string; ``flat`` is exact search.
        dtype, store_dtype, max_query_tokens, max_document_tokens: see `ModelSettings`.
        query_prompt: put before every query, instead of the model's prompts.
        view: how vectors are made after the forward pass, instead of the model's way. Evaluations
            that differ only in their view share one encoding.
        model: model of a grid that trains none: a name, or a table of its ``name`` and of fields
            that replace those of its card, if it is a fusion or a reranking. Paths in them are
            relative to the working directory. None for the model of the grid.
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
    view: View | None = None
    model: str | TomlTable | None = None

    @property
    def options(self) -> EvaluationOptions:
        """Settings of the search and of its measures."""
        return EvaluationOptions(
            index=IndexSpec.parse(self.index),
            depth=self.depth,
            measures=self.measures,
            view=self.view,
        )


def vary_card(table: TomlTable) -> Card:
    """Return the card of a model with the fields of ``table``, whose ``name`` is the model's.

    Raises:
        BenchError: the model has no card, or its kind lacks a field.
    """
    card, base = resolve_card(table["name"])
    if card.traits.has_members and base != Path.cwd():
        card = anchor_members(card, base)
    fields = {name: value for name, value in table.items() if name != "name"}
    if unknown := sorted(fields.keys() - _own_fields(card)):
        problem = f"{', '.join(unknown)} cannot be set for {card.name}, which {card.traits.title}"
        known = ", ".join(sorted(_own_fields(card)))
        raise BenchError(problem, f"Use one of {known}." if known else "Leave it out.")
    described = f"{card.name}: model"
    stated = convert_table({"name": "", "title": "", "missing": "-", **fields}, Card, described)
    return replace_fields(card, {name: getattr(stated, name) for name in fields})


def _own_fields(card: Card) -> frozenset[str]:
    """Return the fields of a card that rows may change: those of its kind, if it has members."""
    return card.traits.fields if card.traits.has_members else frozenset()


@dataclass(frozen=True)
class EvaluateStage(ExperimentStage):
    """The stage that encodes, searches and scores.

    Attributes:
        workspace: folders, device and rules.
        model: model of the grid; "" if rows state it, or if it is trained.
    """

    workspace: Workspace
    model: str = ""

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of `EvaluateSettings` for ``table``, after all checks."""
        settings = convert_table(table, EvaluateSettings, "[evaluate]")
        spec = IndexSpec.parse(settings.index)
        if spec.is_bm25 and settings.view and settings.view.similarity == "euclidean":
            raise BenchError(
                "the index bm25 multiplies with similarities, and euclidean ones are below 0",
                'Write similarity = "dot".',
            )
        for dataset in self.workspace.datasets(settings.on):
            resolve_measures(dataset, settings.measures, settings.depth)
            self.workspace.open(dataset)
        resolved: TomlTable = msgspec.to_builtins(settings)
        if settings.model:
            resolved["model"] = _complete_model(settings)
        elif "model" not in table:
            del resolved["model"]
        return resolved

    def with_seed(self, settings: TomlTable, seed: int) -> TomlTable:
        """Return ``settings`` without the model of the grid: an evaluation is deterministic."""
        varied = dict(settings)
        if varied.get("model") == {"name": self.model}:
            del varied["model"]
        return varied

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return protocol, hashes and measures of each collection in ``settings``."""
        chosen = convert_table(settings, EvaluateSettings, "[evaluate]")
        if "model" in settings and not chosen.model:
            problem = "[evaluate] has no model"
            raise BenchError(problem, "Set model at the top of the file, or make it a factor.")
        rules, model = {}, self._fingerprints(chosen)
        for dataset in self.workspace.datasets(chosen.on):
            protocol = self.workspace.open(dataset).protocol(chosen.depth)
            measures = resolve_measures(dataset, chosen.measures, chosen.depth)
            rules[dataset.name] = msgspec.json.encode([protocol, measures, *model]).decode()
        return rules

    def _fingerprints(self, chosen: EvaluateSettings) -> list[str]:
        """Return the fingerprint of the model that a row states, if it does."""
        if not isinstance(chosen.model, dict):
            return []
        trusted = ModelSettings(trust_code=self.workspace.trust_code)
        model = resolve_stated(vary_card(chosen.model), Path.cwd(), trusted)
        return [each.recipe.fingerprint for each in _with_all_members(model)]

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Evaluate ``model``, and delete vectors of checkpoints that this experiment trained."""
        chosen = convert_table(settings, EvaluateSettings, "[evaluate]")
        if isinstance(chosen.model, dict):
            model = _write_model(chosen.model, out)
        cost, sequence = Cost(), read_sequence(model)
        models = [sequence.start, *sequence.folders(model)] if sequence else [model]
        for name in models:
            is_trained_here = MODEL in (Path(name).name, Path(name).parent.name)
            vectors = str((out / VECTORS).resolve()) if is_trained_here else self.workspace.vectors
            workspace = replace(self.workspace, vectors=vectors)
            loaded = self._load(name, chosen)
            for dataset in map(workspace.open, workspace.datasets(chosen.on)):
                done = evaluate(workspace.prepare(dataset, loaded, chosen.options))
                save(done, out / RESULTS)
                tokens = cost.tokens + done.record.timings.encoded_tokens
                counted = done.record.parameters
                cost = Cost(tokens=tokens, parameters=counted.total if counted else 0)
        shutil.rmtree(out / VECTORS, ignore_errors=True)
        return cost

    def _load(self, name: str, chosen: EvaluateSettings) -> Retriever:
        """Load a model. A view reads vectors with every pooling."""
        settings, view = ModelSettings.of(chosen), chosen.view
        settings = evolve(settings, trust_code=self.workspace.trust_code)
        loaded = self.workspace.load(name, settings)
        if view is None:
            return loaded
        stored = recipe_with_every_pooling(loaded.recipe)
        viewed = replace(loaded.model, recipe=view.recipe(stored))
        encoder = open_encoder(replace(loaded.model, recipe=stored), self.workspace.device)
        resources = self.workspace.resources
        return VectorRetriever(model=viewed, encoder=encoder, resources=resources)


def _with_all_members(model: Model) -> Iterator[Model]:
    """Yield a model, its members, and theirs."""
    yield model
    for member in model.members:
        yield from _with_all_members(member)


def _complete_model(settings: EvaluateSettings) -> TomlTable:
    """Return the table of the model of a row with all fields that rows may change.

    Raises:
        BenchError: the model has no card, or does not honour a field or an option of a search.
    """
    stated = settings.model if isinstance(settings.model, dict) else {"name": settings.model}
    if not isinstance(stated.get("name"), str):
        raise BenchError(f"model has no name: {format_label(stated)}", "Add the name of a model.")
    card = vary_card(stated)
    given = [*ModelSettings.of(settings).changed, *settings.options.given]
    card.traits.check_options(card.name, given)
    fields = {name: getattr(card, name) for name in sorted(_own_fields(card))}
    complete: TomlTable = msgspec.to_builtins({"name": stated["name"], **fields})
    return complete


def _write_model(table: TomlTable, out: Path) -> str:
    """Return the name of the model of a row: a card in ``out``, if rows may change its fields."""
    card = vary_card(table)
    if not _own_fields(card):
        return str(table["name"])
    path = out / f"{card.name}{SUFFIX}"
    with replace_file(path) as file:
        file.write(format_card(anchor_members(card, Path.cwd())).encode())
    return str(path)


def read_scores(task: CellTask, out: Path) -> CellScores:
    """Read the main measure of each query of the finished evaluation ``task`` below ``out``."""
    folder, sequence = task.folder(out), read_sequence(task.starts_from(out))
    found: dict[str, dict[str, CheckpointScores]] = {}  # by model
    for stored in find_results(folder / RESULTS):
        measure = stored.record.main_measure
        scored = CheckpointScores(measure, stored.scores.values[measure])
        found.setdefault(stored.record.model, {})[stored.dataset] = scored
    models = 1 + len(sequence.checkpoints) if sequence else 1
    if len(found) != models or any(task.inputs.keys() - each.keys() for each in found.values()):
        raise BenchError(
            f"{folder} is a finished evaluation, but lacks results",
            f"Delete {folder} and type the same command.",
        )
    if sequence is None:
        (only,) = found.values()
        return CellScores(only)
    (start,) = found.keys() - set(sequence.checkpoints)
    trained = dict(zip(sequence.domains, sequence.checkpoints, strict=True))
    searched_with = trained if sequence.separate else {}
    earlier = () if sequence.separate else sequence.domains[:-1]
    return CellScores(
        on={
            name: found[searched_with.get(name, sequence.checkpoints[-1])][name]
            for name in found[start]
        },
        start=start,
        losses=dict(zip(sequence.domains, sequence.losses, strict=True)),
        before={name: found[start][name] for name in sequence.domains},
        learnt={name: found[trained[name]][name] for name in earlier},
    )
