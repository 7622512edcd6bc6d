"""``ablate`` as a user meets it: tiny models that are really trained, and what is refused."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.experiments.ablate import prepare_experiment
from bench.experiments.evaluate_stage import EvaluateStage, read_scores
from bench.experiments.experiment import CellTask, run_task
from bench.experiments.grid import load_grid
from bench.experiments.training_stages import FinetuneStage, PretrainStage
from bench.requests.outcomes import ExitCode
from bench.requests.training import AblateRequest
from bench.result_store.result import save
from bench.runner.workspace import Workspace, _opened_once
from foundation.errors import BenchError
from retrievers.training.engine.context import CURVE_FILE, read_curve
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench, write_collection
from tests.support.experiments import run_stages_in_this_process
from tests.support.results import evaluation
from tests.support.trainable import DOCUMENTS, FINETUNING, PRETRAINING, WORDS, write_training

GRID = """
name = "tiny"
title = "Tiny"
seeds = [0, 1]

[pretrain]
preset = "texts.toml"
on = ["./mine"]

[finetune]
preset = "tiny.toml"
on = ["./mine"]

[evaluate]
on = ["./mine"]

[[axes]]
name = "objective"
field = "pretrain.objective"
values = [{ name = "mlm" }, { name = "retromae" }]

[[axes]]
field = "finetune.optimizer.lr"
values = [0.01]
"""


BASED = GRID.replace("[pretrain]", '[base]\npreset = "texts.toml"\non = ["./mine"]\n\n[pretrain]')


def write_experiment(folder, grid=GRID):
    write_training(folder)
    (folder / "grid.toml").write_text(grid)
    return Bench(folder)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_stages_in_this_process(monkeypatch)
    return write_experiment(tmp_path)


def typed(bench, *more):
    return ("ablate", "grid.toml", "--device", "cpu", "--cache-dir", bench.cache, *more)


def ablate(bench, *more):
    return bench(*typed(bench, *more))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an ablation from a base, with logs, and what it printed."""
    pytest.importorskip("sentence_transformers")
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_stages_in_this_process(patch)
        bench = write_experiment(folder, BASED)
        yield bench, ablate(bench, "--log-dir", "runs")


def scores_of(report, seed=0):
    cells = [cell for row in report["rows"] for cell in row["cells"]]
    return [cell["scores"] for cell in cells if cell["seed"] == seed]


@pytest.mark.slow
def test_cells_are_trained_scored_and_reported_and_kept_for_the_next_time(whole):
    bench, first = whole
    assert first.code == ExitCode.OK, first.stderr
    assert "6 cells: 3 rows, 2 seeds" in first.stderr
    assert "cell 6 of 6: lr=0.01, seed 1: done" in first.stderr
    folder = bench.place / "ablations" / "tiny"
    assert (folder / "report.md").read_text() == first.stdout
    assert "pretrain.objective: mlm -> retromae" in first.stdout
    done = sorted((bench.place / "ablations").rglob("done.json"))
    before = {path: path.stat().st_mtime_ns for path in done}

    again = ablate(bench, "--json")
    assert again.code == ExitCode.OK, again.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == before
    report = json.loads(again.stdout)
    assert report == json.loads((folder / "report.json").read_text())
    assert [row["name"] for row in report["rows"]] == ["reference", "objective=retromae", "lr=0.01"]
    for row in report["rows"]:
        assert [cell["seed"] for cell in row["cells"]] == [0, 1]
        assert all(0 <= cell["scores"]["mine"] <= 1 for cell in row["cells"])
        assert row["cells"][0]["costs"]["pretrain"]["tokens"] > 0
    # all rows share one base, and the row with another fine-tuning the reference's pre-training
    stages = [path.parent.parent.name for path in done]
    counts = {stage: stages.count(stage) for stage in stages}
    assert counts == {"base": 1, "pretrain": 4, "finetune": 6, "evaluate": 6}


@pytest.mark.slow
def test_a_killed_run_gives_the_same_result(whole):
    bench, _ = whole
    words = typed(bench, "--out", "killed", "--seeds", 0)
    with bench.start(*words, cwd=bench.place) as process:
        for line in process.stderr:
            if line.startswith("cell 1 of 3"):
                process.kill()
                break
    assert list((bench.place / "killed").glob("pretrain/*/done.json"))
    again = bench(*words, "--json")
    assert again.code == ExitCode.OK, again.stderr
    report = json.loads((bench.place / "ablations/tiny/report.json").read_text())
    assert scores_of(json.loads(again.stdout)) == scores_of(report)


@pytest.mark.slow
def test_each_row_and_seed_has_its_loss_curve_in_tensorboards_log(whole):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    place = whole[0].place
    logged = {}
    for file in (place / "runs").rglob("events*"):
        events = reader.EventAccumulator(str(file.parent)).Reload().Scalars("train/loss")
        row, stage = file.parent.relative_to(place / "runs/ablations/tiny").parts
        curve = read_curve(place / "ablations" / stage.replace("-", "/") / "model" / CURVE_FILE)
        assert [event.step for event in events] == [point.step for point in curve]
        logged.setdefault(row, []).append(stage.partition("-")[0])
    assert {row: sorted(stages) for row, stages in logged.items() if row.endswith("seed 1")} == {
        "reference, seed 1": ["finetune", "pretrain"],
        "objective=retromae, seed 1": ["finetune", "pretrain"],
        "lr=0.01, seed 1": ["finetune"],  # with the pre-training of the reference
    }


MASKED = """
import {helper}
from retrievers.training.objectives.mlm import MLM

class Masked(MLM):
    pass
"""


def prepare(bench):
    request = AblateRequest("grid.toml", device="cpu", cache_dir=bench.cache)
    return prepare_experiment(request)


def test_cells_of_an_objective_whose_code_was_edited_are_trained_again(
    bench, tmp_path, monkeypatch
):
    """Its own file and a file that it imports; other objectives keep their cells."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "one.py").write_text("")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "masked.py").write_text(MASKED.format(helper="one"))
    (tmp_path / "grid.toml").write_text(GRID.replace('{ name = "retromae" }', '"masked.py"'))

    def cells():
        experiment, conditions = prepare(bench)
        assert "masked.py" in conditions.own_code
        return {cell.row: cell.task.key for cell in experiment.cells}

    before = cells()
    assert cells() == before
    (tmp_path / "masked.py").write_text(MASKED.format(helper="other"))
    after = cells()
    assert {row for row in after if after[row] != before[row]} == {"objective=masked.py"}


def test_a_task_whose_inputs_changed_after_the_start_is_not_run(bench, tmp_path):
    task = prepare(bench)[0].tasks()[0]
    stale = replace(task, inputs={**task.inputs, "objective mlm.py": "0"})
    with pytest.raises(BenchError, match=r"changed since the experiment began: objective mlm\.py"):
        run_task(stale, tmp_path)


def test_each_seed_may_have_a_base_of_its_own(bench, tmp_path):
    counts = []
    for first in ("", "base_per_seed = true\n"):
        (tmp_path / "grid.toml").write_text(first + BASED)
        counts.append(sum(task.stage == "base" for task in prepare(bench)[0].tasks()))
    assert counts == [1, 2]


def test_code_of_the_users_is_evaluated_only_with_permission(bench, tmp_path):
    (tmp_path / "encoder.py").write_text(
        "import numpy as np\n"
        "def lengths(texts): return np.array([[len(text), 1.0] for text in texts])\n"
    )
    (tmp_path / "grid.toml").write_text(
        'name = "own"\nmodel = "encoder.py:lengths"\n[evaluate]\non = ["./mine"]\n'
        '[[axes]]\nfield = "evaluate.index"\nvalues = ["HNSW8"]\n'
    )
    refused = ablate(bench)
    assert refused.code == ExitCode.BAD_INPUT
    assert "allow it with --trust-code" in refused.stderr
    assert ablate(bench, "--trust-code").code == ExitCode.OK
    (row, _) = (tmp_path / "ablations").rglob("result.json")
    recipe = json.loads(row.read_text())["recipe"]
    assert (recipe["dim"], recipe["encoder"]) == (2, "encoder.py:lengths")


def test_a_finished_evaluation_without_results_says_what_to_delete(tmp_path):
    stage = EvaluateStage(Workspace(tmp_path))
    task = CellTask("evaluate", stage, {}, "key")
    with pytest.raises(BenchError, match=r"evaluate/key .* lacks results") as error:
        read_scores(task, tmp_path)
    assert error.value.hint == f"Delete {task.folder(tmp_path)} and type the same command."
    task = CellTask("evaluate", stage, {}, "key", inputs={"beir/tiny": "rules", "mine": "rules"})
    save(evaluation({"nDCG@10": [1.0, 0.0]}, ["q", "r"]), task.folder(tmp_path) / "results")
    with pytest.raises(BenchError, match=r"evaluate/key .* lacks results$"):
        read_scores(task, tmp_path)


@pytest.mark.parametrize(
    ("metadata", "changed"),
    [
        ('main_measure = "RR@10"', {"evaluate"}),
        ('measures = ["R@5"]', {"evaluate"}),
        ("depth = 100", {"evaluate"}),
        ("exclude_self = true", {"finetune", "evaluate"}),
        ('title = "Mine"', set()),
    ],
)
def test_other_rules_of_a_collection_are_other_cells(bench, tmp_path, metadata, changed):
    before = keys()
    (tmp_path / "mine" / "dataset.toml").write_text(metadata)
    after = keys()
    assert {stage for stage in before if before[stage] != after[stage]} == changed


def test_another_teacher_is_another_cell_and_a_typo_fails_at_once(bench, tmp_path):
    (tmp_path / "tiny.toml").write_text(FINETUNING + '[teacher]\nstart = "./other"\nmargin = 0.1\n')
    tiny.write_bert(tmp_path / "other")
    before = keys()["finetune"]
    assert {name for name in before if name.startswith("teacher ")}
    tiny.write_bert(tmp_path / "other", seed=1)
    after = keys()["finetune"]
    changed = {name.partition(" ")[0] for name in before if before[name] != after[name]}
    assert changed == {"teacher"}
    shutil.rmtree(tmp_path / "other")
    done = ablate(bench, "--dry-run")
    assert done.code == ExitCode.BAD_INPUT, done.stderr
    assert "folder './other'" in done.stderr


def stages():
    workspace = Workspace(Path("cache"), device="cpu")
    made = {"pretrain": PretrainStage(workspace), "evaluate": EvaluateStage(workspace)}
    return made | {"finetune": FinetuneStage(workspace, evaluated=("./mine",))}


def keys():
    """Hashes of what the stages read, without the keys of the tasks before them."""
    _opened_once.cache_clear()
    made = stages()
    tables = load_grid("grid.toml").stages()
    return {
        name: made[name].hash_inputs(made[name].resolve_settings(table))
        for name, table in tables.items()
    }


def test_a_dry_run_checks_and_shows_the_plan_and_trains_nothing(bench, tmp_path):
    shown = ablate(bench, "--dry-run")
    assert shown.code == ExitCode.OK, shown.stderr
    assert "6 cells: 3 rows, 2 seeds; 16 tasks left" in shown.stdout
    assert (
        "split train of mine: 0 queries with the text of a scored query of mine (2 scored)"
        in shown.stdout
    )
    assert not (tmp_path / "ablations").exists()
    document = json.loads(ablate(bench, "--dry-run", "--json").stdout)
    assert document["tasks"][0] == ["pretrain", 4, 0]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ('[finetune]\npreset = "tiny.toml"\non', "[finetune]\non",
         "the field 'preset' is missing", "list presets"),
        ('[pretrain]\npreset = "texts.toml"\non', '[pretrain]\nin', "unknown field 'in'", ""),
        ('name = "retromae" }', 'name = "retromea" }', "called 'retromea'", "retromae"),
        ('[evaluate]\non = ["./mine"]', '[evaluate]\non = ["./yours"]', "no collection", ""),
        ('[evaluate]\n', '[evaluate]\nmeasures = ["nDCG@x"]\n', "nDCG@x", ""),
        ('"finetune.optimizer.lr"', '"pretrain.seed"', "is the same for all rows", "seeds"),
        ('preset = "texts.toml"', 'preset = "texts.toml"\nseed = 1', "use seeds", ""),
        ('[evaluate]\non = ["./mine"]', '[evaluate]\non = ["./mine", "./a/mine"]',
         "mine is given 2 times", "dataset.toml of one"),
    ],
)  # fmt: skip
def test_bad_input_gives_one_message_before_anything_starts(
    bench, tmp_path, old, new, message, hint
):
    assert old in GRID
    (tmp_path / "grid.toml").write_text(GRID.replace(old, new))
    write_collection(tmp_path / "a" / "mine")
    done = ablate(bench)
    assert done.code == ExitCode.BAD_INPUT, done.stderr
    assert message in done.stderr
    assert hint in done.stderr
    assert "internal error" not in done.stderr
    assert not (tmp_path / "ablations").exists()


def test_training_on_what_is_scored_is_refused_before_anything_starts(bench, tmp_path):
    scored = GRID.replace("[finetune]\n", '[finetune]\nsplit = "test"\n')
    (tmp_path / "grid.toml").write_text(scored)
    done = ablate(bench)
    assert done.code == ExitCode.BAD_INPUT
    assert "split test of mine has 2 queries of split test, on which mine is" in done.stderr
    assert not (tmp_path / "ablations").exists()


def test_training_queries_that_read_like_a_scored_one_are_left_out_and_reported(bench, tmp_path):
    write_collection(tmp_path / "other", DOCUMENTS, {"x": "The RIVER!"}, {("x", "d4"): 1})
    text = GRID.replace('[evaluate]\non = ["./mine"]', '[evaluate]\non = ["./other"]')
    (tmp_path / "grid.toml").write_text(text)
    shown = ablate(bench, "--dry-run")
    like = [f"the {word}" for word in WORDS].count("the river")
    queries = f"{like} quer{'y' if like == 1 else 'ies'}"
    ending = ", left out" if like else ""
    said = f"split train of mine: {queries} with the text of a scored query of other (1 scored)"
    assert f"{said}{ending}\n" in shown.stdout


def test_a_cell_that_fails_is_a_gap_and_the_exit_code_says_so(bench, tmp_path):
    (tmp_path / "texts.toml").write_text(
        PRETRAINING.replace("max_tokens = 12", "max_tokens = 5000")
    )
    done = ablate(bench, "--seeds", "0")
    assert done.code == ExitCode.MISSING
    assert "cell 1 of 3: reference, seed 0: FAILED at pretrain: max_tokens 5000" in done.stderr
    assert "## Gaps" in done.stdout


def test_a_collection_that_is_not_the_published_one_is_refused_at_once_or_marked(bench, tmp_path):
    tiny.write_card(tmp_path / "start.toml", checkpoint="bert", pooling="mean")
    (tmp_path / "mine" / "dataset.toml").write_text("[counts]\nqueries = 3\n")
    (tmp_path / "grid.toml").write_text(
        'name = "use"\nmodel = "start.toml"\nevaluate = { on = ["./mine"] }\n'
        '[[axes]]\nfield = "evaluate.max_document_tokens"\nvalues = [4]\n'
    )
    refused = ablate(bench, "--dry-run")
    assert refused.code == ExitCode.BAD_INPUT
    assert "not the published mine: queries: 3 published, 2 found" in refused.stderr
    line = "This is not the published mine: queries: 3 published, 2 found."
    assert line in ablate(bench, "--dry-run", "--allow-mismatch").stdout
