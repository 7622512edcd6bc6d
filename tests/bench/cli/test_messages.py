"""Every message in `messages.txt`: the command, what was wrong, and what to type."""

import shlex
from pathlib import Path

import pytest

from tests.support.collections import Bench, files_below, write_collection, write_hashing_card

MESSAGES = (Path(__file__).parent / "messages.txt").read_text(encoding="utf-8")
PAIRS = dict(block.split("\n", 1) for block in MESSAGES.removeprefix("$ ").split("\n$ "))
WITH_RESULTS = ("compare", "check", "leaderboard", "export", "run", "score")
WITHOUT_A_CACHE = ("compare", "export", "leaderboard", "list", "rum", "show")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place")
    write_collection(place / "tiny")
    write_hashing_card(place / "a model.toml", 8)
    (place / "some.trec").write_text("q1 Q0 d1 1 1.5 tag\n")
    (place / "empty").mkdir()
    assert Bench(place)("run", place / "tiny", "--model", "hashing", "bm25").code == 0
    return place


@pytest.mark.parametrize("command", PAIRS)
def test_a_mistake_is_answered_with_what_was_wrong_and_what_to_type(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is exact: read it aloud before you change it."""
    monkeypatch.chdir(place)
    before = files_below(place / "out")
    words = shlex.split(command)
    words += ["--results", "out"] if words[0] in WITH_RESULTS and "--results" not in words else []
    words += (
        ["--results", "out"] if words[0] in ("run", "score") and "--results" not in words else []
    )
    without = words[0] in WITHOUT_A_CACHE or "--cache-dir" in words
    words += [] if without else ["--cache-dir", "cache"]
    done = Bench(place)(*words)
    assert (done.code, done.stdout) == (2, "")
    message = done.stderr[done.stderr.index("error: ") :].replace(str(place), "PLACE")
    assert message.rstrip() == PAIRS[command].rstrip()
    assert files_below(place / "out") == before
