"""The stage ``pretrain``: a preset of `retrievers.training` on corpora."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.experiments.grid import Table, merged, split_off
from bench.experiments.plan import MODEL, Cost
from bench.training.on_collections import pretrain_on
from bench.workspace import Workspace
from datasets_cfg.catalogue import expand
from foundation.errors import BenchError
from retrievers.models.model import count_parameters, resolve_model
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.pretrain.preset import from_table, load_preset, to_table

BASE = {"model": "[base]"}


@dataclass(frozen=True)
class Pretrain:
    """See `bench.experiments.plan.ExperimentStage`.

    Attributes:
        stage: ``base``, which all seeds share, or ``pretrain``.
        after_base: it goes on from what ``base`` trained, and has no start of its own.
    """

    space: Workspace
    stage: Literal["base", "pretrain"] = "pretrain"
    after_base: bool = False

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """All of the preset, and ``on``; after ``base`` there is no start."""
        own, changes = split_off(table, self.stage)
        if "split" in own:
            raise BenchError(f"[{self.stage}] has a split, and it reads corpora", "leave split out")
        base = to_table(load_preset(own["preset"])) if "preset" in own else {}
        # A title and a source say nothing about what is trained.
        words = {"title": "pre-trained in an ablation", "source": ""}
        expand(own["on"], self.space.data_dir)
        if self.after_base:
            return {"on": list(own["on"]), **self._going_on(merged(base, changes) | words, changes)}
        preset = from_table({**merged(base, changes), **words}, f"[{self.stage}]")
        return {"on": list(own["on"]), **to_table(preset)}

    def _going_on(self, table: Table, changes: Table) -> Table:
        """All of the preset but its start."""
        if "start" in changes:
            raise BenchError("[pretrain] has start, and it goes on from [base]", "leave it out")
        settings = to_table(from_table({**table, "start": BASE}, "[pretrain]"))
        return {name: value for name, value in settings.items() if name != "start"}

    def seeded(self, settings: Table, seed: int) -> Table:
        """The seed is of weights, masks and the order of the texts; ``base`` has its own."""
        return settings if self.stage == "base" else {**settings, "seed": seed}

    def keyed(self, settings: Table) -> Table:
        """With the first layers of a start, which were kept once."""
        return {"first_layers": None, **settings} if "start" in settings else settings

    def reads(self, settings: Table) -> dict[str, str]:
        """The corpora, and the files that training starts from."""
        corpora = {
            dataset.name: dataset.corpus.sha256 for dataset in self.space.datasets(settings["on"])
        }
        start = settings.get("start", {"model": ""})  # without one, the key of [base] says it all
        named = start["model"] or (start.get("scratch") or {}).get("tokenizer")
        return {**corpora, **(hashes_of(named) if named else {})}

    def work(self, settings: Table, model: str, out: Path) -> Cost:
        """Train; a training that was killed goes on."""
        start = time.perf_counter()
        preset = {key: value for key, value in settings.items() if key != "on"}
        if self.after_base:
            preset["start"] = {"model": model}
        pretrain_on(
            from_table(preset, "[pretrain]"),
            self.space.datasets(settings["on"]),
            TrainingContext(out / MODEL, device=self.space.device),
        )
        tokens = tokens_read(out / MODEL)
        return Cost(time.perf_counter() - start, tokens, trained_parameters(out / MODEL))


def hashes_of(model: str, role: str = "") -> dict[str, str]:
    """sha256 of the files of a checkpoint, by their names after ``role``.

    Raises:
        BenchError: there is no such checkpoint, or its files are damaged.
    """
    from retrievers.training.engine.save import find_checkpoint

    checkpoint, _ = find_checkpoint(model)
    return {f"{role}{name}": digest for name, digest in checkpoint.hashes.items()}


def tokens_read(folder: Path) -> int:
    """Tokens that a finished training read, by its loss curves."""
    from retrievers.training.engine.curve import CURVE_FILE, read_curve

    return sum(point.tokens for path in folder.rglob(CURVE_FILE) for point in read_curve(path))


def trained_parameters(folder: Path) -> int:
    """Of the encoder of a finished checkpoint, or of its adapter alone."""
    counted = count_parameters(resolve_model(str(folder)))
    return (counted.adapter or counted.total) if counted else 0
