"""Mistakes of `mistakes.txt`: each exits with its code and names the mistake and the remedy."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from bench.explain.question import SUFFIXES
from tests.support.collections import Bench, files_below, write_collection, write_hashing_card
from tests.support.trainable import write_trainable, write_training, write_training_files

ROWS = (Path(__file__).parent / "mistakes.txt").read_text(encoding="utf-8").splitlines()[1:]
MISTAKES = [row.split(" | ") for row in ROWS]
WITH_RESULTS = ("compare", "check", "leaderboard", "export", "run", "score")
WITHOUT_RESULTS = {"--results", "--served", "--stack"}
WITHOUT_A_CACHE = ("compare", "export", "leaderboard", "list", "rum", "show")


THREE = """
name = "three"
title = "x"
kind = "fusion"
models = ["bm25", "minilm", "hashing"]
method = "weighted"
weights = [1, 2, 3]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    write_collection(folder / "tiny")
    write_hashing_card(folder / "a model.toml", 8)
    (folder / "some.trec").write_text("q1 Q0 d1 1 1.5 tag\n")
    (folder / "other.trec").write_text("x1 Q0 d1 1 1.5 tag\n")
    (folder / "second.trec").write_text("q1 Q0 d2 1 1.5 tag\n")
    (folder / "three.toml").write_text(THREE)
    (folder / "empty").mkdir()
    (folder / "empty.txt").touch()
    (folder / "step=5").mkdir()
    write_training(folder)
    write_trainable(folder / "mine2")
    write_training_files(folder / "given")
    write_evidence(folder, folder / "given")
    assert Bench(folder)("run", folder / "tiny", "--model", "hashing", "bm25").code == 0
    return folder


def write_evidence(folder: Path, given: Path) -> None:
    """A collection and a search system, and files for `explain` that are damaged or of another."""
    numbered = {str(3 * row): ("", f"alpha {row}") for row in range(5)}
    write_collection(folder / "numbers", numbered, {"q": "alpha"}, {("q", "3"): 1})
    system = "import os\nclass Prod:\n    def search(self, queries, k): return []\n"
    (folder / "search.py").write_text(system)
    lines = [f"q Q0 {3 * row + 1} 1 {1 / (row + 1)} x\n" for row in range(5)]
    (given / "shifted.trec").write_text("".join(lines))
    (given / "unknown.txt").write_text("other 0.5\n")
    np.save(given / "short.npy", np.zeros((3, 32), np.float32))
    np.save(given / "nan.npy", np.full((5, 32), np.nan))
    np.save(given / "pickle.npy", np.array([{}] * 5, dtype=object))
    for suffix in SUFFIXES:
        (given / f"damaged{suffix}").write_bytes(b"\xff damaged")


def kept_files(folder: Path) -> list[Path]:
    """All files but those of the cache."""
    return [path for path in files_below(folder) if "cache" not in path.parts]


@pytest.mark.parametrize(("code", "command", "found", "remedy"), MISTAKES)
def test_a_mistake_is_reported_with_the_value_found_and_what_to_type(
    code: str, command: str, found: str, remedy: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = kept_files(folder)
    words = shlex.split(command)
    is_with_results = words[0] in WITH_RESULTS and not {*words} & WITHOUT_RESULTS
    words += ["--results", "out"] if is_with_results else []
    without = words[0] in WITHOUT_A_CACHE or "--cache-dir" in words
    words += [] if without else ["--cache-dir", "cache"]
    done = Bench(folder)(*words)
    assert (str(done.code), done.stdout) == (code, "")
    assert done.stderr.count("error: ") == 1
    message = done.stderr[done.stderr.index("error: ") :]
    assert found in message
    assert remedy in message
    assert "hunter2" not in message
    assert kept_files(folder) == before
