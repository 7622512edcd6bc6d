"""Stages that train from a preset, which their table in the grid changes, or by a command."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TypeVar

import msgspec

from bench.experiments.experiment import MODEL, Cost, ExperimentStage
from bench.experiments.grid import TomlTable, format_label
from bench.runner.workspace import Workspace
from bench.training.training_sets import hash_split, trained_collections
from bench.training.trainings import adapt_on, finetune_on, pretrain_on, training_context
from datasets_cfg.catalogue import expand_names
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, did_you_mean
from foundation.files import sha256_of_file
from foundation.records import (
    Record,
    TomlFiles,
    convert_table,
    read_json,
    suggest_field,
    write_json,
)
from retrievers.adapters.adapter import make_configuration
from retrievers.models.card import load_card, replace_fields, write_card
from retrievers.models.resolve import count_parameters, resolve_model
from retrievers.models.settings import ModelSettings
from retrievers.training.continual.sequence import Method, read_method
from retrievers.training.engine.context import CURVE_FILE, LossPoint, read_curve
from retrievers.training.finetune.finetune import hash_teacher
from retrievers.training.objectives.objective import Objective, hash_code, read_objective
from retrievers.training.preset import FINETUNE_PRESETS, PRETRAIN_PRESETS, Finetuning, Pretraining
from retrievers.training.pretrain.start import find_checkpoint, hash_initial, hash_start

SEQUENCE_FILE = "sequence.json"


def merge_tables(
    base: Mapping[str, Any], changes: Mapping[str, Any], presets: TomlFiles[Any], above: str = ""
) -> TomlTable:
    """Return the table ``base`` of one of ``presets`` with ``changes``, merged field by field.

    A table with another ``name`` replaces the old one. ``above`` is the path of the table.
    """
    table = dict(base)
    for key, value in changes.items():
        for other in presets.instead_of.get(f"{above}{key}", ()):
            if other not in changes:
                table.pop(other, None)
        old = table.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(old, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            table[key] = merge_tables(old, value, presets, f"{above}{key}.")
        else:
            table[key] = value
    return table


class TrainingSource(Record):
    """Collections or suites to train on, and a preset; "" if the settings are complete."""

    on: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
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
    held_out: tuple[str, ...] = ()


S = TypeVar("S", bound=TrainingSource)


def complete_settings(
    stage: str,
    table: Mapping[str, Any],
    kind: type[S],
    presets: TomlFiles[Any],
    fixed: TomlTable,
    start: str = "",
) -> tuple[S, TomlTable]:
    """Return the data source of a training stage, of type ``kind``, and all settings of its preset.

    ``fixed`` are fields that do not influence the training. If the stage continues from the model
    ``start``, it has no start of its own.
    """
    records = (kind, presets.record)
    for name in table:
        if not any(name in record.__struct_fields__ for record in records):
            raise BenchError(f"unknown field {name!r}", suggest_field(name, *records))
    inputs = {name: table[name] for name in kind.__struct_fields__ if name in table}
    source = convert_table(inputs, kind, f"[{stage}]")
    if not source.preset and "title" not in table:
        raise BenchError("the field 'preset' is missing", "Run `python -m bench list presets`.")
    preset = msgspec.to_builtins(presets.load(source.preset)) if source.preset else {}
    changes = _without_source(table, kind) | fixed
    if start:
        check_no_start(table)
        changes["start"] = {"model": start}
    merged = merge_tables(preset, changes, presets)
    settings = msgspec.to_builtins(presets.convert(merged, f"[{stage}]"))
    if start:
        del settings["start"]
    return source, settings


def check_no_start(table: Mapping[str, Any]) -> None:
    """Raise if a stage that continues from another one has a start."""
    if "start" in table:
        raise BenchError(
            "start is set, but this stage continues from the model before it",
            'Remove start; set model = "NAME" at the top of the file, or use an earlier stage.',
        )


def read_pretraining(settings: TomlTable, model: str) -> Pretraining:
    """Return the preset in complete ``settings``, which starts from ``model`` by default."""
    table = {"start": {"model": model}, **_without_source(settings, AdaptSource)}
    return PRETRAIN_PRESETS.convert(table, "[pretrain]")


def read_finetuning(settings: TomlTable) -> Finetuning:
    """Return the preset in complete ``settings``."""
    return FINETUNE_PRESETS.convert(_without_source(settings, FinetuneSource), "[finetune]")


def _without_source(settings: Mapping[str, Any], kind: type[TrainingSource]) -> TomlTable:
    return {name: value for name, value in settings.items() if name not in kind.__struct_fields__}


@dataclass(frozen=True)
class PretrainStage(ExperimentStage):
    """Pre-training on corpora, also called ``base``, which all seeds share if ``shared``."""

    workspace: Workspace
    name: str = "pretrain"
    shared: bool = False
    after_base: bool = False

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of the preset and ``on`` for ``table``."""
        fixed = {"title": "pre-trained in an ablation", "source": ""}
        start = "[base]" if self.after_base else ""
        source, settings = complete_settings(
            self.name, table, TrainingSource, PRETRAIN_PRESETS, fixed, start
        )
        expand_names(source.on, self.workspace.data_dir)
        return {"on": list(source.on), **settings}

    def with_seed(self, settings: TomlTable, seed: int) -> TomlTable:
        """Return ``settings`` with the ``seed`` of weights, masks and text order."""
        return settings if self.shared else super().with_seed(settings, seed)

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return hashes of corpora, initial model and objective's code in ``settings``."""
        hashes = hash_pretraining(self.workspace, settings)
        if "start" not in settings:  # after [base], its key covers the start
            return hashes
        return hashes | hash_initial(read_pretraining(settings, "").start)

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Pre-train ``model`` with ``settings`` in ``out``, or continue an interrupted run."""
        context = training_context(out / MODEL, self.workspace.device)
        datasets = self.workspace.datasets(settings["on"])
        pretrain_on(read_pretraining(settings, model), datasets, context)
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
class AdaptStage(ExperimentStage):
    """Continual pre-training on domains, all of which are among the ``evaluated`` collections."""

    workspace: Workspace
    evaluated: tuple[str, ...]

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of preset and method, and ``on`` in order, for ``table``."""
        fixed = {"title": "adapted in an ablation", "source": ""}
        source, settings = complete_settings(
            "adapt", table, AdaptSource, PRETRAIN_PRESETS, fixed, "[start]"
        )
        method = read_method(source.method)
        method.check(read_pretraining(settings, "[start]"))
        scored = {each.name: each for each in self.workspace.datasets(self.evaluated)}
        for dataset in self.workspace.datasets(source.on):
            if dataset.name not in scored:
                raise BenchError(
                    f"{dataset.name} is trained on, and not evaluated",
                    "Add it to on of [evaluate]: forgetting is measured on every domain.",
                )
        measures = sorted({each.facts.main_measure for each in scored.values()})
        if len(measures) > 1:
            raise BenchError(
                f"collections of [evaluate] have different main measures: {', '.join(measures)}",
                "Evaluate collections with the same main measure.",
            )
        return {"on": list(source.on), **settings, "method": msgspec.to_builtins(method)}

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return hashes of the corpora and of the code of objective and method in ``settings``."""
        method = read_method(settings["method"])
        return hash_pretraining(self.workspace, settings) | hash_plugin("method", method)

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Train ``model`` on each domain of ``settings`` in ``out``, or continue."""
        datasets = self.workspace.datasets(settings["on"])
        folder, method = out / MODEL, read_method(settings["method"])
        context = training_context(folder, self.workspace.device)
        trained = adapt_on(read_pretraining(settings, model), datasets, method, context)
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
class FinetuneStage(ExperimentStage):
    """Fine-tuning on judged queries, without those of the ``held_out`` collections."""

    workspace: Workspace
    held_out: tuple[str, ...]

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of the preset and of the data source for ``table``."""
        fixed: TomlTable = {"title": "fine-tuned in an ablation", "source": "", "unverified": ()}
        source, settings = complete_settings(
            "finetune", table, FinetuneSource, FINETUNE_PRESETS, fixed
        )
        expand_names(source.on, self.workspace.data_dir)
        adapter = read_finetuning(settings).adapter
        if adapter is not None:
            make_configuration(adapter)  # raises if the method is unknown
        inputs: TomlTable = {"on": list(source.on), "split": source.split}
        if source.held_out:
            inputs["held_out"] = list(source.held_out)
        return inputs | settings

    def _held_out(self, settings: TomlTable) -> list[Dataset]:
        return self.workspace.datasets((*self.held_out, *settings.get("held_out", ())))

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return hashes of data, adapters and teacher in ``settings``."""
        read = dict[str, str]()
        for dataset in self.workspace.datasets(settings["on"], settings["split"]):
            read |= hash_split(dataset)
        for dataset in self._held_out(settings):
            read[f"{dataset.name} held out"] = dataset.queries_sha256
        return read | hash_teacher(read_finetuning(settings))

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Fine-tune ``model`` with ``settings`` in ``out``, or continue an interrupted run."""
        trained = finetune_on(
            read_finetuning(settings),
            resolve_model(last_checkpoint(model)),
            self.workspace.datasets(settings["on"], settings["split"]),
            self.workspace.store,
            training_context(out / MODEL, self.workspace.device),
            evaluated=self._held_out(settings),
            max_memory=self.workspace.max_memory,
        )
        return msgspec.structs.replace(
            count_work(out / MODEL),
            parameters=trained.size.trained,
            total_parameters=trained.size.parameters,
            saved_bytes=trained.size.saved_bytes,
        )


def hash_pretraining(workspace: Workspace, settings: TomlTable) -> dict[str, str]:
    """Return the SHA-256 of each corpus of ``settings`` and of each source of the objective."""
    corpora = {each.name: each.corpus.sha256 for each in workspace.datasets(settings["on"])}
    return corpora | hash_plugin("objective", read_objective(settings["objective"]))


def hash_plugin(role: str, plugin: Objective | Method) -> dict[str, str]:
    """Return the SHA-256 of each source of an objective or method, by ``role`` and name."""
    return {f"{role} {name}": digest for name, digest in hash_code(plugin).items()}


def count_work(folder: Path, checkpoint: Path | None = None) -> Cost:
    """Count steps and tokens of all trainings below ``folder``, and what ``checkpoint`` trained."""
    curves = [read_curve(path) for path in folder.rglob(CURVE_FILE)]
    counted = count_parameters(resolve_model(str(checkpoint))) if checkpoint else None
    return Cost(
        tokens=sum(point.tokens for curve in curves for point in curve),
        steps=sum(curve[-1].step for curve in curves),
        parameters=(counted.adapter or counted.total) if counted else 0,
    )


OUT, SEED, START = "out", "seed", "start"
STDOUT_FILE, STDERR_FILE = "stdout.txt", "stderr.txt"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class CommandSettings(Record, kw_only=True):
    """Settings of ``[pretrain]`` or ``[finetune]`` with a ``command``: another program trains.

    Any other key of the table is a setting of the command, which the rows of an axis may change.

    Attributes:
        command: program and its arguments. ``{out}`` stands for the empty folder that the program
            writes its checkpoint to, ``{seed}`` for the cell's seed, ``{start}`` for the folder of
            the model to start from, and ``{NAME}`` for the setting ``NAME``.
        inputs: further files and folders that the program reads. If their content changes, or the
            content of a file that the command or a setting names, the cell is trained again.
        start: card, folder or Hub id to start from; "" for the model of the stage before.
        like: card whose pooling, prompts and lengths the checkpoint uses; "" if its folder states
            them, as a folder of sentence-transformers does.
        on: collections that the program trains on. Leaks of evaluated queries are looked for in
            them, and their scores are marked as in-domain.
        split: split of ``on`` that it trains on.
    """

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    inputs: tuple[str, ...] = ()
    start: str = ""
    like: str = ""
    on: tuple[str, ...] = ()
    split: str = "train"


@dataclass(frozen=True)
class CommandStage(ExperimentStage):
    """Training by another program, which ``follows`` another stage or model."""

    name: str
    workspace: Workspace
    follows: bool
    seeds: int

    def resolve_settings(self, table: Mapping[str, Any]) -> TomlTable:
        """Return all fields of `CommandSettings` and the settings of the command in ``table``."""
        values, known = dict(table), CommandSettings.__struct_fields__
        fields = {name: values.pop(name) for name in known if name in values}
        settings = convert_table(fields, CommandSettings, f"[{self.name}]")
        if settings.start and self.follows:
            check_no_start(fields)
        self._check_placeholders(settings, values)
        if shutil.which(settings.command[0]) is None:
            raise BenchError(f"there is no program {settings.command[0]!r}", "Install it.")
        for path in settings.inputs:
            if not Path(path).exists():
                raise BenchError(f"inputs: there is no file or folder {path!r}")
        if settings.like:
            load_card(settings.like)
        expand_names(settings.on, self.workspace.data_dir)
        return {**msgspec.to_builtins(settings), **values}

    def _check_placeholders(self, settings: CommandSettings, values: TomlTable) -> None:
        """Raise if a placeholder has no value, or a value or the seed would have no effect."""
        for name, value in values.items():
            if name == OUT or not isinstance(value, str | int | float):
                raise BenchError(
                    f"{name} is not a setting of a command", "A setting is text or a number."
                )
        used = set(_PLACEHOLDER.findall(" ".join(settings.command)))
        needed = {OUT, *values} | ({SEED} if self.seeds > 1 else set())
        known = needed | {SEED, "like", "split"}
        known |= {START} if self.follows or settings.start else set()
        for name in sorted(used - known):
            raise BenchError(
                f"the command has {{{name}}}, which is not a setting",
                did_you_mean(name, known, f"Set it: {name} = VALUE."),
            )
        for name in sorted(needed - used):
            raise BenchError(
                f"the command has no {{{name}}}", f'Add it, such as "--{name}", "{{{name}}}"'
            )

    def hash_inputs(self, settings: TomlTable) -> dict[str, str]:
        """Return hashes of the files in ``settings`` and of the initial model."""
        hashes = {str(path): sha256_of_file(path) for path in _input_files(settings)}
        return hashes | (hash_start(settings[START], "start ") if settings[START] else {})

    def run(self, settings: TomlTable, model: str, out: Path) -> Cost:
        """Run the command of ``settings`` from ``model``, in an empty folder below ``out``."""
        folder = (out / MODEL).resolve()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        start = last_checkpoint(model) or settings[START]
        folders = {OUT: str(folder), START: str(find_checkpoint(start)[0].root) if start else ""}
        words = fill_placeholders(settings["command"], _scalars(settings) | folders)
        with (out / STDOUT_FILE).open("wb") as output, (out / STDERR_FILE).open("wb") as errors:
            ended = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, check=False
            )
        if ended.returncode:
            raise _command_error(words, ended.returncode, out / STDERR_FILE)
        try:
            card = resolve_model(str(folder), ModelSettings(like=settings["like"] or None)).card
        except BenchError as error:
            raise BenchError(
                f"the command left no checkpoint to use: {error}",
                'Set like = "CARD" in the table of the stage if only the pooling is missing.',
            ) from error
        names = [dataset.name for dataset in self.workspace.datasets(settings["on"])]
        trained_on = (*card.trained_on, *trained_collections(names))
        write_card(replace_fields(card, {"trained_on": trained_on}), folder)
        return Cost()


def fill_placeholders(words: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Return ``words`` with each ``{NAME}`` replaced by its value in ``values``, if it has one."""

    def value_of(match: re.Match[str]) -> str:
        return format_label(values[match[1]]) if match[1] in values else match[0]

    return [_PLACEHOLDER.sub(value_of, word) for word in words]


def _scalars(settings: TomlTable) -> TomlTable:
    return {name: value for name, value in settings.items() if isinstance(value, str | int | float)}


def _input_files(settings: TomlTable) -> Iterator[Path]:
    values = _scalars(settings)
    named = [*fill_placeholders(settings["command"], values), *map(str, values.values())]
    yield from map(Path, filter(os.path.isfile, named))
    for path in map(Path, settings["inputs"]):
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from filter(Path.is_file, below)


def _command_error(words: list[str], code: int, stderr: Path) -> BenchError:
    lines = stderr.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    problem = f"{words[0]} {how}{last}\ncommand: {shlex.join(words)}"
    return BenchError(problem, f"See {stderr}; the same command tries it again.")
