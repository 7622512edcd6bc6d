"""A base that all rows go on from, several endpoints, and hypotheses: tiny and really trained."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.evaluation.pipeline import current_conditions
from bench.experiments.evaluate_stage import CheckpointScores
from bench.experiments.execute import run_experiment
from bench.experiments.experiment import plan_experiment
from bench.experiments.findings import make_report
from bench.experiments.grid import FILES
from bench.experiments.report_record import HypothesisResult, RowOnCollection
from bench.outcomes import ExitCode
from bench.training.training_sets import TrainSplit, draw_queries
from datasets_cfg.dataset import open_dataset
from reports.experiment import markdown
from tests.support.collections import Bench, write_collection, write_qrels
from tests.support.experiments import (
    FAKES,
    GRID,
    in_this_process,
    read_scores,
    run_stages_in_this_process,
)
from tests.support.markdown import rows_of

ROOT = Path(__file__).parents[3]
THINGS = ("river", "stone", "cloud", "tiger", "lemon", "train", "piano", "brick")
DOCUMENTS = {
    f"d{n}": ("", f"the {thing} is beside a {THINGS[n - 1]} and not a {THINGS[n - 3]} " * 3)
    for n, thing in enumerate(THINGS)
}
TEST = {f"t{n}": f"a {thing}" for n, thing in enumerate(THINGS)}
TRAIN = {f"q{n}": f"where is the {thing} beside" for n, thing in enumerate(THINGS)}
GRID_OF_ENDPOINTS = """
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
labels = ["MLM", "RetroMAE", "zeros"]
values = [{ name = "mlm" }, { name = "retromae" }, { name = "retromae", decoder_reads = "zero" }]

[[hypotheses]]
row = "objective=RetroMAE"
against = "objective=zeros"
expected = "better"

[[hypotheses]]
row = "objective=zeros"
against = "reference"
expected = "equal"

[endpoints.untrained]
title = "untrained"
evaluate = { on = ["./mine"] }

[endpoints.few]
title = "few"
finetune = { preset = "fine.toml", on = ["./mine"], queries = 4 }
evaluate = { on = ["./mine"] }
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
    qrels = {(f"t{n}", f"d{n}"): 1 for n in range(len(THINGS))}
    folder = write_collection(tmp_path / "mine", DOCUMENTS, TEST | TRAIN, qrels)
    write_qrels(folder, {(f"q{n}", f"d{n}"): 1 for n in range(len(THINGS))}, "train")
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "fine.toml").write_text(FINETUNE)
    (tmp_path / "grid.toml").write_text(GRID_OF_ENDPOINTS)
    monkeypatch.chdir(tmp_path)
    run_stages_in_this_process(monkeypatch)
    return Bench(tmp_path)


def typed(bench, out="ablations"):
    return ("ablate", "grid.toml", "--device", "cpu", "--cache-dir", str(bench.cache), "--out", out)


def scores_of(reports):
    return [
        [cell["scores"] for row in report["rows"] for cell in row["cells"]] for report in reports
    ]


@pytest.mark.slow
def test_rows_share_one_base_and_a_killed_run_gives_the_same_result(bench, tmp_path):
    pytest.importorskip("sentence_transformers")
    whole = bench(*typed(bench), "--json")
    assert whole.code == ExitCode.OK, whole.stderr
    untrained, few = reports = json.loads(whole.stdout)
    assert [report["name"] for report in reports] == ["tiny-untrained", "tiny-few"]
    assert "finetune" not in untrained["reference"]
    assert few["reference"]["finetune"]["queries"] == 4
    done = [path.parts[-3] for path in (tmp_path / "ablations").glob("[!r]*/*/done.json")]
    counts = {stage: done.count(stage) for stage in dict.fromkeys(done)}
    # 3 rows with 2 seeds on one base; both endpoints score the same pre-training
    assert counts == {"base": 1, "pretrain": 6, "finetune": 6, "evaluate": 12}
    tokens = [cell["costs"]["pretrain"]["tokens"] for row in few["rows"] for cell in row["cells"]]
    assert max(tokens) <= 1.1 * min(tokens)
    text = (tmp_path / "ablations" / "tiny-few" / "report.md").read_text()
    assert {line["status"] for line in rows_of(text)} == {"fixed beforehand"}
    assert "objective=zeros is equal to reference" in text

    command = [sys.executable, "-m", "bench", *typed(bench, "killed")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("cell 2 of 6"):
                os.kill(process.pid, signal.SIGKILL)
                break
    assert list((tmp_path / "killed").glob("pretrain/*/done.json"))
    again = bench(*typed(bench, "killed"), "--json")
    assert again.code == ExitCode.OK, again.stderr
    assert scores_of(json.loads(again.stdout)) == scores_of(reports)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "tokens = 300",
            'tokens = 300\nstart = { model = "minilm" }',
            "start is set, but this stage continues",
        ),
        ("queries = 4", "queries = 0", "queries is 0, and must be a whole number of 1 or more"),
        ('row = "objective=zeros"', 'row = "objective=zero"', "Did you mean objective=zeros"),
        ('expected = "equal"', 'expected = "same"', "expected"),
        ("[base]", 'evaluate = { on = ["./mine"] }\n[base]', "into the endpoints"),
        ("vocabulary = 120", 'vocabulary = 9\ntokenizer = "bert"', "either tokenizer or vocab"),
    ],
)
def test_bad_input_gives_one_message_before_anything_starts(bench, tmp_path, old, new, message):
    for name, text in (("grid.toml", GRID_OF_ENDPOINTS), ("base.toml", BASE)):
        (tmp_path / name).write_text(text.replace(old, new))
    done = bench(*typed(bench))
    assert done.code == ExitCode.BAD_INPUT, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "ablations").exists()


def test_drawn_queries_are_nested_by_seed_and_keep_their_documents(bench):
    split = TrainSplit.of(open_dataset("./mine", cache_dir=bench.cache, split="train"))
    assert draw_queries([split, split], 16, 0)[1].dataset.queries == split.dataset.queries
    few, more = (draw_queries([split], count, 5)[0] for count in (3, 6))
    assert len(few.dataset.queries) == 3
    assert set(few.dataset.queries.ids) < set(more.dataset.queries.ids)
    assert {draw_queries([split], 3, seed)[0].dataset.queries.ids for seed in range(9)} != {
        few.dataset.queries.ids
    }
    for id_, rows in zip(more.dataset.queries.ids, more.positives, strict=True):
        assert split.dataset.corpus.ids[int(rows[0])].as_py() == id_.replace("q", "d")


def hypotheses_of(tmp_path, *lines):
    text = GRID + "".join(f"[[hypotheses]]\n{line}\n" for line in lines)
    plan = plan_experiment(FILES.parse(text.encode(), "grid.toml"), FAKES)
    outcome = run_experiment(plan, tmp_path, in_this_process, lambda _: None)
    read = read_scores(tmp_path)

    def noisy(task):
        noise = np.random.default_rng(int(task.key, 16)).normal(0, 0.05, 40)
        return {
            name: CheckpointScores(scored.measure, scored.query_ids, scored.values + noise)
            for name, scored in read(task).items()
        }

    return make_report(plan, outcome, noisy, "typed", current_conditions("cpu"))


def test_a_hypothesis_is_the_difference_of_two_rows_whatever_they_are_against(tmp_path):
    report = hypotheses_of(
        tmp_path,
        'row = "steps=20"\nagainst = "steps=5"\nexpected = "better"',
        'row = "steps=5"\nagainst = "steps=20"\nexpected = "better"',
        'row = "lr=0.2"\nagainst = "steps=20"\nexpected = "equal"',
    )
    rows = {row.name: np.mean(report.seed_scores(row, "c")) for row in report.rows}
    better, worse, other = report.hypotheses
    assert better.on[0].difference.mean == pytest.approx(rows["steps=20"] - rows["steps=5"])
    answers = [each.answer("c") for each in report.hypotheses]
    assert answers == ["supported", "refuted", "refuted"]
    assert worse.on[0].difference.mean == -better.on[0].difference.mean
    raw = [each.on[0].difference.p for each in (better, worse, other)]
    assert min(each.on[0].p_holm for each in report.hypotheses) == pytest.approx(3 * min(raw))
    assert "steps=20 is better than steps=5" in markdown(report)


@pytest.mark.parametrize(
    ("expected", "verdict", "answer"),
    [
        ("better", "better", "supported"),
        ("better", "worse", "refuted"),
        ("better", "cannot tell", "not separated"),
        ("equal", "worse", "refuted"),
        ("equal", "cannot tell", "not separated"),
        ("equal", "", ""),
    ],
)
def test_no_difference_supports_nothing(expected, verdict, answer):
    on = RowOnCollection(collection="c", measure="RR@10", queries=1, score=None, verdict=verdict)
    tested = HypothesisResult(row="a", against="b", expected=expected, on=(on,))
    assert tested.answer("c") == answer
