"""A base that all rows continue from: tiny and really trained."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.experiments.ablate import prepare_experiment
from bench.experiments.experiment import run_task
from bench.requests.outcomes import ExitCode
from bench.requests.training import AblateRequest
from foundation.errors import BenchError
from tests.support.collections import Bench
from tests.support.experiments import run_stages_in_this_process
from tests.support.trainable import write_trainable

ROOT = Path(__file__).parents[3]
GRID = """
name = "tiny"
title = "Tiny"
seeds = [0, 1]

[base]
preset = "base.toml"
on = ["./mine"]

[pretrain]
preset = "base.toml"
on = ["./mine"]
tokens = 300

[[axes]]
name = "objective"
field = "pretrain.objective"
labels = ["MLM", "RetroMAE"]
values = [{ name = "mlm" }, { name = "retromae" }]

[finetune]
preset = "fine.toml"
on = ["./mine"]

[evaluate]
on = ["./mine"]
"""
BASE = """
title = "tiny"
batch_size = 4
max_tokens = 16
steps = 3
objective = { name = "mlm" }
[start.scratch]
vocabulary = 120
layers = 1
width = 16
heads = 2
intermediate = 32
positions = 16
"""
FINETUNE = """
title = "tiny"
steps = 2
batch_size = 2
rounds = [{ sources = [] }]
use = { pooling = "cls", max_query_tokens = 8, max_document_tokens = 16 }
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    write_trainable(tmp_path / "mine")
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "fine.toml").write_text(FINETUNE)
    (tmp_path / "grid.toml").write_text(GRID)
    monkeypatch.chdir(tmp_path)
    run_stages_in_this_process(monkeypatch)
    return Bench(tmp_path)


def typed(bench, out="ablations"):
    return ("ablate", "grid.toml", "--device", "cpu", "--cache-dir", str(bench.cache), "--out", out)


def scores_of(report):
    return [cell["scores"] for row in report["rows"] for cell in row["cells"]]


@pytest.mark.slow
def test_rows_share_one_base_and_a_killed_run_gives_the_same_result(bench, tmp_path):
    pytest.importorskip("sentence_transformers")
    whole = bench(*typed(bench), "--json")
    assert whole.code == ExitCode.OK, whole.stderr
    report = json.loads(whole.stdout)
    done = [path.parts[-3] for path in (tmp_path / "ablations").glob("[!r]*/*/done.json")]
    counts = {stage: done.count(stage) for stage in dict.fromkeys(done)}
    # 2 rows with 2 seeds on one base
    assert counts == {"base": 1, "pretrain": 4, "finetune": 4, "evaluate": 4}
    cells = [cell for row in report["rows"] for cell in row["cells"]]
    tokens = [cell["costs"]["pretrain"]["tokens"] for cell in cells]
    assert max(tokens) <= 1.1 * min(tokens)

    command = [sys.executable, "-m", "bench", *typed(bench, "killed")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("cell 2 of 4"):
                os.kill(process.pid, signal.SIGKILL)
                break
    assert list((tmp_path / "killed").glob("pretrain/*/done.json"))
    again = bench(*typed(bench, "killed"), "--json")
    assert again.code == ExitCode.OK, again.stderr
    assert scores_of(json.loads(again.stdout)) == scores_of(report)


MASKED = """
import {helper}
from retrievers.training.objectives.mlm import MLM

class Masked(MLM):
    pass
"""


def test_cells_of_an_objective_whose_code_was_edited_are_trained_again(
    bench, tmp_path, monkeypatch
):
    """Its own file and a file that it imports; other objectives keep their cells."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "one.py").write_text("")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "masked.py").write_text(MASKED.format(helper="one"))
    grid = GRID.replace('{ name = "retromae" }', '"masked.py"')
    (tmp_path / "grid.toml").write_text(grid)

    def keys():
        request = AblateRequest("grid.toml", device="cpu", cache_dir=bench.cache)
        experiment, conditions = prepare_experiment(request)
        assert "masked.py" in conditions.own_code
        return {cell.row: cell.task.key for cell in experiment.cells}

    before = keys()
    assert keys() == before
    (tmp_path / "masked.py").write_text(MASKED.format(helper="other"))
    after = keys()
    assert {row for row in after if after[row] != before[row]} == {"objective=RetroMAE"}


def test_a_task_whose_inputs_changed_after_the_start_is_not_run(bench, tmp_path):
    request = AblateRequest("grid.toml", device="cpu", cache_dir=bench.cache)
    experiment, _ = prepare_experiment(request)
    task = experiment.tasks()[0]
    stale = replace(task, inputs={**task.inputs, "objective mlm.py": "0"})
    with pytest.raises(BenchError, match=r"changed since the experiment began: objective mlm\.py"):
        run_task(stale, tmp_path)


def test_each_seed_may_have_a_base_of_its_own(bench, tmp_path):
    counts = []
    for first in ("", "base_per_seed = true\n"):
        (tmp_path / "grid.toml").write_text(first + GRID)
        experiment, _ = prepare_experiment(
            AblateRequest("grid.toml", device="cpu", cache_dir=bench.cache)
        )
        counts.append(sum(task.stage == "base" for task in experiment.tasks()))
    assert counts == [1, 2]
