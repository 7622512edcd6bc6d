"""Stages that train nothing: they write down what they were given, and score by arithmetic."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.experiments.experiment import MODEL, CellTask, Cost, ExperimentStage
from bench.experiments.report import CellScores, CheckpointScores
from foundation.errors import BenchError


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of any stage of these tests."""

    steps: int = 10
    lr: float = 0.1
    objective: dict[str, object] = msgspec.field(default_factory=lambda: {"name": "mlm"})
    on: tuple[str, ...] = ("c",)
    seed: int = 0


@dataclass(frozen=True)
class FakeStage(ExperimentStage):
    """Adds ``steps * lr`` to the number that it starts from; the evaluation spreads it."""

    name: str
    fails_at: float = -1.0

    def resolve_settings(self, table: Mapping) -> dict:
        try:
            return msgspec.to_builtins(msgspec.convert(dict(table), Settings))
        except msgspec.ValidationError as error:
            raise BenchError(str(error), "a hint") from error

    def with_seed(self, settings: dict, seed: int) -> dict:
        return settings if self.name == "evaluate" else {**settings, "seed": seed}

    def hash_inputs(self, settings: dict) -> dict[str, str]:
        return {name: f"hash of {name}" for name in settings["on"]}

    def run(self, settings: dict, model: str, out: Path) -> Cost:
        with (out / "calls").open("a") as file:
            file.write("x")
        if settings["lr"] == self.fails_at:
            raise BenchError("loss is not a number", "a smaller lr")
        before = float(Path(model).read_text()) if Path(model).is_file() else 0.0
        if self.name == "evaluate":
            rng = np.random.default_rng(0)
            values = (before + rng.normal(0, 0.05, 40)).tolist()
            (out / "scores.json").write_text(json.dumps(dict.fromkeys(settings["on"], values)))
        noise = 0.001 * settings["seed"]
        (out / MODEL).write_text(str(before + settings["steps"] * settings["lr"] + noise))
        return Cost(seconds=2.0, tokens=100, parameters=7)


FAKES = {name: FakeStage(name) for name in ("pretrain", "finetune", "evaluate")}


def read_scores(out: Path):
    """Reads what the evaluation of `FakeStage` left."""

    def read(task: CellTask) -> CellScores:
        found = json.loads((task.folder(out) / "scores.json").read_text())
        return CellScores(
            {name: CheckpointScores("nDCG@10", np.array(values)) for name, values in found.items()}
        )

    return read


GRID = """
name = "steps"
title = "How long"
seeds = [0, 1, 2]

[pretrain]
steps = 10

[finetune]
steps = 1

[evaluate]
on = ["c"]

[[axes]]
field = "pretrain.steps"
values = [5, 10, 20]

[[axes]]
field = "finetune.lr"
values = [0.2]
"""


def run_stages_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run stages here, and not in subprocesses, which `test_experiment_execute` tests."""
    monkeypatch.setattr(
        "bench.experiments.experiment.run_in_subprocess", lambda work, *rest: work(*rest)
    )
