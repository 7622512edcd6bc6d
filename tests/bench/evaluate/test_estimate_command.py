"""``estimate`` from the command line: what it counts, and that it downloads nothing."""

import json

import pytest

from tests.support.collections import DOCUMENTS, Bench, write_collection


def estimate(bench: Bench, *arguments: object) -> list[dict]:
    done = bench("estimate", *arguments, "--probe-seconds", 1, "--json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_makes_the_next_estimate_of_encoding_zero(bench, tmp_path):
    folder = write_collection(tmp_path / "tiny")
    (before,) = estimate(bench, folder, "--model", "hashing")
    assert before["documents"] == len(DOCUMENTS)
    assert before["to_encode"] == len(set(DOCUMENTS.values()))
    assert before["tokens"] > 0
    assert before["disk_bytes"] > 0
    assert before["sure"] == "counted"
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


def test_an_absent_collection_is_counted_by_published_sizes_and_not_downloaded(bench_with_sample):
    bench = bench_with_sample
    row, other = estimate(bench, "beir/quora", "msmarco-title/dev", "--model", "hashing")
    assert (row["sure"], other["sure"]) == ("about", "at most")
    assert row["documents"] == 522_931
    assert row["tokens"] == round(522_931 * 11.44 * 1.5)
    assert not (bench.cache / "archives").exists()


def test_collections_of_the_same_documents_are_encoded_once(bench_with_sample, tmp_path):
    bench = bench_with_sample
    first, *others, wiki = estimate(bench, "msmarco", "dpr/nq", "--model", "hashing")
    assert first["to_encode"] == first["documents"] == 8_841_823
    assert [row["to_encode"] for row in others] == [0, 0]
    assert [row["disk_bytes"] for row in others] == [0, 0]
    assert all(row["search_s"] > 0 for row in others)
    assert wiki["to_encode"] == wiki["documents"]
    folders = [write_collection(tmp_path / name, facts=f'name = "{name}"\n') for name in ("a", "b")]
    one, same = estimate(bench, *folders, "--model", "hashing")
    assert (one["to_encode"], same["to_encode"]) == (len(set(DOCUMENTS.values())), 0)


def test_the_speed_of_another_machine_is_taken_as_it_is_given(bench):
    (row,) = estimate(bench, "msmarco/dev", "--model", "hashing", "--tokens-per-second", 2_000_000)
    assert row["encode_s"] == row["tokens"] / 2_000_000
    assert not (bench.cache / "corpora").exists()  # no encoder was tried on texts


def test_a_suite_is_estimated_collection_by_collection_and_summed(bench_with_sample):
    done = bench_with_sample("estimate", "msmarco", "--model", "hashing", "--probe-seconds", 1)
    assert done.code == 0, done.stderr
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]] == [
        "msmarco/dev",
        "msmarco/dl19",
        "msmarco/dl20",
        "together",
    ]
    assert "≈" in done.stdout


def test_bm25_has_nothing_to_estimate_and_that_is_said(bench):
    done = bench("estimate", "beir/quora", "--model", "bm25")
    assert (done.code, done.stdout) == (0, "")
    assert "makes no vectors; its index of beir/quora takes about " in done.stderr


def test_an_unknown_collection_is_bad_input(bench):
    done = bench("estimate", "beir/quoro", "--model", "hashing")
    assert done.code == 2
    assert "beir/quora" in done.stderr
