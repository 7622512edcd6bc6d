"""The stage ``adapt``: continual pre-training on one corpus after the other."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.experiments.grid import Table, merged, split_off
from bench.experiments.plan import MODEL, Cost
from bench.experiments.pretrain_stage import trained_parameters
from bench.training.on_collections import adapt_on
from bench.training.training_sets import CorpusTexts
from bench.workspace import Workspace
from foundation.errors import BenchError, did_you_mean
from foundation.records import Record, read_json, write_json
from retrievers.training.continual.sequence import (
    Domain,
    Method,
    check,
    method_table,
    read_method,
)
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.engine.curve import CURVE_FILE, LossPoint, read_curve
from retrievers.training.pretrain.preset import Pretraining, from_table, load_preset, to_table

SEQUENCE_FILE = "sequence.json"


class LearntSequence(Record, kw_only=True):
    """The model that a sequence starts from, and a checkpoint after each domain.

    Attributes:
        start: model that the first training starts from: card, folder or Hub id.
        domains: names of the collections, in the order that they were learnt.
        checkpoints: their folders beside this record, one for each domain.
        losses: of masked language modelling alone at the end of each training, in nats.
        separate: each domain keeps a model, or an adapter, of its own, trained from the start.
    """

    start: str
    domains: tuple[str, ...]
    checkpoints: tuple[str, ...]
    losses: tuple[float, ...]
    separate: bool

    def own(self, domain: str) -> str:
        """The checkpoint that was just trained on a domain."""
        return self.checkpoints[self.domains.index(domain)]

    def after(self, collection: str) -> str:
        """The checkpoint that a collection is searched with after the sequence.

        It is the last one, or the domain's own where each has one.
        """
        if self.separate and collection in self.domains:
            return self.own(collection)
        return self.checkpoints[-1]


def write_sequence(sequence: LearntSequence, folder: Path) -> None:
    """Keep the record in a folder, whole or not at all."""
    write_json(folder / SEQUENCE_FILE, sequence)


def read_sequence(folder: Path) -> LearntSequence | None:
    """The record of a folder; None where it holds no sequence.

    Raises:
        BenchError: the record is damaged.
    """
    path = folder / SEQUENCE_FILE
    return read_json(path, LearntSequence) if path.is_file() else None


def last_checkpoint(model: str) -> str:
    """The last checkpoint of a folder with a sequence; any other model as it is."""
    sequence = read_sequence(Path(model))
    return str(Path(model) / sequence.checkpoints[-1]) if sequence else model


# Settings of a method that other methods had, too.
FORMER = {
    "measured": 256,
    "strength": 5_000.0,
    "soften": "gradient",
    "adapter": "double_seq_bn",
    "buffer": 1_000,
    "replayed": 0.5,
    "weight": 1.0,
    "temperature": 2.0,
    "scale": None,
}


@dataclass(frozen=True)
class Adapt:
    """See `bench.experiments.plan.ExperimentStage`.

    Attributes:
        evaluated: collections that the checkpoints are scored on; each domain is one of them.
        start: model that the sequence starts from; "" where an earlier stage trains it.
    """

    space: Workspace
    evaluated: tuple[str, ...]
    start: str

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """All of the preset but its start, all of the method, and ``on``: domains in order."""
        own, changes = split_off(table, "adapt")
        if "split" in own:
            raise BenchError("[adapt] has a split, and it reads corpora", "leave split out")
        _check_fields(changes)
        base = to_table(load_preset(own["preset"])) if "preset" in own else {}
        title = {"title": "adapted in an ablation", "source": ""}
        settings = merged({"method": {"name": "plain"}} | base, changes) | title
        settings["method"] = method_table(_method(settings))
        settings = {"on": list(own["on"])} | settings
        settings.pop("start", None)
        self._check(settings)
        preset = to_table(_preset(settings, self.start))
        return {
            "on": settings["on"],
            "method": settings["method"],
            **{key: value for key, value in preset.items() if key != "start"},
        }

    def seeded(self, settings: Table, seed: int) -> Table:
        """The seed is of masks, dropout and the order of the texts, in every domain."""
        return {**settings, "seed": seed}

    def keyed(self, settings: Table) -> Table:
        """With the settings of all methods, side by side."""
        method = dict(settings["method"])
        return {**settings, **FORMER, "method": method.pop("name"), **method}

    def reads(self, settings: Table) -> dict[str, str]:
        """The corpora; their order is in the settings."""
        return {each.name: each.corpus.sha256 for each in self.space.datasets(settings["on"])}

    def work(self, settings: Table, model: str, out: Path) -> Cost:
        """Train on each domain in turn; a sequence that was killed goes on."""
        start = time.perf_counter()
        datasets = self.space.datasets(settings["on"])
        folder, method = out / MODEL, _method(settings)
        context = TrainingContext(folder, device=self.space.device)
        trained = adapt_on(_preset(settings, model), datasets, method, context)
        checkpoints = [Path(training.folder) for training in trained]
        curves = [read_curve(each / CURVE_FILE) for each in checkpoints]
        sequence = LearntSequence(
            start=model,
            domains=tuple(dataset.name for dataset in datasets),
            checkpoints=tuple(checkpoint.name for checkpoint in checkpoints),
            losses=tuple(last_loss(curve) for curve in curves),
            separate=method.kept_apart,
        )
        write_sequence(sequence, folder)
        parameters = trained_parameters(checkpoints[-1])
        tokens = sum(point.tokens for curve in curves for point in curve)
        return Cost(time.perf_counter() - start, tokens, parameters)

    def _check(self, settings: Table) -> None:
        """Refuse what cannot be trained or compared before any work."""
        datasets = self.space.datasets(settings["on"])
        scored = self.space.datasets(self.evaluated)
        names = [each.name for each in scored]
        if len(datasets) < 2:
            raise BenchError("[adapt] learns one collection", "a sequence has two or more")
        for dataset in datasets:
            if dataset.name not in names:
                raise BenchError(
                    f"[adapt] learns {dataset.name}, which is not evaluated",
                    "name it in on of [evaluate]: what is forgotten is measured on every domain",
                )
        measures = sorted({each.facts.main_measure for each in scored})
        if len(measures) > 1:
            raise BenchError(
                f"[evaluate] has collections of different main measures: {', '.join(measures)}",
                "a sequence is compared by one: evaluate collections that agree in it",
            )
        method, preset = _method(settings), _preset(settings, self.start)
        method.check(preset)
        if self.start:
            domains = [Domain(each.name, CorpusTexts([each.corpus])) for each in datasets]
            check(preset, domains, method)


def _check_fields(changes: Mapping[str, Any]) -> None:
    """Refuse a start, and fields of neither the preset nor the method."""
    if "start" in changes:
        raise BenchError(
            "[adapt] has a start, and a sequence starts from the model before it",
            'write model = "NAME" at the top of the file, or use [pretrain]',
        )
    preset = (name for name in Pretraining.__struct_fields__ if name != "start")
    known = ("method", *preset)
    for name in changes:
        if name not in known:
            hint = did_you_mean(name, known, f"there are: {', '.join(known)}")
            if name in FORMER:
                hint = f'method = {{ name = "METHOD", {name} = … }}'
            raise BenchError(f"[adapt] has no field {name!r}", hint)


def _method(settings: Mapping[str, Any]) -> Method:
    return read_method(settings["method"], "[adapt] method")


def _preset(settings: Mapping[str, Any], start: str) -> Pretraining:
    """The preset of every training, from this model."""
    fields = {key: value for key, value in settings.items() if key not in ("on", "method")}
    return from_table({**fields, "start": {"model": start or "pretrained"}}, "[adapt]")


def last_loss(curve: Sequence[LossPoint]) -> float:
    """Loss of masked language modelling without what a method adds, over the last tenth."""
    last = curve[-max(1, len(curve) // 10) :]
    return fmean(point.losses.get("mlm", point.losses["loss"]) for point in last)
