"""``finetune`` and ``pretrain`` on files of other programs, as they are typed."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.requests.outcomes import ExitCode
from bench.training.training_sets import TrainSplit, training_set
from datasets_cfg.dataset import open_dataset
from datasets_cfg.readers.reader import Document
from datasets_cfg.readers.reader import TrainingExample as Example
from foundation.errors import BenchError
from retrievers.models.card import load_card
from tests.support import msmarco
from tests.support import tiny_checkpoints as tiny
from tests.support.collections import Bench, write_collection
from tests.support.trainable import (
    FINETUNING,
    RECORDS,
    TEXTS,
    TRAINING,
    write_lines,
    write_trainable,
    write_training,
    write_training_files,
)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    write_training(tmp_path)
    write_training_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return Bench(tmp_path)


def typed(line):
    return [*shlex.split(line), "--device", "cpu", "--cache-dir", "cache"]


FINETUNE = "finetune {} --model start.toml --out out/m "


def test_a_training_file_is_trained_on_without_its_evaluated_queries(bench, tmp_path):
    write_collection(tmp_path / "exam", queries={"x": "THE river!"}, qrels={("x", "d1"): 1})
    done = bench(*typed(FINETUNE.format("tiny.toml") + "--on train.jsonl --held-out ./exam"))
    assert done.code == ExitCode.OK, done.stderr
    assert "1 training query of train.jsonl with the text of a test query of exam" in done.stderr
    assert "6 queries;" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("run ./exam --model out/m --cache-dir cache")
    stored = json.loads((tmp_path / "out/m/training.json").read_text())["preset"]
    assert stored["rounds"][0]["sources"] == ["file"]  # instead of BM25
    assert load_card(tmp_path / "out/m/card.toml").trained_on == ("train.jsonl",)


@pytest.mark.slow
def test_the_scores_of_a_training_file_are_distilled_instead_of_a_teachers(bench, tmp_path):
    done = bench(*typed(FINETUNE.format("distil.toml") + "--on train.jsonl"))
    assert done.code == ExitCode.OK, done.stderr
    stored = json.loads((tmp_path / "out/m/training.json").read_text())["preset"]
    assert (stored["teacher"], stored["rounds"][0]["sources"]) == (None, ["file"])
    # other scores are another training
    changed = [{**record, "neg_scores": record["neg_scores"][::-1]} for record in RECORDS]
    write_lines(tmp_path / "train.jsonl", changed)
    again = bench(*typed(FINETUNE.format("distil.toml") + "--on train.jsonl"))
    assert again.code == ExitCode.BAD_INPUT
    assert "out/m" in again.stderr


def test_hard_negatives_of_several_systems_are_those_of_the_collection(bench, tmp_path):
    """Queries without positives, or unknown to the collection, stay those of its judgements."""
    found = [
        {"qid": "q0", "pos": ["d0"], "neg": {"bm25": ["d1", "d2"], "tas-b": ["d2", "d3"]}},
        {"qid": "q1", "pos": [], "neg": {"bm25": ["d4"]}},
        {"qid": "q999", "pos": [], "neg": {"bm25": ["d4"]}},
    ]
    write_lines(tmp_path / "hard.jsonl", found)
    small = "--set batch_size=2 --set rounds.0.keep=3"
    line = f"{FINETUNE.format('tiny.toml')}--on ./mine --negatives hard.jsonl {small}"
    done = bench(*typed(line))
    assert done.code == ExitCode.OK, done.stderr
    assert "2 queries;" in done.stdout
    assert np.load(tmp_path / "out/m/negatives/file.npy").tolist() == [[1, 2, 3], [4, -1, -1]]


GRID = """
name = "lengths"
pretrain = { preset = "texts.toml", on = ["./mine"] }
finetune = { preset = "tiny.toml", on = ["./mine"] }
evaluate = { on = ["./mine"] }
[[axes]]
field = "pretrain.steps"
values = [3]
"""


@pytest.mark.slow
def test_a_mistake_is_found_before_torch_is_imported_and_a_plan_made_before_the_trainer(
    bench, tmp_path
):
    lines = [
        "pretrain wrong.toml --on notes.txt",
        "finetune wrong.toml --model start.toml --on ./mine",
        "finetune tiny.toml --model start.toml --on ./mine --negatives wrong.jsonl",
    ]
    (tmp_path / "notes.txt").write_text("the river of stone\n")
    (tmp_path / "wrong.toml").write_text(FINETUNING.replace("steps", "stepz"))
    (tmp_path / "wrong.jsonl").write_text('{"qid": 1, "pos": 2, "neg": [[3]]}\n')
    program = (
        "import json, sys\n"
        "from foundation.errors import BenchError\n"
        "from bench.cli.main import *\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.argv[1:] = words\n"
        "    try: run_command()\n"
        "    except BenchError: print({'torch', 'transformers'} & set(sys.modules))\n"
        "print({'torch', 'transformers.trainer'} & set(sys.modules))"
    )
    (tmp_path / "grid.toml").write_text(GRID)
    commands = [typed(f"{line} --out out/m") for line in lines]
    commands = json.dumps([*commands, typed("ablate grid.toml --dry-run")])
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    words = [sys.executable, "-c", program, commands]
    done = subprocess.run(words, env=path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("set()\n" * len(lines)), done.stderr
    assert done.stdout.endswith("\n{'torch'}\n"), done.stdout


@pytest.mark.parametrize("name", ["notes.txt", "alone"])
def test_documents_alone_can_be_pretrained_on(bench, tmp_path, name):
    (tmp_path / "notes.txt").write_text("the river of stone\nalpha beta gamma\n")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/corpus.jsonl").write_text('{"_id": "d", "text": "the river of stone"}\n')
    done = bench(*typed(f"pretrain texts.toml --on ./{name} --out out/m"))
    assert done.code == ExitCode.OK, done.stderr
    assert "evaluate it: python -m bench run COLLECTION --model out/m" in done.stdout
    assert load_card(tmp_path / "out/m/card.toml").trained_on == (name,)


def test_given_passages_are_rows_with_the_scores_of_their_query(tmp_path, caplog):
    write_trainable(tmp_path / "mine")
    dataset = open_dataset(str(tmp_path / "mine"), cache_dir=tmp_path / "cache", split="train")

    def passages(*names):
        return tuple(Document(name, "", "") for name in names)

    given = [
        Example("q3", "", passages("d3", "gone"), passages("d5", "d0"), (9.0, 8.0, 2.0, 1.0)),
        Example("q1", "", passages("d1"), passages("d4"), (7.0, 6.0)),
        Example("q3", "", passages("d6"), passages("d2"), (5.0, 4.0)),
        Example("t1", "", passages("d1"), passages("d4"), (7.0, 6.0)),  # a test query
    ]
    split = TrainSplit.of(dataset).with_given(given, keep=2)
    assert "1 of 7 passages of the records with negatives are not in mine" in caplog.text
    assert split.dataset.queries.ids == ("q1", "q3")
    assert [rows.tolist() for rows in split.positives] == [[1], [3, 6]]
    pool = training_set([split]).take(np.array([1])).negatives
    assert pool is not None
    assert pool.rows.tolist() == [[5, 0]]  # the first two
    assert pool.scores.tolist() == [[2, 1]]
    assert [scores.tolist() for scores in pool.positive_scores] == [[9, 5]]
    chosen = pool.select(np.array([[0, -1]]))
    assert chosen.labels(0, np.array([3, 6]), np.array([6, 0])).tolist() == [5, 1]
    unscored = TrainSplit.of(dataset).with_given([given[1]._replace(scores=())], keep=9)
    assert (unscored.positives[0].tolist(), unscored.negatives.rows.tolist()) == ([1], [[4]])
    with pytest.raises(BenchError, match="texts instead of ids"):
        TrainSplit.of(dataset).with_given([given[0]._replace(id="")], keep=2)
    irrelevant = given[1]._replace(positives=passages("gone"))
    with pytest.raises(BenchError, match="scored records has a relevant passage"):
        TrainSplit.of(dataset).with_given([irrelevant], keep=2)


PASSAGES = {str(number): text for number, text in enumerate(TEXTS * 2)}
QUERIES = {str(1185869 + number): text for number, text in enumerate(TRAINING.values())}
PAIRS = [(query, str(number)) for number, query in enumerate(QUERIES)]
ARCHIVES = {
    msmarco.ARCHIVE: msmarco.pack(
        PASSAGES,
        {"train": (QUERIES, PAIRS), "dev.small": ({"2": "a river of stone"}, [("2", "4")])},
    )
}


@pytest.mark.slow
def test_ms_marco_is_downloaded_once_and_trained_on_and_evaluated(bench, tmp_path):
    """The archive has its genuine members."""
    bench = Bench(tmp_path, online=True)
    with msmarco.published(ARCHIVES) as server:
        lines = [
            "fetch msmarco/train msmarco/dev --cache-dir cache",
            "pretrain texts.toml --on msmarco/dev --out out/base --device cpu --cache-dir cache",
            "finetune tiny.toml --model out/base --on msmarco/train --held-out msmarco/dev "
            "--out out/m --device cpu --cache-dir cache",
            "finetune tiny.toml --model out/base --on msmarco/dev --out out/same --device cpu "
            "--cache-dir cache",
            "run msmarco/dev --model out/m --cache-dir cache --json",
        ]
        done = [bench(*shlex.split(line)) for line in lines]
    assert [each.code for each in done] == [0] * len(lines), [each.stderr for each in done]
    assert len(server.requests) == 1
    assert len(list((tmp_path / "cache/corpora").iterdir())) == 1
    assert "7 queries; loss" in done[2].stdout
    assert "evaluate it: python -m bench run msmarco/dev --model out/m" in done[2].stdout
    assert "7 queries; loss" in done[3].stdout  # its train split
    (result,) = json.loads(done[-1].stdout)["results"]
    assert result["in_domain"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ance-paper", "cocondenser-msmarco-paper", "retromae-beir"])
def test_published_presets_train_on_ms_marco(bench, tmp_path, name):
    """Up to the number of steps and the size of batches, models and teachers."""
    titles = "".join(f"{id_}\ta title\n" for id_ in PASSAGES)
    archives = ARCHIVES | {"marco.tar.gz": msmarco.pack_files({"marco/para.title.txt": titles})}
    tiny.write_bert(tmp_path / "long", max_position_embeddings=512)
    track = "msmarco-title" if "msmarco-paper" in name else "msmarco"
    small = ["batch_size=3", "hard_negatives=1", "save_every=1"]
    small += ['teacher={model="", margin=-99.0, batch_size=2, max_tokens=32}'] * ("beir" in name)
    small += ["rounds.0.refresh_steps=1"] * (name == "ance-paper")
    with msmarco.published(archives):
        done = Bench(tmp_path, online=True)(
            *typed(f"finetune {name} --model long --like bert --on {track}/train --out out/m"),
            *("--steps", "2", *(word for field in small for word in ("--set", field))),
        )
    assert done.code == ExitCode.OK, done.stderr
    assert "out/m: " in done.stdout
