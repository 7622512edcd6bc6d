"""The stage ``finetune``: a preset of `retrievers.training` on judged queries."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.experiments.adapt_stage import last_checkpoint
from bench.experiments.grid import Table, merged, split_off
from bench.experiments.plan import MODEL, Cost
from bench.experiments.pretrain_stage import hashes_of, tokens_read
from bench.training.on_collections import finetune_on
from bench.workspace import Workspace
from datasets_cfg.catalogue import expand
from foundation.errors import BenchError
from retrievers.adapters.folder import check_method
from retrievers.models.model import resolve_model
from retrievers.training.engine.arguments import TrainingContext
from retrievers.training.engine.run_folder import Size
from retrievers.training.finetune.finetune import FORMER
from retrievers.training.finetune.finetune_preset import Finetuning, from_table, load_preset

OWN = ("on", "split", "queries")  # settings that are not the preset's


@dataclass(frozen=True)
class Finetune:
    """See `bench.experiments.plan.ExperimentStage`.

    Attributes:
        held_out: collections that the cells are scored on: their queries are not trained on.
    """

    space: Workspace
    held_out: tuple[str, ...]

    def resolve_settings(self, table: Mapping[str, Any]) -> Table:
        """All of the preset, ``on`` and ``split``, and ``queries`` where not all are trained on."""
        own, changes = split_off(table, "finetune")
        queries = _checked_queries(changes)
        base = msgspec.to_builtins(load_preset(own["preset"])) if "preset" in own else {}
        words = {"title": "fine-tuned in an ablation", "source": "", "unverified": ()}
        preset = from_table({**merged(base, changes), **words}, "[finetune]")
        expand(own["on"], self.space.data_dir)
        if preset.adapter is not None:
            check_method(preset.adapter)
        split = {"split": own.get("split", "train")}
        return {"on": list(own["on"]), **split, **queries, **msgspec.to_builtins(preset)}

    def seeded(self, settings: Table, seed: int) -> Table:
        """The seed is of the order of the queries and of dropout."""
        return {**settings, "seed": seed}

    def keyed(self, settings: Table) -> Table:
        """With the adapters that collections had of their own, and no longer have."""
        if not settings["adapter"]:
            return settings
        return {**settings, "adapter": FORMER | settings["adapter"]}

    def reads(self, settings: Table) -> dict[str, str]:
        """Corpora, queries, judgements, rules of mining, what is left out, and the teacher."""
        trained = self.space.datasets(settings["on"], settings["split"])
        left_out = self.space.datasets(self.held_out)
        preset = _preset(settings)
        teacher = preset.teacher and (preset.teacher.model or preset.teacher.start)
        return {
            **{
                dataset.name: f"{dataset.corpus.sha256} {dataset.qrels_sha256}"
                for dataset in trained
            },
            **{f"{dataset.name} queries": dataset.queries_sha256 for dataset in trained},
            **{
                f"{dataset.name} excludes self": str(bool(dataset.facts.exclude_self))
                for dataset in trained
            },
            **{f"{dataset.name} held out": dataset.queries_sha256 for dataset in left_out},
            **(preset.adapter.hashes_below() if preset.adapter else {}),
            **(hashes_of(teacher, "teacher ") if teacher else {}),
        }

    def work(self, settings: Table, model: str, out: Path) -> Cost:
        """Train; a training that was killed goes on."""
        start = time.perf_counter()
        trained = finetune_on(
            _preset(settings),
            resolve_model(last_checkpoint(model)),
            self.space.datasets(settings["on"], settings["split"]),
            self.space.store,
            TrainingContext(out / MODEL, device=self.space.device),
            evaluated=self.space.datasets(self.held_out),
            queries=settings.get("queries"),
            max_memory=self.space.max_memory,
        )
        size = trained.size or Size(parameters=0, trained=0, saved_bytes=0)
        return Cost(
            time.perf_counter() - start,
            tokens_read(out / MODEL),
            size.trained,
            size.parameters,
            size.saved_bytes,
        )


def _checked_queries(changes: Table) -> Table:
    """Take ``queries`` out of the table; {} where it is not there."""
    if "queries" not in changes:
        return {}
    queries = changes.pop("queries")
    if not isinstance(queries, int) or isinstance(queries, bool) or queries < 1:
        raise BenchError(f"[finetune] queries is {queries!r}", "a whole number from 1")
    return {"queries": queries}


def _preset(settings: Mapping[str, Any]) -> Finetuning:
    own = {key: value for key, value in settings.items() if key not in OWN}
    return from_table(own, "[finetune]")
