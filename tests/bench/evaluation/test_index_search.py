"""Indexes as products: built once, then loaded; exported, and searched without this program."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from bench.evaluation import index_search
from bench.result_store.result import load
from bench.store.indexes import INDEX_FILE, INDEXES, MANIFEST_FILE, IndexFolder
from retrievers.encoders.transformer import open_encoder
from retrievers.index.faiss_index import FaissIndex
from retrievers.models.resolve import resolve_model
from tests.support.collections import NUMBERED, Bench, write_collection

SPEC = "IVF4,Flat?nprobe=2"
TEXTS, QUERIES, QRELS = NUMBERED
COMMON = ("--depth", 20, "--measure", "R@10")


@pytest.fixture
def folder(tmp_path):
    return write_collection(tmp_path / "words", TEXTS, QUERIES, QRELS)


@pytest.fixture
def built(monkeypatch):
    """Counts how often vectors are added to an index."""
    calls: list[int] = []
    add = FaissIndex.add

    def counting(self: FaissIndex, tile: np.ndarray) -> None:
        calls.append(len(tile))
        add(self, tile)

    monkeypatch.setattr(FaissIndex, "add", counting)
    return calls


@pytest.fixture
def searched_exactly(monkeypatch):
    """Numbers of queries that were searched exactly."""
    calls: list[int] = []
    plain = index_search.ExactSearch.__call__

    def counting(self, vectors, queries, depth):
        calls.append(len(queries))
        return plain(self, vectors, queries, depth)

    monkeypatch.setattr(index_search.ExactSearch, "__call__", counting)
    return calls


def run(bench: Bench, folder: Path, *options: object):
    """The result of a new evaluation, which is the newest one."""
    common = () if "--depth" in options else COMMON
    done = bench("run", folder, "--model", "hashing", "--recompute", *common, *options)
    assert done.code == 0, done.stderr
    results = (bench.out / "words" / "hashing").iterdir()
    return load(max(results, key=lambda path: path.stat().st_mtime_ns))


def export(bench: Bench, folder: Path, out: Path, *options: object):
    typed = ("--model", "hashing", "--index", SPEC, "--out", out, *options)
    return bench("index", folder, *typed, "--cache-dir", bench.cache)


def only_index(bench: Bench) -> IndexFolder:
    (manifest,) = (bench.cache / "vectors").glob(f"*/{INDEXES}/*/{MANIFEST_FILE}")
    return IndexFolder(manifest.parent)


def rankings(stored) -> list:
    return [(query, docs, scores.tolist()) for query, docs, scores in stored.run.rankings()]


def test_an_index_is_built_once_and_gives_the_same_when_it_is_loaded(
    bench, folder, built, searched_exactly
):
    first = run(bench, folder, "--index", SPEC)
    assert (built, searched_exactly) == ([300], [20])
    second = run(bench, folder, "--index", SPEC)
    assert (built, searched_exactly) == ([300], [20]), "loaded, and its recall was kept"
    assert rankings(first) == rankings(second)
    assert 0 < first.record.index_recall["recall@10"] < 1
    assert first.record.index_recall == second.record.index_recall
    manifest = only_index(bench).manifest()
    assert (manifest.spec, manifest.documents, manifest.collection) == (SPEC, 300, "words")
    assert manifest.bytes == (only_index(bench).folder / INDEX_FILE).stat().st_size
    assert manifest.build_s > 0


def test_an_index_in_a_read_only_store_is_loaded(bench, folder, built, monkeypatch):
    first = run(bench, folder, "--index", SPEC)
    monkeypatch.setattr(index_search.FileLock, "acquire", Mock(side_effect=PermissionError(13, "")))
    assert rankings(run(bench, folder, "--index", SPEC)) == rankings(first)
    assert built == [300]


@pytest.mark.parametrize("exclude_self", [False, True])
def test_recall_is_that_of_brute_force_without_the_querys_own_document(
    bench, tmp_path, exclude_self
):
    texts = {**TEXTS, "q1": ("", QUERIES["q1"])}
    metadata = f"exclude_self = {str(exclude_self).lower()}\n"
    folder = write_collection(tmp_path / "words", texts, QUERIES, QRELS, metadata)
    result = run(bench, folder, "--index", SPEC).record
    found = rankings(load(bench.results("words", "hashing")))
    encoder = open_encoder(resolve_model("hashing"))
    vectors = encoder.encode_documents(*zip(*texts.values(), strict=True)).astype(np.float64)
    shares = []
    for query, docs, _ in found:
        scores = (vectors @ encoder.encode_queries([QUERIES[query]])[0]).astype(np.float32)
        ranked = sorted(zip(scores, texts, strict=True), key=lambda one: (one[0], one[1].encode()))
        exact = [name for _, name in ranked[::-1] if not (exclude_self and name == query)]
        shares.append(len({*exact[:10]} & {*docs[:10]}) / 10)
        assert ("q1" in docs and query == "q1") <= (not exclude_self)
    assert result.index_recall["recall@10"] == pytest.approx(np.mean(shares), abs=1e-12)


def test_another_spec_other_vectors_or_another_corpus_are_another_index(bench, folder, built):
    run(bench, folder, "--index", SPEC)
    for options in (("--index", "IVF4,Flat?nprobe=3"), ("--set", "store_dtype=float16")):
        run(bench, folder, "--index", SPEC, *options)
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "title": "", "text": "w1 w2"}\n')
    run(bench, folder, "--index", SPEC)
    assert built == [300, 300, 300, 301]


@pytest.mark.parametrize("name", [INDEX_FILE, MANIFEST_FILE])
def test_a_damaged_index_is_named_and_built_again(bench, folder, built, caplog, name):
    first = run(bench, folder, "--index", SPEC)
    path = only_index(bench).folder / name
    for how in ("a bit", "cut", "gone"):
        content = path.read_bytes()
        middle = content.index(b'sha256": "') + 12 if name == MANIFEST_FILE else len(content) // 2
        if how == "gone":
            path.unlink()
        else:
            rest = bytes([content[middle] ^ 1]) + content[middle + 1 :] if how == "a bit" else b""
            path.write_bytes(content[:middle] + rest)
        caplog.clear()
        again = run(bench, folder, "--index", SPEC)
        assert caplog.text.count("rebuilding it") == 1
        assert rankings(again) == rankings(first)
    assert built == [300] * 4


@pytest.mark.parametrize(
    ("index", "warns"),
    [("HNSW8", True), ("HNSW8?efSearch=300", False), (SPEC, True), ("IVF4,Flat?nprobe=4", False)],
)
def test_an_index_that_returns_fewer_documents_than_the_depth_warns(
    bench, folder, caplog, index, warns
):
    stored = run(bench, folder, "--index", index, "--depth", 300)
    found = [len(docs) for _, docs, _ in stored.run.rankings()]
    assert (min(found) < 300) == warns
    short = sum(count < 300 for count in found)
    expected = f"fewer than 300 documents for {short} of 20 queries, at least {min(found)}"
    assert (expected in caplog.text) == warns


def test_recall_may_be_measured_on_a_sample_or_skipped(bench, folder, searched_exactly):
    some = run(bench, folder, "--index", SPEC, "--recall-queries", 5).record
    none = run(bench, folder, "--index", SPEC, "--recall-queries", 0).record
    assert searched_exactly == [5]
    assert some.recall_queries == 5
    assert 0 < some.index_recall["recall@10"] <= 1
    assert (none.recall_queries, none.index_recall) == (0, {})
    again = bench("run", folder, "--model", "hashing", *COMMON, "--index", SPEC)
    assert "saved to" in again.stderr, "recall of all queries is another result"


def alone(folder: Path) -> dict[str, str]:
    """An environment in which Python finds FAISS and NumPy, and none of this program."""
    folder.mkdir()
    for package in ("faiss", "numpy", "packaging"):  # FAISS itself needs the last
        place = Path(next(iter(find_spec(package).submodule_search_locations)))
        for path in (place, *place.parent.glob(f"{package}*.libs")):
            (folder / path.name).symlink_to(path)
    return {**os.environ, "PYTHONPATH": str(folder)}


ALONE = """
import runpy, sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
for name in ("bench", "retrievers", "foundation", "pyarrow", "msgspec", "torch"):
    try: __import__(name)
    except ImportError: continue
    sys.exit(f"{name} can be imported")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_an_exported_index_is_searched_by_faiss_and_numpy_alone(bench, folder, tmp_path):
    found = rankings(run(bench, folder, "--index", SPEC))
    done = export(bench, folder, tmp_path / "deployed")
    assert done.code == 0, done.stderr
    assert {path.name for path in (tmp_path / "deployed").iterdir()} == {
        "index.faiss",
        "ids.json",
        "manifest.json",
        "search.py",
    }
    vectors = open_encoder(resolve_model("hashing")).encode_queries(list(QUERIES.values()))
    np.save(tmp_path / "queries.npy", vectors)
    command = [sys.executable, "-S", "-c", ALONE, str(tmp_path / "deployed" / "search.py")]
    searched = subprocess.run(
        [*command, str(tmp_path / "queries.npy"), "20"],
        cwd=tmp_path,
        env=alone(tmp_path / "only"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert searched.returncode == 0, searched.stderr
    rows = [json.loads(line) for line in searched.stdout.splitlines()]
    for number, (_, docs, scores) in enumerate(found):
        own = [(score, name) for query, name, score in rows if query == number]
        own.sort(key=lambda one: (np.float32(one[0]), one[1].encode()), reverse=True)
        assert [name for _, name in own] == docs
        assert [np.float32(score) for score, _ in own] == scores


def test_an_exported_index_is_evaluated_and_its_recall_is_known(bench, folder, tmp_path, built):
    first = run(bench, folder, "--index", SPEC)
    assert export(bench, folder, tmp_path / "deployed").code == 0
    bare = Bench(tmp_path / "another machine")
    again = run(bare, folder, "--index", tmp_path / "deployed")
    assert built == [300]
    assert again.record.timings.encoded_documents == 0
    assert rankings(again) == rankings(first)
    assert again.record.index_recall == first.record.index_recall
    assert again.record.index.startswith(f"{SPEC} (file ")
    run(bench, folder, "--index", tmp_path / "deployed")
    assert len(list(first.folder.parent.iterdir())) == 2, "another result"


def test_an_exported_index_whose_recall_is_not_known_is_compared_unless_told_not_to(
    bench, folder, tmp_path, searched_exactly
):
    assert export(bench, folder, tmp_path / "deployed").code == 0
    bare = Bench(tmp_path / "another machine")
    quick = run(bare, folder, "--index", tmp_path / "deployed", "--recall-queries", 0).record
    assert (quick.timings.encoded_documents, quick.index_recall) == (0, {})
    whole = run(bare, folder, "--index", tmp_path / "deployed").record
    assert whole.timings.encoded_documents == 300
    assert searched_exactly == [20]
    assert whole.index_recall == run(bench, folder, "--index", SPEC).record.index_recall


def test_what_is_not_an_index_of_the_model_and_the_corpus_is_refused(bench, folder, tmp_path):
    deployed, other = tmp_path / "deployed", write_collection(tmp_path / "tiny")
    assert export(bench, folder, deployed).code == 0

    def refused(collection: Path, index: Path, message: str, *options: object) -> None:
        model = () if "--model" in options else ("--model", "hashing")
        done = bench("run", collection, *model, "--index", index, *options)
        assert (done.code, message in done.stderr) == (2, True), done.stderr

    refused(other, deployed, "indexes 300 documents of words")
    vectors = "its vectors differ from those of hashing with these settings"
    refused(folder, deployed, vectors, "--set", "store_dtype=float16")
    refused(folder, deployed, "--index cannot be set for bm25", "--model", "bm25")
    refused(folder, tmp_path, "is not an index")
    path = deployed / INDEX_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    refused(folder, deployed, "is damaged")


def test_an_index_that_cannot_be_stored_is_searched_anyway(
    bench, folder, tmp_path, monkeypatch, caplog
):
    whole = run(Bench(tmp_path / "other"), folder, "--index", SPEC)

    def no_space(*_: object) -> None:
        raise RuntimeError("Error in write_index at io.cpp:1: No space left on device")

    monkeypatch.setattr("faiss.write_index", no_space)
    stored = run(bench, folder, "--index", SPEC)
    assert "is not stored" in caplog.text
    assert "No space left" in caplog.text
    assert rankings(stored) == rankings(whole)
    assert stored.record.index_recall == whole.record.index_recall
    assert not list(bench.cache.rglob(INDEX_FILE))
    refused = export(bench, folder, tmp_path / "deployed")
    assert refused.code == 2
    assert not (tmp_path / "deployed").exists()
