"""``cache``: what is stored by model, whether it is whole, and its removal."""

import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from bench.cli.commands.data import cache
from bench.store.store import VectorStore
from tests.support.collections import options
from tests.support.stores import DIM, RECIPE, CountingEncoder, corpus_of, encode, numbered

DAY_S = 86_400
ROOT = Path(__file__).resolve().parents[3]
OTHER = msgspec.structs.replace(RECIPE, model="halves", store_dtype="float16")
FINGERPRINT = RECIPE.fingerprint[:32]


@pytest.fixture
def folder(tmp_path):
    """Vectors of two models, and a folder of an older layout."""
    vectors = tmp_path / "cache" / "vectors"
    corpus = corpus_of(numbered(10), tmp_path / "corpus")
    for recipe in (RECIPE, OTHER):
        encode(VectorStore(vectors), corpus, CountingEncoder(recipe))
    (vectors / "0123456789abcdef").mkdir()
    (vectors / "0123456789abcdef" / "old.f32").write_bytes(b"x" * 100)
    return vectors


def run(folder: Path, **changes) -> int:
    return cache(*options("cache", **{"json": True, "cache_dir": folder.parent, **changes}))


def folders(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_each_model_is_a_row_with_its_bytes(folder, capsys):
    assert run(folder) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)["stored"]}
    assert rows.keys() == {"words", "halves", "(keys of corpora)", "unknown"}
    assert rows["words"]["fingerprint"] == FINGERPRINT
    assert rows["words"]["bytes"] == size_of(folder / FINGERPRINT)
    assert rows["words"]["bytes"] - rows["halves"]["bytes"] > 10 * DIM
    assert rows["halves"]["dtype"] == "float16"
    assert rows["unknown"]["bytes"] == 100


def test_a_cache_without_vectors_is_not_an_error(tmp_path, capsys):
    assert run(tmp_path / "vectors", json=False) == 0
    assert "no vectors in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "gone"),
    [
        (["words"], {FINGERPRINT}),
        ([FINGERPRINT[:6], "halves"], {FINGERPRINT, OTHER.fingerprint[:32]}),
        (["unknown"], {"0123456789abcdef"}),
        (["keys"], {"keys"}),
    ],
)
def test_prune_removes_only_what_is_named(names, gone, folder, capsys):
    before = folders(folder)
    assert run(folder, prune=names) == 0
    assert before - folders(folder) == gone
    pruned = json.loads(capsys.readouterr().out)["pruned"]
    assert {row["fingerprint"] for row in pruned} == gone


def test_only_what_was_not_used_for_so_long_is_removed(folder):
    ago = time.time() - 40 * DAY_S
    os.utime(folder / FINGERPRINT / "recipe.json", (ago, ago))
    before = folders(folder)
    run(folder, older_than=41)
    assert folders(folder) == before
    run(folder, older_than=39, prune=["halves"])
    assert folders(folder) == before
    run(folder, older_than=39)
    assert before - folders(folder) == {FINGERPRINT}
