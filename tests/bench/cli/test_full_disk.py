"""A disk that is full in the middle of a command: the file is named, and what to do."""

import re
import resource
from functools import partial
from pathlib import Path

import pytest

from tests.support.collections import Bench, finish, heed_ctrl_c, write_collection

COMMANDS = {
    "run": ["run", "{data}", "--model", "hashing", "bm25", "--results", "{new}"],
    "check": ["check", "hashing", "--baseline", "bm25", "--on", "{data}", "--results", "{old}"],
    "export": ["export", "bm25", "--results", "{old}", "--out", "{new}"],
}


def limited(most_bytes: int) -> None:
    """Let no file grow beyond this: the system says what it says of a full disk."""
    heed_ctrl_c()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


@pytest.mark.slow
@pytest.mark.parametrize("case", COMMANDS)
def test_a_disk_that_is_full_is_named_with_the_file_and_what_to_do(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python would leave modules cut off in its caches, and every later process would fail.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    bench = Bench(tmp_path)
    data = write_collection(tmp_path / "tiny")
    other = write_collection(tmp_path / "other")
    assert bench("run", data, other, "--model", "bm25").code == 0
    places = {"data": data, "new": tmp_path / "new", "old": bench.out}
    words = [word.format(**places) for word in COMMANDS[case]]
    caches = ["--cache-dir", bench.cache] if case.startswith("check") else []
    done = finish(bench.start(*words, *caches, preexec_fn=partial(limited, 40)))
    assert done.code == (4 if case == "check" else 2), done.stderr  # 4: a collection is MISSING
    assert "Traceback" not in done.stderr
    assert re.search(f"(error|warning|evaluated): .*{tmp_path}/.*: File too large", done.stderr)
    assert "\n  Free some space" in done.stderr
