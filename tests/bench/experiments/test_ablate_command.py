"""``ablate`` as a user meets it: tiny models that are really trained, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from bench.experiments.evaluate_stage import EvaluateStage, read_scores
from bench.experiments.experiment import CellTask
from bench.experiments.grid import load_grid
from bench.experiments.training_stages import FinetuneStage, PretrainStage
from bench.requests.outcomes import ExitCode
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


@pytest.fixture
def bench(tmp_path, monkeypatch):
    write_training(tmp_path)
    (tmp_path / "grid.toml").write_text(GRID)
    monkeypatch.chdir(tmp_path)
    run_stages_in_this_process(monkeypatch)
    return Bench(tmp_path)


def ablate(bench, *more):
    typed = ("ablate", "grid.toml", "--device", "cpu", "--cache-dir", bench.cache, *more)
    return bench(*typed)


def done_files(tmp_path):
    return {path: path.stat().st_mtime_ns for path in (tmp_path / "ablations").rglob("done.json")}


@pytest.mark.slow
def test_cells_are_trained_scored_and_reported_and_kept_for_the_next_time(bench, tmp_path):
    pytest.importorskip("sentence_transformers")
    first = ablate(bench)  # the only one that trains more than one seed
    assert first.code == ExitCode.OK, first.stderr
    assert "6 cells: 3 rows, 2 seeds" in first.stderr
    assert "cell 6 of 6: lr=0.01, seed 1: done" in first.stderr
    folder = tmp_path / "ablations" / "tiny"
    assert (folder / "report.md").read_text() == first.stdout
    assert (folder / "report.json").is_file()
    assert "pretrain.objective: mlm -> retromae" in first.stdout
    before = done_files(tmp_path)

    again = ablate(bench, "--json")
    assert again.code == ExitCode.OK, again.stderr
    assert done_files(tmp_path) == before
    report = json.loads(again.stdout)
    assert [row["name"] for row in report["rows"]] == ["reference", "objective=retromae", "lr=0.01"]
    for row in report["rows"]:
        assert [cell["seed"] for cell in row["cells"]] == [0, 1]
        assert all(0 <= cell["scores"]["mine"] <= 1 for cell in row["cells"])
        assert row["cells"][0]["costs"]["pretrain"]["tokens"] > 0
    # the row with another fine-tuning shares the pre-training of the reference
    stages = [path.parent.parent.name for path in before]
    assert (stages.count("pretrain"), stages.count("finetune")) == (4, 6)


@pytest.mark.slow
def test_each_row_and_seed_has_its_loss_curve_in_tensorboards_log(bench, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = ablate(bench, "--log-dir", "runs", "--seeds", "1")
    assert done.code == ExitCode.OK, done.stderr
    logged = {}
    for file in (tmp_path / "runs").rglob("events*"):
        events = reader.EventAccumulator(str(file.parent)).Reload().Scalars("train/loss")
        row, stage = file.parent.relative_to(tmp_path / "runs/ablations/tiny").parts
        curve = read_curve(tmp_path / "ablations" / stage.replace("-", "/") / "model" / CURVE_FILE)
        assert [event.step for event in events] == [point.step for point in curve]
        logged.setdefault(row, []).append(stage.partition("-")[0])
    assert {row: sorted(stages) for row, stages in logged.items()} == {
        "reference, seed 1": ["finetune", "pretrain"],
        "objective=retromae, seed 1": ["finetune", "pretrain"],
        "lr=0.01, seed 1": ["finetune"],  # with the pre-training of the reference
    }


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
