"""Latency, indexes and growth of search, on vectors whose neighbours are known."""

import numpy as np
import pytest

from bench.speed.search import (
    compare_indexes,
    latencies,
    search_growth,
    specs_for,
    stand_ins,
)
from retrievers.encoders.opening import open_encoder
from retrievers.models.model import resolve_model


@pytest.fixture(scope="module")
def documents():
    vectors = np.random.default_rng(0).standard_normal((1200, 32)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def points(documents):
    return compare_indexes(documents, documents[:50], 2, "cpu", "random")


def test_exact_indexes_find_every_neighbour(points):
    found = {point.index: point.recall for point in points}
    assert found["flat"] == found["Flat"] == 1.0


def test_recall_is_that_of_brute_force(documents, points):
    queries = documents[:50]
    (point,) = [one for one in points if one.index.endswith("Flat?nprobe=1")]
    assert 0.1 < point.recall < 1.0  # one list holds the query itself, and not all its neighbours
    truth = np.argsort(-(queries @ documents.T), axis=1)[:, :10]
    assert point.k == truth.shape[1]


def test_searching_more_of_an_index_finds_no_less(points):
    for kind in ("HNSW32", "IVF"):
        recalls = [
            one.recall for one in points if one.index.startswith(kind) and "PQ" not in one.index
        ]
        assert recalls == sorted(recalls)


def test_sizes_are_those_of_what_is_kept(documents, points):
    size = {point.index.partition("?")[0]: point.index_bytes for point in points}
    assert size["flat"] == documents.nbytes
    assert size["HNSW32"] > documents.nbytes
    compressed = [bytes_ for name, bytes_ in size.items() if "PQ" in name]
    assert compressed
    assert all(bytes_ < documents.nbytes / 2 for bytes_ in compressed)


def test_every_point_has_its_repeats(points):
    assert all(len(point.queries_per_s.samples) == 2 for point in points)
    assert all(point.build_s > 0 for point in points if point.index != "flat")


@pytest.mark.parametrize(("rows", "dim"), [(10, 8), (300, 7), (50_000, 768), (10**6, 384)])
def test_index_specs_fit_the_corpus(rows, dim):
    specs = specs_for(rows, dim)
    assert not specs[0].needs_faiss
    for spec in specs:
        lists = spec.factory.partition(",")[0].removeprefix("IVF")
        assert not lists.isdecimal() or 2 <= int(lists) <= max(2, rows / 39)
        codes = spec.factory.partition("PQ")[2]
        assert not codes or dim % int(codes) == 0


def test_a_tiny_corpus_has_no_codebooks():
    assert not any("PQ" in spec.factory for spec in specs_for(200, 32))


def test_stand_ins_are_unit_vectors_near_their_parents(documents):
    made = stand_ins(documents[:5], 1000)
    assert (made.shape, made.dtype, made.flags.c_contiguous) == ((1000, 32), np.float32, True)
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, rtol=1e-5)
    assert ((made @ documents[:5].T).max(axis=1) > 0.5).mean() > 0.9
    np.testing.assert_array_equal(made, stand_ins(documents[:5], 1000))


def test_latency_is_the_sum_of_encoding_and_search_query_by_query():
    encoder = open_encoder(resolve_model("hashing"))
    vectors = encoder.encode_documents(["", ""], ["a b", "c d"])
    encode, search, both = latencies(encoder, ["a", "c", "b"], vectors, "cpu")
    assert [one.what for one in (encode, search, both)] == ["encode", "search", "both"]
    np.testing.assert_allclose(
        np.add(encode.samples_ms, search.samples_ms), both.samples_ms, rtol=1e-12
    )
    assert both.p50_ms == pytest.approx(np.percentile(both.samples_ms, 50))
    assert both.p95_ms == pytest.approx(np.percentile(both.samples_ms, 95))
    assert (both.rows, both.k, len(both.samples_ms)) == (2, 2, 3)


def test_search_grows_over_rows_and_over_depth(documents):
    by_rows, by_depth = search_growth(documents, documents[:5], 1, "cpu")
    assert by_rows.sizes == (75, 150, 300, 600, 1200)
    assert by_depth.sizes == (1, 10, 100, 1000)
    assert "k = 75" in by_rows.at
    assert "1,200 documents" in by_depth.at
