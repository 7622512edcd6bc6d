"""A disk that is full in the middle of a command: the file is named, and what to do."""

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.collections import Bench, write_collection

COMMANDS = {
    "run": ["run", "{data}", "--model", "hashing", "bm25", "--results", "{new}"],
    "check": ["check", "hashing", "--baseline", "bm25", "--on", "{data}", "--results", "{old}"],
    "export": ["export", "bm25", "--results", "{old}", "--out", "{new}"],
}


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Let no file grow beyond this: the system says what it says of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("case", COMMANDS)
def test_a_disk_that_is_full_is_named_with_the_file_and_what_to_do(
    bench: Bench, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python would leave modules cut off in its caches, and every later process would fail.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    data = write_collection(tmp_path / "tiny")
    other = write_collection(tmp_path / "other")
    assert bench("run", data, other, "--model", "bm25").code == 0
    places = {"data": data, "new": tmp_path / "new", "old": bench.out}
    words = [word.format(**places) for word in COMMANDS[case]]
    words += ["--cache-dir", str(bench.cache)] if case == "check" else []
    with full_disk(40):
        done = bench(*words)
    assert done.code == (4 if case == "check" else 2), done.stderr  # 4: a collection is MISSING
    assert "Traceback" not in done.stderr
    assert re.search(f"(error|warning|evaluated): .*{tmp_path}/.*: File too large", done.stderr)
    assert "\n  Free some space" in done.stderr
