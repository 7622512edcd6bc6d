"""``finetune`` as a user meets it."""

import builtins
import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench, heed_ctrl_c, write_collection
from tests.support.trainable import write_trainable

PRESET = """
title = "tiny"
steps = 4
batch_size = 3
hard_negatives = 1
[[rounds]]
sources = ["bm25", "model"]
depth = 5
[optimizer]
lr = 1e-3
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    write_trainable(tmp_path / "mine")
    tiny.write_bert(tmp_path / "bert")
    tiny.write_card(tmp_path / "start.toml", checkpoint="bert", pooling="mean")
    (tmp_path / "tiny.toml").write_text(PRESET)
    monkeypatch.chdir(tmp_path)
    return Bench(tmp_path)


def typed(*more):
    command = ["finetune", "tiny.toml", "--model", "start.toml", "--on", "./mine", "--out", "out/m"]
    return [*command, "--device", "cpu", "--cache-dir", "cache", *more]


def test_a_finished_folder_is_evaluated_at_once(bench, tmp_path):
    done = bench(*typed())
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("out/m: 4 steps, 7 queries; loss ")
    assert "python -m bench run ./mine --model out/m" in done.stdout
    ran = bench("run", tmp_path / "mine", "--model", tmp_path / "out" / "m", "--json")
    assert ran.code == 0, ran.stderr
    result = json.loads(ran.stdout)["results"][0]
    assert result["in_domain"]
    assert result["recipe"]["pooling"] == "mean"


def test_json_is_one_document(bench):
    done = bench(*typed("--json", "--steps", "2", "--set", "seed=3"))
    report = json.loads(done.stdout)
    assert (report["steps"], report["rounds"], report["queries"]) == (2, 1, 7)
    assert report["losses"]["last"]["step"] == 2


def test_options_change_the_preset(bench, tmp_path):
    changes = ("optimizer.lr=0.5", "rounds.0.sources=['bm25']", "batch_size=2")
    done = bench(*typed(*(word for change in changes for word in ("--set", change))))
    assert done.code == 0, done.stderr
    preset = json.loads((tmp_path / "out" / "m" / "training.json").read_text())["preset"]
    assert preset["optimizer"]["lr"] == 0.5
    assert preset["rounds"][0]["sources"] == ["bm25"]
    assert preset["batch_size"] == 2


def test_a_test_split_is_not_trained_on(bench, tmp_path):
    done = bench(*typed("--split", "test"))
    assert done.code == 2
    assert "2 queries of the split test" in done.stderr
    assert not (tmp_path / "out").exists()


def test_held_out_queries_of_another_collection_are_left_out(bench, tmp_path):
    write_collection(tmp_path / "exam", queries={"x": "The RIVER!"}, qrels={("x", "d1"): 1})
    done = bench(*typed("--held-out", "./exam"))
    assert "1 training queries of mine read like test queries of exam" in done.stderr
    assert "6 queries;" in done.stdout


def test_a_folder_with_nothing_but_a_training_split_can_be_trained_on(bench, tmp_path):
    (tmp_path / "mine" / "qrels" / "test.tsv").unlink()
    assert bench(*typed()).code == 0


def test_a_damaged_test_split_is_not_taken_for_none(bench, tmp_path):
    (tmp_path / "mine" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nt1\n")
    done = bench(*typed())
    assert done.code == 2
    assert "test.tsv" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_collection_that_is_there_to_train_on_is_trained_on_and_not_evaluated(bench, tmp_path):
    (tmp_path / "mine" / "dataset.toml").write_text('split = "train"\n')
    done = bench(*typed("--steps", "2"))
    assert done.code == 0, done.stderr
    assert "7 queries" in done.stdout
    assert "python -m bench run stdlib-code --model out/m" in done.stdout


def test_a_training_collection_that_is_held_out_by_name_is_not_trained_on(bench, tmp_path):
    (tmp_path / "mine" / "dataset.toml").write_text('split = "train"\n')
    done = bench(*typed("--held-out", "./mine"))
    assert done.code == 2
    assert "7 queries of the split train that mine is evaluated on" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "rounds.0.depht=3"], "unknown field `depht`"),
        (["--set", "nonsense"], "is not FIELD=VALUE"),
        (["--set", "batch_size=9"], "a batch of 9 queries is more than the 7"),
        (["--split", "dev"], "qrels"),
        (["--model", "bm25"], "bm25 cannot be fine-tuned"),
        (["--on", "./bert"], "bert"),
        (["--held-out", "nowhere"], "nowhere"),
        (["--set", "use.max_document_tokens=99"], "do not fit"),
    ],
)
def test_bad_input_is_one_message(bench, options, message):
    done = bench(*typed(*options))
    assert done.code == 2
    assert done.stderr.count("error: ") == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_package_is_named_before_anything_is_done(bench, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **others):
        if name.partition(".")[0] == "datasets":
            raise ImportError("no module named datasets")
        return real(name, *arguments, **others)

    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr(builtins, "__import__", without)
    done = bench(*typed())
    assert done.code == 2
    assert "pip install 'retrieval-bench[train]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_killed_command_goes_on_and_ends_as_if_it_had_not_been(bench, tmp_path):
    whole = bench(*typed("--steps", "40", "--out", "out/whole"))
    assert whole.code == 0, whole.stderr
    command = typed("--steps", "40", "--set", "save_every=5")
    process = bench.start(*command, cwd=tmp_path, preexec_fn=heed_ctrl_c, env=own_environment())
    checkpoints = tmp_path / "out" / "m" / "checkpoints"
    deadline = time.monotonic() + 300
    while not list(checkpoints.glob("*/complete")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out" / "m" / "card.toml").exists()
    again = bench(*command)
    assert ", resumed at " in again.stdout
    one, other = (tmp_path / "out" / name / "model.safetensors" for name in ("whole", "m"))
    assert one.read_bytes() == other.read_bytes()


def own_environment():
    import os

    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
