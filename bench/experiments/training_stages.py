"""The stages that train: ``base``, ``pretrain``, ``adapt`` and ``finetune``.

Each reads a preset of `retrievers.training`, which its table in the grid changes. ``adapt``
pre-trains on one corpus after the other, and saves a checkpoint after each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from bench.experiments.experiment import MODEL, Cost, ExperimentStage
from bench.experiments.grid import Table, TrainingSource, merge_tables, split_source
from bench.runner.workspace import Workspace
from bench.training.on_collections import adapt_on, finetune_on, pretrain_on
from bench.training.training_sets import CorpusTexts
from datasets_cfg.catalogue import expand_names
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from foundation.records import Record, read_json, write_json
from retrievers.adapters.libraries import make_configuration
from retrievers.models.resolve import count_parameters, resolve_model
from retrievers.training.continual.sequence import (
    Domain,
    Method,
    check_sequence,
    method_table,
    read_method,
)
from retrievers.training.engine.arguments import Count, TrainingContext
from retrievers.training.engine.curve import CURVE_FILE, LossPoint, read_curve
from retrievers.training.engine.run_folder import ModelSize
from retrievers.training.engine.save import find_checkpoint
from retrievers.training.finetune import finetune_preset
from retrievers.training.finetune.finetune_preset import Finetuning
from retrievers.training.objectives.objective import Objective, hash_code, read_objective
from retrievers.training.pretrain import preset as pretrain_preset
from retrievers.training.pretrain.preset import Pretraining, to_table

SEQUENCE_FILE = "sequence.json"


def pretraining_table(
    source: TrainingSource, changes: Table, stage: str, title: str, before: str = ""
) -> Table:
    """Return all settings of a pre-training, without its start if it continues from another stage.

    Args:
        source: data and preset.
        changes: changes of the preset.
        stage: name of the stage, for messages.
        title: title of the trained model.
        before: stand-in for the model of the previous stage; "" if the settings have a start.

    Raises:
        BenchError: invalid settings, or a start although the stage continues from another.
    """
    base = to_table(pretrain_preset.load_preset(source.preset)) if source.preset else {}
    # Title and source do not influence the training.
    settings = {**merge_tables(base, changes), "title": title, "source": ""}
    if before:
        if "start" in changes:
            raise BenchError(
                f"[{stage}]: start is set, but this stage continues from the model before it",
                'remove start; set model = "NAME" at the top of the file, or use an earlier stage',
            )
        settings["start"] = {"model": before}
    settings = to_table(pretrain_preset.from_table(settings, f"[{stage}]"))
    if before:
        del settings["start"]
    return {"on": list(source.on), **settings}


def read_pretraining(settings: Table, model: str) -> Pretraining:
    """Read complete ``settings`` as a preset, which starts from ``model`` by default."""
    table = {"start": {"model": model}, **settings}
    fields = {key: value for key, value in table.items() if key not in ("on", "method")}
    return pretrain_preset.from_table(fields, "[pretrain]")


@dataclass(frozen=True)
class PretrainStage(ExperimentStage):
    """Pre-training on corpora.

    Attributes:
        workspace: folders and device.
        name: ``base`` or ``pretrain``, for messages.
        shared: True for a ``base`` that all seeds share.
        after_base: True if it continues from ``base`` and has no start itself.
    """

    workspace: Workspace
    name: str = "pretrain"
    shared: bool = False
    after_base: bool = False

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """Return all fields of the preset and ``on`` for ``table``."""
        source, changes = split_source(table, self.name, TrainingSource, Pretraining)
        expand_names(source.on, self.workspace.data_dir)
        before = "[base]" if self.after_base else ""
        return pretraining_table(source, changes, self.name, "pre-trained in an ablation", before)

    def with_seed(self, settings: Table, seed: int) -> Table:
        """Return ``settings`` with the ``seed`` of weights, masks and text order."""
        return settings if self.shared else super().with_seed(settings, seed)

    def hash_inputs(self, settings: Table) -> dict[str, str]:
        """Return hashes of corpora, initial model and objective's code in ``settings``."""
        start = settings.get("start", {"model": ""})  # after [base], its key covers the start
        named = start["model"] or (start.get("scratch") or {}).get("tokenizer")
        code = hash_plugin("objective", read_objective(settings["objective"]))
        hashes = hash_corpora(self.workspace, settings) | code
        return hashes | (hash_checkpoint(named) if named else {})

    def run(self, settings: Table, model: str, out: Path) -> Cost:
        """Pre-train ``model`` with ``settings`` in ``out``, or continue an interrupted run."""
        folder = out / MODEL
        pretrain_on(
            read_pretraining(settings, model),
            self.workspace.datasets(settings["on"]),
            TrainingContext(folder, device=self.workspace.device),
        )
        return msgspec.structs.replace(
            count_work(folder), parameters=count_trained_parameters(folder)
        )


class CheckpointSequence(Record, kw_only=True):
    """An initial model and a checkpoint after each domain.

    Attributes:
        start: initial model: card, folder or Hub id.
        domains: names of the collections, in training order.
        checkpoints: folders next to this record, one for each domain.
        losses: loss of masked language modelling alone at the end of each training, in nats.
        separate: whether each domain keeps its own model or adapter, trained from the initial
            model.
    """

    start: str
    domains: tuple[str, ...]
    checkpoints: tuple[str, ...]
    losses: tuple[float, ...]
    separate: bool

    def trained_on(self, domain: str) -> str:
        """Return the checkpoint right after the training on ``domain``."""
        return self.checkpoints[self.domains.index(domain)]

    def searched_with(self, collection: str) -> str:
        """Return the checkpoint that searches ``collection`` after the sequence.

        It is the last one, or the domain's own checkpoint if each domain keeps one.
        """
        if self.separate and collection in self.domains:
            return self.trained_on(collection)
        return self.checkpoints[-1]


def write_sequence(sequence: CheckpointSequence, folder: Path) -> None:
    """Write the record ``sequence`` to ``folder``, atomically."""
    write_json(folder / SEQUENCE_FILE, sequence)


def read_sequence(folder: Path) -> CheckpointSequence | None:
    """Read the record of a sequence from ``folder``, or return None.

    Raises:
        BenchError: the record is damaged.
    """
    path = folder / SEQUENCE_FILE
    return read_json(path, CheckpointSequence) if path.is_file() else None


def last_checkpoint(model: str) -> str:
    """Return the last checkpoint if ``model`` is a folder with a sequence, else ``model``."""
    sequence = read_sequence(Path(model))
    return str(Path(model) / sequence.checkpoints[-1]) if sequence else model


class AdaptSource(TrainingSource):
    """Data, preset and method of continual pre-training.

    Attributes:
        method: name of a method against forgetting, or a table with its name and settings.
    """

    method: str | Table = "plain"


@dataclass(frozen=True)
class AdaptStage(ExperimentStage):
    """Continual pre-training.

    Attributes:
        workspace: folders and device.
        evaluated: collections of the evaluation, which include every domain.
        start: initial model; "" if an earlier stage trains it.
    """

    workspace: Workspace
    evaluated: tuple[str, ...]
    start: str

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """Return all fields of preset and method, and ``on`` in order, for ``table``."""
        source, changes = split_source(table, "adapt", AdaptSource, Pretraining)
        method = read_method(source.method, "[adapt]: method")
        title, start = "adapted in an ablation", self.start or "pretrained"
        settings = pretraining_table(source, changes, "adapt", title, start)
        self._check(source, method, read_pretraining(settings, start))
        return {**settings, "method": method_table(method)}

    def hash_inputs(self, settings: Table) -> dict[str, str]:
        """Return hashes of the corpora and of the code of objective and method in ``settings``."""
        code = hash_plugin("objective", read_objective(settings["objective"]))
        code |= hash_plugin("method", read_method(settings["method"], "[adapt]: method"))
        return hash_corpora(self.workspace, settings) | code

    def run(self, settings: Table, model: str, out: Path) -> Cost:
        """Train ``model`` on each domain of ``settings`` in ``out``, or continue."""
        datasets = self.workspace.datasets(settings["on"])
        folder, method = out / MODEL, read_method(settings["method"], "[adapt]: method")
        context = TrainingContext(folder, device=self.workspace.device)
        trained = adapt_on(read_pretraining(settings, model), datasets, method, context)
        checkpoints = [Path(training.folder) for training in trained]
        sequence = CheckpointSequence(
            start=model,
            domains=tuple(dataset.name for dataset in datasets),
            checkpoints=tuple(checkpoint.name for checkpoint in checkpoints),
            losses=tuple(mean_last_loss(read_curve(each / CURVE_FILE)) for each in checkpoints),
            separate=method.separate_models,
        )
        write_sequence(sequence, folder)
        return msgspec.structs.replace(
            count_work(folder), parameters=count_trained_parameters(checkpoints[-1])
        )

    def _check(self, source: TrainingSource, method: Method, preset: Pretraining) -> None:
        """Raise if the sequence cannot be trained or compared."""
        datasets = self.workspace.datasets(source.on)
        scored = self.workspace.datasets(self.evaluated)
        if len(datasets) < 2:
            raise BenchError("[adapt]: on names one collection, and a sequence needs two or more")
        for dataset in datasets:
            if dataset.name not in [each.name for each in scored]:
                raise BenchError(
                    f"[adapt]: {dataset.name} is trained on, and not evaluated",
                    "add it to on of [evaluate]: forgetting is measured on every domain",
                )
        measures = sorted({each.facts.main_measure for each in scored})
        if len(measures) > 1:
            raise BenchError(
                f"[adapt]: the collections of [evaluate] have different main measures: "
                f"{', '.join(measures)}",
                "evaluate collections with the same main measure",
            )
        method.check(preset)
        if self.start:
            domains = [Domain(each.name, CorpusTexts([each.corpus])) for each in datasets]
            check_sequence(preset, domains, method)


def mean_last_loss(curve: Sequence[LossPoint]) -> float:
    """Return the mean loss of masked language modelling over the last tenth of ``curve``.

    Losses that a method adds are left out.
    """
    last = curve[-max(1, len(curve) // 10) :]
    return fmean(point.losses.get("mlm", point.losses["loss"]) for point in last)


class FinetuneSource(TrainingSource):
    """Data and preset of a fine-tuning.

    Attributes:
        on: collections or suites.
        preset: name of a shipped preset, or path of a .toml file; any other key changes a field of
            it.
        split: split whose queries are trained on.
        queries: number of training queries, drawn with the cell's seed; None for all.
        held_out: further collections whose test queries are not trained on. Grids with the same
            ``held_out`` and different collections share their fine-tuning.
    """

    split: str = "train"
    queries: Count | None = None
    held_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class FinetuneStage(ExperimentStage):
    """Fine-tuning on judged queries.

    Attributes:
        workspace: folders and device.
        held_out: collections of the evaluation, whose queries are not trained on.
    """

    workspace: Workspace
    held_out: tuple[str, ...]

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """Return all fields of the preset and of the data source for ``table``."""
        source, changes = split_source(table, "finetune", FinetuneSource, Finetuning)
        load = finetune_preset.load_preset
        base = msgspec.to_builtins(load(source.preset)) if source.preset else {}
        words = {"title": "fine-tuned in an ablation", "source": "", "unverified": ()}
        preset = finetune_preset.from_table({**merge_tables(base, changes), **words}, "[finetune]")
        expand_names(source.on, self.workspace.data_dir)
        if preset.adapter is not None:
            make_configuration(preset.adapter)  # raises if the method is unknown
        inputs: Table = {"on": list(source.on), "split": source.split}
        later = {"queries": source.queries, "held_out": source.held_out}
        inputs |= {name: msgspec.to_builtins(value) for name, value in later.items() if value}
        return {**inputs, **msgspec.to_builtins(preset)}

    def _held_out(self, settings: Table) -> list[Dataset]:
        """Return the collections whose queries are not trained on."""
        return self.workspace.datasets((*self.held_out, *settings.get("held_out", ())))

    def hash_inputs(self, settings: Table) -> dict[str, str]:
        """Return hashes of data, adapters and teacher in ``settings``."""
        read = {}
        for dataset in self.workspace.datasets(settings["on"], settings["split"]):
            read[dataset.name] = f"{dataset.corpus.sha256} {dataset.qrels_sha256}"
            read[f"{dataset.name} queries"] = dataset.queries_sha256
            read[f"{dataset.name} excludes self"] = str(bool(dataset.facts.exclude_self))
        for dataset in self._held_out(settings):
            read[f"{dataset.name} held out"] = dataset.queries_sha256
        preset = _read_finetuning(settings)
        if preset.adapter:
            read |= preset.adapter.hashes_below()
        if teacher := preset.teacher and (preset.teacher.model or preset.teacher.start):
            read |= hash_checkpoint(teacher, "teacher ")
        return read

    def run(self, settings: Table, model: str, out: Path) -> Cost:
        """Fine-tune ``model`` with ``settings`` in ``out``, or continue an interrupted run."""
        trained = finetune_on(
            _read_finetuning(settings),
            resolve_model(last_checkpoint(model)),
            self.workspace.datasets(settings["on"], settings["split"]),
            self.workspace.store,
            TrainingContext(out / MODEL, device=self.workspace.device),
            evaluated=self._held_out(settings),
            queries=settings.get("queries"),
            max_memory=self.workspace.max_memory,
        )
        size = trained.size or ModelSize(parameters=0, trained=0, saved_bytes=0)
        return msgspec.structs.replace(
            count_work(out / MODEL),
            parameters=size.trained,
            total_parameters=size.parameters,
            saved_bytes=size.saved_bytes,
        )


def _read_finetuning(settings: Table) -> Finetuning:
    """Read complete settings as a preset."""
    sources = FinetuneSource.__struct_fields__
    fields = {key: value for key, value in settings.items() if key not in sources}
    return finetune_preset.from_table(fields, "[finetune]")


def hash_corpora(workspace: Workspace, settings: Table) -> dict[str, str]:
    """Return the SHA-256 of each corpus of ``settings``, found in ``workspace``."""
    return {dataset.name: dataset.corpus.sha256 for dataset in workspace.datasets(settings["on"])}


def hash_plugin(role: str, plugin: Objective | Method) -> dict[str, str]:
    """Return the SHA-256 of each source of an objective or method, by ``role`` and name."""
    return {f"{role} {name}": digest for name, digest in hash_code(plugin).items()}


def hash_checkpoint(model: str, role: str = "") -> dict[str, str]:
    """Return the SHA-256 of each file of ``model``, by name with the prefix ``role``.

    Raises:
        BenchError: the checkpoint does not exist, or its files are damaged.
    """
    checkpoint, _ = find_checkpoint(model)
    return {f"{role}{name}": digest for name, digest in checkpoint.hashes.items()}


def count_work(folder: Path) -> Cost:
    """Count steps and tokens of all finished trainings below ``folder``, from their loss curves."""
    curves = [read_curve(path) for path in folder.rglob(CURVE_FILE)]
    return Cost(
        tokens=sum(point.tokens for curve in curves for point in curve),
        steps=sum(curve[-1].step for curve in curves),
    )


def count_trained_parameters(folder: Path) -> int:
    """Return the parameters of the checkpoint in ``folder``, or of its adapter if it has one."""
    counted = count_parameters(resolve_model(str(folder)))
    return (counted.adapter or counted.total) if counted else 0
