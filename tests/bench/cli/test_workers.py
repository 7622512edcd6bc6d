"""`run --workers` and `work`: several processes, the same results."""

import signal
import sys

import pytest

from bench.result_store.result import RESULT_FILE, load
from bench.store import shards
from bench.store.shards import SHARD_ROWS
from tests.bench.runner.test_workers import ENCODER, SLOW
from tests.support.collections import Bench, finish, write_collection
from tests.support.engines import SHARDS, files_of, several_shards
from tests.support.processes import wait_until


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return several_shards(tmp_path_factory.mktemp("collection") / "words")


def result_of(bench, model):
    return load(bench.results("words", model) / RESULT_FILE).record


def shards_of(bench):
    return {path.stem: path for path in (bench.cache / "vectors").glob("*/*.f32")}


@pytest.mark.slow
def test_workers_give_the_ranking_and_the_vectors_of_one_process(collection, tmp_path):
    alone, shared = Bench(tmp_path / "alone"), Bench(tmp_path / "shared")
    words = ("run", collection, "--model", "hashing", "--device", "cpu")
    assert alone(*words).code == 0
    done = shared(*words, "--workers", 2)
    assert done.code == 0, done.stderr
    one, two = result_of(alone, "hashing"), result_of(shared, "hashing")
    assert one.measures == two.measures
    assert one.run_sha256 == two.run_sha256
    shards = shards_of(alone).keys()
    assert files_of(shards, alone.cache / "vectors") == files_of(shards, shared.cache / "vectors")
    assert "words: hashing encodes: 100%" in done.stderr


def test_models_that_workers_cannot_encode_are_encoded_in_this_process(tmp_path):
    bench = Bench(tmp_path)
    data = write_collection(tmp_path / "tiny")
    done = bench("run", data, "--model", "bm25", "hashing", "--limit", 2, "--workers", 1)
    assert done.code == 0, done.stderr
    assert done.stdout.count("| hashing ") == done.stdout.count("| bm25 ") == 1


def test_ray_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    bench, data = Bench(tmp_path), write_collection(tmp_path / "tiny")
    done = bench("run", data, "--model", "hashing", "--engine", "ray")
    assert done.code == 2
    assert "error: --engine ray needs Ray" in done.stderr
    assert done.stderr.endswith("Run `pip install 'retrieval-bench[ray]'`.\n")


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """An encoder that imports no library, and whose file sets the size of shards."""
    monkeypatch.setattr(shards, "HALF_SHARD_ROWS", SHARD_ROWS)
    monkeypatch.setenv(*SLOW)
    (tmp_path / "slow.py").write_text(ENCODER)
    return f"{tmp_path / 'slow.py'}:encode"


@pytest.mark.slow
def test_workers_join_and_leave_and_nothing_is_encoded_twice_or_lost(bench, collection, slow):
    use = ("--model", slow, "--trust-code")
    words = ("work", collection, *use, "--json")
    leaving = bench.start(*words)
    wait_until(lambda: list(bench.cache.glob(f"vectors/*/{'?' * 32}.lock")), leaving)
    joining = bench.start(*words)
    leaving.send_signal(signal.SIGINT)
    left, stayed = finish(leaving), finish(joining)
    assert (left.code, stayed.code) == (130, 0)
    assert "to continue, repeat the command" in left.stderr
    assert len(shards_of(bench)) == SHARDS
    late = bench(*words)
    assert late.code == 0
    assert '"encoded": 0' in late.stdout
    assert (
        "0 texts encoded by this worker; the vectors of all 5,120 documents are stored"
        in late.stderr
    )
    assert bench("run", collection, *use).code == 0
    assert result_of(bench, "encode").timings.encoded_documents == 0
