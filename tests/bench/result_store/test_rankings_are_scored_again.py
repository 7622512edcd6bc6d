"""Stored scores are compared with their rankings, or a warning names the reason why not."""

import shutil

import pytest

from tests.support.collections import write_collection
from tests.support.leaderboards import lower_scores, store


def write_questions(folder):
    folder.mkdir()
    passages = "id\ttext\ttitle\n1\tThe prize went to him in 1901\tPrize\n2\tA duck\tFilm\n"
    (folder / "psgs_w100.tsv").write_text(passages)
    (folder / "nq-test.qa.csv").write_text("who got the prize\t['him']\nwhat is a duck\t['film']\n")
    (folder / "dataset.toml").write_text('main_measure = "Success@1"\nmeasures = []\n')
    return folder


@pytest.fixture(params=["another tool's measure", "answers"])
def evaluated(request, bench, tmp_path):
    """Folder of a collection, and the options with which `bm25` was evaluated on it."""
    if request.param == "answers":
        folder, options = write_questions(tmp_path / "nq"), ()
    else:
        folder, options = write_collection(tmp_path / "tiny"), ("--measure", "Bpref")
    assert bench("run", folder, "--model", "bm25", *options).code == 0
    return folder


def test_scores_that_are_not_those_of_their_ranking_are_refused(bench, evaluated, caplog):
    words = ("leaderboard", "--results", bench.out, "--cache-dir", bench.cache)
    assert bench(*words).code == 0
    assert "not compared" not in caplog.text
    folder = bench.results(evaluated.name, "bm25")
    lower_scores(folder, bench.out)
    done = bench(*words)
    assert (done.code, done.stdout) == (2, "")
    assert f"{folder} contradicts itself: its scores differ" in done.stderr


def test_one_warning_names_the_results_that_cannot_be_scored_again(bench, tmp_path, caplog):
    folder = write_collection(tmp_path / "tiny")
    assert bench("run", folder, "--model", "hashing", "bm25").code == 0
    store(bench.out, "minilm", "elsewhere", {"nDCG@10": [0.5, 0.25]})
    shutil.rmtree(folder)
    done = bench("leaderboard", "--results", bench.out, "--cache-dir", bench.cache)
    assert done.code == 0, done.stderr
    (warning,) = [text for text in caplog.messages if "not compared" in text]
    assert "elsewhere is not on this machine" in warning
    assert warning.count("tiny is not on this machine") == 1
