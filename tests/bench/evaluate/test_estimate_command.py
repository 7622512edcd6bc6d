"""``estimate`` from the command line: what it counts, and that it downloads nothing."""

import json

import pytest

from tests.support.collections import DOCUMENTS, Bench, write_collection


def estimate(bench: Bench, *arguments: object) -> list[dict]:
    done = bench("estimate", *arguments, "--probe-seconds", 1, "--json", "--quiet")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_makes_the_next_estimate_of_encoding_zero(bench, tmp_path):
    folder = write_collection(tmp_path / "tiny")
    (before,) = estimate(bench, folder, "--model", "hashing")
    assert before["documents"] == len(DOCUMENTS)
    assert before["to_encode"] == len(set(DOCUMENTS.values()))
    assert before["tokens"] > 0
    assert before["disk_bytes"] > 0
    assert not before["upper_bound"]
    assert bench("run", folder, "--model", "hashing").code == 0
    (after,) = estimate(bench, folder, "--model", "hashing")
    assert after["to_encode"] == after["tokens"] == after["encode_s"] == after["disk_bytes"] == 0
    assert after["memory_bytes"] > 10_000_000


@pytest.fixture
def bench_with_sample(bench, embedded):
    """Its cache has the collection from which absent ones are estimated."""
    bench.cache.mkdir()
    (bench.cache / "stdlib-code").symlink_to(embedded / "stdlib-code")
    return bench


def test_an_absent_collection_is_an_upper_bound_and_is_not_downloaded(bench_with_sample):
    bench = bench_with_sample
    (row,) = estimate(bench, "beir/quora", "--model", "hashing")
    assert row["upper_bound"]
    assert row["documents"] == 522_931
    assert not (bench.cache / "archives").exists()


def test_a_suite_is_estimated_collection_by_collection_and_summed(bench_with_sample):
    done = bench_with_sample(
        "estimate", "msmarco", "--model", "hashing", "--probe-seconds", 1, "--quiet"
    )
    assert done.code == 0, done.stderr
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]] == [
        "msmarco/dev",
        "msmarco/dl19",
        "msmarco/dl20",
        "together",
    ]
    assert "≤" in done.stdout


def test_bm25_has_nothing_to_estimate_and_that_is_said(bench):
    done = bench("estimate", "beir/quora", "--model", "bm25", "--quiet")
    assert (done.code, done.stdout) == (0, "")
    assert "makes no vectors" in done.stderr


def test_an_unknown_collection_is_bad_input(bench):
    done = bench("estimate", "beir/quoro", "--model", "hashing", "--quiet")
    assert done.code == 2
    assert "beir/quora" in done.stderr
