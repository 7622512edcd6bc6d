"""Mistakes of `mistakes.txt`: each exits with its code and names the mistake and the remedy."""

import shlex
from pathlib import Path

import pytest

from tests.support.collections import Bench, files_below, write_collection, write_hashing_card

ROWS = (Path(__file__).parent / "mistakes.txt").read_text(encoding="utf-8").splitlines()[1:]
MISTAKES = [row.split(" | ") for row in ROWS]
WITH_RESULTS = ("compare", "check", "leaderboard", "export", "run", "score")
WITHOUT_A_CACHE = ("compare", "export", "leaderboard", "list", "rum", "show")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    write_collection(folder / "tiny")
    write_hashing_card(folder / "a model.toml", 8)
    (folder / "some.trec").write_text("q1 Q0 d1 1 1.5 tag\n")
    (folder / "other.trec").write_text("x1 Q0 d1 1 1.5 tag\n")
    (folder / "empty").mkdir()
    (folder / "empty.txt").touch()
    assert Bench(folder)("run", folder / "tiny", "--model", "hashing", "bm25").code == 0
    return folder


@pytest.mark.parametrize(("code", "command", "found", "remedy"), MISTAKES)
def test_a_mistake_is_reported_with_the_value_found_and_what_to_type(
    code: str, command: str, found: str, remedy: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = files_below(folder / "out")
    words = shlex.split(command)
    words += ["--results", "out"] if words[0] in WITH_RESULTS and "--results" not in words else []
    without = words[0] in WITHOUT_A_CACHE or "--cache-dir" in words
    words += [] if without else ["--cache-dir", "cache"]
    done = Bench(folder)(*words)
    assert (str(done.code), done.stdout) == (code, "")
    assert done.stderr.count("error: ") == 1
    message = done.stderr[done.stderr.index("error: ") :]
    assert found in message
    assert remedy in message
    assert files_below(folder / "out") == before
