"""One flipped bit in a cached corpus never changes a score, and never crashes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from datasets_cfg import corpus as corpus_writer
from tests.support.bit_flips import evaluate
from tests.support.collections import ROOT, Bench, write_collection

FLIPS = 15  # of each file


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Two hundred documents, so that texts, ids and Arrow's own bytes are all likely to be hit."""
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(300)]
    documents = {
        f"d{row}": (" ".join(rng.choice(words, 2)), " ".join(rng.choice(words, 12)))
        for row in range(200)
    }
    queries = {f"q{row}": " ".join(rng.choice(words, 4)) for row in range(20)}
    qrels = {(f"q{row}", f"d{rng.integers(200)}"): 1 for row in range(20) for _ in range(3)}
    return write_collection(tmp_path / "own", documents, queries, qrels)


@pytest.mark.slow
@pytest.mark.parametrize("checked_at_open", [1 << 30, 0], ids=["at open", "in the background"])
def test_a_flipped_bit_of_a_cached_corpus_is_rebuilt_or_refused(
    checked_at_open: int, bench: Bench, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_writer, "BATCH_DOCUMENTS", 70)  # several blocks
    code, expected, _ = evaluate(collection, bench.cache)
    assert code == 0
    seed = 1 + checked_at_open % 2
    words = [collection, bench.cache, FLIPS, seed, checked_at_open]
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.bit_flips", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, (lines[-1], child.stderr)
    assert len(lines) == 2 * 4 * FLIPS
    for place, done in zip(lines[::2], lines[1::2], strict=True):
        assert done["codes"] in ([0], [2, 0]), (place, done)
        assert done["scores"][-1] == expected, (place, done)
        assert checked_at_open == 0 or done["codes"] == [0], (place, done)
        if place["place"][0] != "checksums.json":
            assert "cannot be used: " in done["said"][0], (place, done)


def test_an_undetected_change_of_the_source_gives_no_result_from_the_old_corpus(
    bench: Bench, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets_cfg.corpus.CHECKED_AT_OPEN", 0)
    _, old, _ = evaluate(collection, bench.cache)
    source = collection / "corpus.jsonl"
    status = source.stat()
    source.write_text(source.read_text().replace("word7 ", "word8 "))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    code, _, said = evaluate(collection, bench.cache)
    assert (code, list((tmp_path / "out").rglob("result.json"))) == (2, [])
    assert "corpus.jsonl has changed since the corpus was built from it" in said
    assert "epeat the command to rebuild the corpus" in said
    code, new, _ = evaluate(collection, bench.cache)
    assert code == 0
    assert new == evaluate(collection, tmp_path / "fresh")[1] != old
