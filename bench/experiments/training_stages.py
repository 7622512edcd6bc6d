"""Stages that train from a preset, which their table in the grid changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

import msgspec

from bench.experiments.experiment import MODEL, Cost, ExperimentStage
from bench.experiments.grid import TomlTable
from bench.runner.workspace import Workspace
from bench.training.training_sets import hash_split
from bench.training.trainings import adapt_on, finetune_on, pretrain_on, training_context
from datasets_cfg.catalogue import expand_names
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from foundation.records import (
    Record,
    TomlFiles,
    convert_table,
    read_json,
    suggest_field,
    write_json,
)
from retrievers.adapters.adapter import make_configuration
from retrievers.models.resolve import count_parameters, resolve_model
from retrievers.training.continual.sequence import Method, read_method
from retrievers.training.engine.context import (
    CURVE_FILE,
    LossPoint,
    TrainingContext,
    read_curve,
)
from retrievers.training.objectives.objective import Objective, hash_code, read_objective
from retrievers.training.preset import FINETUNE_PRESETS, PRETRAIN_PRESETS
from retrievers.training.pretrain.start import hash_initial, hash_teacher

SEQUENCE_FILE = "sequence.json"
BEFORE = "the model before it"


class TrainingSource(Record):
    """Collections or suites to train on, and a preset; "" if the settings are complete."""

    on: Annotated[list[str], msgspec.Meta(min_length=1)]
    preset: str = ""


class AdaptSource(TrainingSource):
    """Data, preset and method (a name, or a table with its settings) of continual pre-training."""

    method: str | TomlTable = "plain"


class FinetuneSource(TrainingSource):
    """Data and preset of a fine-tuning.

    Attributes:
        on: collections or suites.
        preset: name of a shipped preset, or path of a .toml file; any other key changes a field of
            it.
        split: split whose queries are trained on.
        held_out: further collections whose test queries are not trained on. Grids with the same
            ``held_out`` and different collections share their fine-tuning.
    """

    split: str = "train"
    held_out: list[str] = []


@dataclass(frozen=True)
class PresetStage(ExperimentStage):
    """Training from a preset, whose fields its table in the grid changes.

    If it ``continues``, it starts from the model before it, and has no start of its own. ``logs``
    is the folder of TensorBoard's logs, None for no logs.

    Attributes:
        source: record of the fields that are not the preset's.
        presets: presets of its kind.
        fixed: fields of the preset that do not influence the training.
    """

    imports = ("retrievers.training.pretrain.pretrain",)
    source: ClassVar[type[TrainingSource]] = TrainingSource
    presets: ClassVar[TomlFiles[Any]] = PRETRAIN_PRESETS
    fixed: ClassVar[TomlTable]

    workspace: Workspace
    name: str = "pretrain"
    continues: bool = False
    logs: Path | None = None

    def with_log(self, name: str) -> "PresetStage":
        """Return this stage, which writes TensorBoard's log to the folder ``name`` of its logs."""
        return replace(self, logs=self.logs and self.logs / name)

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of source and preset for ``table``, but the name of the preset."""
        records = (self.source, self.presets.record)
        for name in table:
            if not any(name in record.__struct_fields__ for record in records):
                raise BenchError(f"unknown field {name!r}", suggest_field(name, *records))
        own = {name: table[name] for name in self.source.__struct_fields__ if name in table}
        source: TrainingSource = convert_table(own, self.source, f"[{self.name}]")
        if not source.preset and "title" not in table:
            raise BenchError("the field 'preset' is missing", "Run `python -m bench list presets`.")
        expand_names(source.on, self.workspace.data_dir)
        preset = msgspec.to_builtins(self.presets.load(source.preset)) if source.preset else {}
        changes = self._of_preset(table) | self.fixed
        if self.continues:
            check_no_start(table)
            changes["start"] = {"model": BEFORE}
        merged = self.presets.merge(preset, changes)
        settings: TomlTable = msgspec.to_builtins(self.presets.convert(merged, f"[{self.name}]"))
        if self.continues:
            del settings["start"]
        of_source: TomlTable = msgspec.to_builtins(source)
        del of_source["preset"]
        return of_source | settings

    def preset(self, settings: TomlTable, model: str = "") -> Any:
        """Return the preset in complete ``settings``; one that continues starts from ``model``."""
        start = {"start": {"model": model}} if self.continues else {}
        return self.presets.convert(start | self._of_preset(settings), f"[{self.name}]")

    def _of_preset(self, table: Mapping[str, Any]) -> TomlTable:
        return {name: table[name] for name in table if name not in self.source.__struct_fields__}

    def context(self, out: Path) -> TrainingContext:
        """Return the context of a training below ``out``."""
        return training_context(out / MODEL, self.workspace.device, log=self.logs)

    def hash_corpora(self, settings: TomlTable) -> dict[str, str]:
        """Return the SHA-256 of each corpus and of each source of the objective."""
        corpora = {
            each.name: each.corpus.sha256 for each in self.workspace.datasets(settings["on"])
        }
        return corpora | hash_plugin("objective", read_objective(settings["objective"]))


def check_no_start(table: Mapping[str, Any]) -> None:
    """Raise if a stage that continues from another one has a start."""
    if "start" in table:
        raise BenchError(
            "start is set, but this stage continues from the model before it",
            'Remove start; set model = "NAME" at the top of the file, or use an earlier stage.',
        )


def hash_plugin(role: str, plugin: Objective | Method) -> dict[str, str]:
    """Return the SHA-256 of each source of an objective or method, by ``role`` and name."""
    return {f"{role} {name}": digest for name, digest in hash_code(plugin).items()}


@dataclass(frozen=True)
class PretrainStage(PresetStage):
    """Pre-training on corpora, also called ``base``, which all seeds share if ``shared``."""

    fixed = {"title": "pre-trained in an ablation", "source": ""}

    shared: bool = False

    def with_seed(self, settings: TomlTable, seed: int) -> TomlTable:
        """Return ``settings`` with the ``seed`` of weights, masks and text order."""
        return settings if self.shared else super().with_seed(settings, seed)

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return hashes of corpora, initial model and objective's code in ``settings``."""
        hashes = self.hash_corpora(settings)
        # The key of a stage before covers the start.
        start = {} if self.continues else hash_initial(self.preset(settings).start)
        return hashes | start

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Pre-train ``model`` with ``settings`` in ``out``, or continue an interrupted run."""
        datasets = self.workspace.datasets(settings["on"])
        pretrain_on(self.preset(settings, model), datasets, self.context(out))
        return count_work(out / MODEL, out / MODEL)


class CheckpointSequence(Record, kw_only=True):
    """Initial model and the checkpoint after each domain, a folder next to this record.

    ``losses`` are of masked language modelling alone, at the end of each training. If ``separate``,
    each domain has its own model or adapter.
    """

    start: str
    domains: tuple[str, ...]
    checkpoints: tuple[str, ...]
    losses: tuple[float, ...]
    separate: bool

    def folders(self, model: str) -> list[str]:
        """Return the folders of the checkpoints of the sequence in ``model``."""
        return [str(Path(model) / name) for name in self.checkpoints]


def read_sequence(model: str) -> CheckpointSequence | None:
    """Read the record of a sequence from the folder ``model``, or return None."""
    path = Path(model) / SEQUENCE_FILE
    return read_json(path, CheckpointSequence) if path.is_file() else None


def last_checkpoint(model: str) -> str:
    """Return the last checkpoint if ``model`` is a folder with a sequence, else ``model``."""
    sequence = read_sequence(model)
    return sequence.folders(model)[-1] if sequence else model


@dataclass(frozen=True)
class AdaptStage(PresetStage):
    """Continual pre-training on domains, all of which are among the ``evaluated`` collections."""

    source = AdaptSource
    fixed = {"title": "adapted in an ablation", "source": ""}

    name: str = "adapt"
    continues: bool = True
    evaluated: tuple[str, ...] = ()

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of preset and method, and ``on`` in order, for ``table``."""
        settings = super().resolve_settings(table)
        method = read_method(settings.pop("method"))
        method.check(self.preset(settings, BEFORE))
        scored = {each.name: each for each in self.workspace.datasets(self.evaluated)}
        for dataset in self.workspace.datasets(settings["on"]):
            if dataset.name not in scored:
                raise BenchError(
                    f"{dataset.name} is trained on, and not evaluated",
                    "Add it to on of [evaluate]: forgetting is measured on every domain.",
                )
        measures = sorted({each.metadata.main_measure for each in scored.values()})
        if len(measures) > 1:
            raise BenchError(
                f"collections of [evaluate] have different main measures: {', '.join(measures)}",
                "Evaluate collections with the same main measure.",
            )
        return settings | {"method": msgspec.to_builtins(method)}

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return hashes of the corpora and of the code of objective and method in ``settings``."""
        code = hash_plugin("method", read_method(settings["method"]))
        return self.hash_corpora(settings) | code

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Train ``model`` on each domain of ``settings`` in ``out``, or continue."""
        datasets = self.workspace.datasets(settings["on"])
        method, folder = read_method(settings["method"]), out / MODEL
        trained = adapt_on(self.preset(settings, model), datasets, method, self.context(out))
        checkpoints = [Path(training.folder) for training in trained]
        sequence = CheckpointSequence(
            start=model,
            domains=tuple(dataset.name for dataset in datasets),
            checkpoints=tuple(checkpoint.name for checkpoint in checkpoints),
            losses=tuple(mean_last_loss(read_curve(each / CURVE_FILE)) for each in checkpoints),
            separate=method.separate_models,
        )
        write_json(folder / SEQUENCE_FILE, sequence)
        return count_work(folder, checkpoints[-1])


def mean_last_loss(curve: Sequence[LossPoint]) -> float:
    """Return the mean loss of masked language modelling over the last tenth of ``curve``."""
    last = curve[-max(1, len(curve) // 10) :]
    return fmean(point.losses.get("mlm", point.losses["loss"]) for point in last)


@dataclass(frozen=True)
class FinetuneStage(PresetStage):
    """Fine-tuning on judged queries, without those of the ``evaluated`` collections."""

    source = FinetuneSource
    presets = FINETUNE_PRESETS
    fixed = {"title": "fine-tuned in an ablation", "source": "", "unverified": ()}

    name: str = "finetune"
    evaluated: tuple[str, ...] = ()

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of the preset and of the data source for ``table``."""
        settings = super().resolve_settings(table)
        adapter = self.preset(settings).adapter
        if adapter is not None:
            make_configuration(adapter)  # raises if the method is unknown
        if not settings["held_out"]:
            del settings["held_out"]
        return settings

    def _held_out(self, settings: TomlTable) -> list[Dataset]:
        return self.workspace.datasets((*self.evaluated, *settings.get("held_out", ())))

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return hashes of data, adapters and teacher in ``settings``."""
        read = dict[str, str]()
        for dataset in self.workspace.datasets(settings["on"], settings["split"]):
            read |= hash_split(dataset)
        for dataset in self._held_out(settings):
            read[f"{dataset.name} held out"] = dataset.queries_sha256
        return read | hash_teacher(self.preset(settings))

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Fine-tune ``model`` with ``settings`` in ``out``, or continue an interrupted run."""
        trained = finetune_on(
            self.preset(settings),
            resolve_model(last_checkpoint(model)),
            self.workspace.datasets(settings["on"], settings["split"]),
            self.workspace.resources,
            self.context(out),
            evaluated=self._held_out(settings),
        )
        return msgspec.structs.replace(
            count_work(out / MODEL),
            parameters=trained.size.trained,
            total_parameters=trained.size.parameters,
            saved_bytes=trained.size.saved_bytes,
        )


def count_work(folder: Path, checkpoint: Path | None = None) -> Cost:
    """Count steps and tokens of all trainings below ``folder``, and what ``checkpoint`` trained."""
    curves = [read_curve(path) for path in folder.rglob(CURVE_FILE)]
    counted = count_parameters(resolve_model(str(checkpoint))) if checkpoint else None
    return Cost(
        tokens=sum(point.tokens for curve in curves for point in curve),
        steps=sum(curve[-1].step for curve in curves),
        parameters=(counted.adapter or counted.total) if counted else 0,
    )
