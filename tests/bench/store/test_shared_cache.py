"""``--cache-dir`` with a URL: several machines share vectors, and keep all else to themselves."""

import gc
import json
import sys

import pytest
from fsspec.registry import _registry

import bench as api
from bench.cache_folders import cache_folder, shared_vectors
from bench.exit_codes import ExitCode
from foundation.object_store import RemotePath
from tests.support import s3
from tests.support.collections import Finished, files_below, write_collection


@pytest.fixture
def url(server, monkeypatch, tmp_path):
    s3.allow(monkeypatch, server.address)
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def on_machine(bench, url, monkeypatch, tmp_path):
    """Run a command as on a machine, by its name, whose cache is its own."""

    def command(name: str, *words: object) -> Finished:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return bench(*words, "--cache-dir", url)

    return command


@pytest.fixture
def run(on_machine, tmp_path):
    """Run the hashing model on a small collection; the result as it is kept."""
    folder = write_collection(tmp_path / "tiny")

    def on(name: str) -> dict[str, object]:
        out = tmp_path / f"results of {name}"
        done = on_machine(name, "run", folder, "--model", "hashing", "--out", out)
        assert done.code == 0, done.stderr
        (file,) = out.rglob("result.json")
        kept: dict[str, object] = json.loads(file.read_text())
        return kept

    return on


def test_two_machines_have_the_same_scores_and_encode_once(run, server, tmp_path):
    first, second = run("first"), run("second")
    assert first["measures"] == second["measures"]
    assert first["timings"]["encoded_documents"] > 0
    assert second["timings"]["encoded_documents"] == 0
    shared = files_below(server.folder / "bucket" / tmp_path.name)
    assert {path.suffix for path in shared} == {".f32", ".keys", ".json"}
    local = {
        path.relative_to(tmp_path / "first").parts[1] for path in files_below(tmp_path / "first")
    }
    assert local >= {"corpora", "shared"}
    assert "vectors" not in local


def test_workers_anywhere_fill_the_same_url(run, on_machine, url, bench, monkeypatch, tmp_path):
    folder = tmp_path / "tiny"
    alone = on_machine("first", "work", folder, "--model", "hashing", "--json")
    assert alone.code == 0, alone.stderr
    assert json.loads(alone.stdout)[0]["encoded"] > 0
    assert run("second")["timings"]["encoded_documents"] == 0
    again = on_machine("third", "work", folder, "--model", "hashing", "--json")
    assert json.loads(again.stdout)[0]["encoded"] == 0


def test_the_copies_are_shown_pruned_and_made_again(run, on_machine, url):
    run("first")
    shown = on_machine("first", "cache", "--verify")
    assert shown.code == 0, shown.stderr
    assert "hashing" in shown.stdout
    assert f"copies of what machines share in {url}/vectors" in shown.stderr
    gc.collect()  # the store of the run, which keeps its folders from being removed
    pruned = on_machine("first", "cache", "--prune", "hashing")
    assert pruned.code == 0, pruned.stderr
    assert "hashing" not in on_machine("first", "cache").stdout
    assert run("second")["timings"]["encoded_documents"] == 0


def test_the_url_may_be_that_of_the_environment(url, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("BENCH_CACHE", url)
    assert shared_vectors() == RemotePath(f"{url}/vectors")
    assert cache_folder() == tmp_path / "retrieval-bench"
    assert shared_vectors("elsewhere") is None
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "own"))
    assert (cache_folder(url), shared_vectors()) == (tmp_path / "own", None)


def test_the_python_api_takes_a_url(url, monkeypatch, tmp_path):
    folder = str(write_collection(tmp_path / "tiny"))
    scores = []
    for name in ("first", "second"):
        monkeypatch.setenv("BENCH_CACHE", str(tmp_path / name))
        scores.append(api.evaluate("hashing", folder, cache_dir=url).measures)
        assert (tmp_path / name / "shared").is_dir()
    assert scores[0] == scores[1]


def refusal(on_machine, tmp_path) -> str:
    folder = write_collection(tmp_path / "tiny")
    done = on_machine("first", "run", folder, "--model", "hashing")
    assert done.code == ExitCode.BAD_INPUT
    assert not (tmp_path / "out").exists()
    return done.stderr


def test_a_missing_bucket_is_named_before_any_work(on_machine, server, monkeypatch, tmp_path):
    (server.folder / "bucket").rename(server.folder / "other")
    try:
        assert "there is no bucket bucket" in refusal(on_machine, tmp_path)
    finally:
        (server.folder / "other").rename(server.folder / "bucket")


def test_a_missing_package_names_the_extra(on_machine, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.delitem(_registry, "s3", raising=False)
    assert "pip install 'retrieval-bench[s3]'" in refusal(on_machine, tmp_path)


def test_missing_credentials_are_one_clear_error(on_machine, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    assert "credentials: AWS_ACCESS_KEY_ID" in refusal(on_machine, tmp_path)
