"""Every kind of index against NumPy: ids and scores, odd sizes, save and load.

An exact kind must equal brute force. An approximate kind must return the true products of what it
stores (its reconstruction, where it has one) and reach a stated recall on clustered vectors.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bench.evaluation.exact import ArrayVectors, exact_search
from retrievers.index.faiss_index import FaissIndex, IndexSpec
from retrievers.index.hits import recall_at_k, sort_canonically
from tests.support.exact_oracle import assert_same

faiss = pytest.importorskip("faiss")
COUNT, DIM, K = 2000, 32, 10


@dataclass(frozen=True)
class Kind:
    """An index and what it must reach; ``exact_scores`` if it keeps vectors as they are.

    The fast suite has one of each kind, ``is_fast``.
    """

    spec: str
    recall_at_10: float
    exact_scores: bool
    on_gpu: bool = False
    device: str = "cpu"
    is_fast: bool = False


KINDS = [
    Kind("Flat", 1.0, True, on_gpu=True, is_fast=True),
    Kind("HNSW32?efSearch=64", 0.99, True, is_fast=True),
    Kind("IVF16,Flat?nprobe=16", 1.0, True, on_gpu=True),
    Kind("IVF16,Flat?nprobe=4", 0.9, True, on_gpu=True, is_fast=True),
    Kind("IVF16,SQfp16?nprobe=16", 0.99, False, on_gpu=True),
    Kind("IVF16,PQ8?nprobe=16", 0.5, False, on_gpu=True),
    Kind("SQfp16", 0.99, False),
    Kind("SQ8", 0.95, False),
    Kind("PQ8", 0.5, False, is_fast=True),
    Kind("IVF16,PQ8,RFlat?nprobe=16&k_factor_rf=8", 0.95, True),
    Kind("RR32,IVF16,PQ8?nprobe=16", 0.5, False, on_gpu=True),
]
without_gpu = pytest.mark.skipif(
    not (hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus()),
    reason="needs a GPU and faiss-gpu",
)
CASES = [
    *(
        pytest.param(kind, id=kind.spec, marks=[] if kind.is_fast else pytest.mark.slow)
        for kind in KINDS
    ),
    *(
        pytest.param(replace(kind, device="cuda"), id=f"cuda {kind.spec}", marks=without_gpu)
        for kind in KINDS
        if kind.on_gpu
    ),
]


@pytest.fixture(scope="module")
def documents() -> np.ndarray:
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((50, DIM)) * 2
    vectors = centres[rng.integers(0, 50, COUNT)] + rng.standard_normal((COUNT, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


@pytest.fixture(scope="module")
def queries(documents: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(2)
    return documents[:40] + 0.1 * rng.standard_normal((40, DIM)).astype(np.float32)


def build(kind: Kind, documents: np.ndarray) -> FaissIndex:
    index = FaissIndex(IndexSpec.parse(kind.spec), documents.shape[1], kind.device)
    if index.needs_training:
        index.train(documents[index.training_rows(len(documents))])
    for start in range(0, len(documents), 700):
        index.add(documents[start : start + 700])
    return index


@pytest.fixture(scope="module", params=CASES)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def index(kind: Kind, documents: np.ndarray) -> FaissIndex:
    return build(kind, documents)


def test_recall_reaches_the_stated_floor(kind, index, documents, queries):
    tie_rank = np.arange(COUNT)
    truth = exact_search(ArrayVectors(documents), queries, K, tie_rank)
    found = sort_canonically(index.search(queries, K), tie_rank, K)
    assert recall_at_k(found, truth, K).mean() >= kind.recall_at_10


def test_scores_are_inner_products_of_distinct_rows_and_fall(kind, index, documents, queries):
    hits = index.search(queries, K)
    products = np.einsum("qd,qkd->qk", queries, documents[hits.rows])
    assert len(np.unique(hits.rows)) > K
    tolerance = 1e-5 if kind.exact_scores else 0.5
    np.testing.assert_allclose(hits.scores, products, atol=tolerance)
    if not kind.exact_scores:
        assert np.corrcoef(hits.scores.ravel(), products.ravel())[0, 1] > 0.5
    assert (np.diff(hits.scores, axis=1) <= 0).all()
    assert all(len(set(rows)) == K for rows in hits.rows.tolist())
    assert (hits.scores.dtype, hits.rows.dtype) == (np.float32, np.int64)
    one = index.search(queries[:1], K)
    assert one.scores.shape == (1, K)
    np.testing.assert_array_equal(one.rows, hits.rows[:1])


def test_depth_beyond_the_corpus_is_unfilled_not_the_last_document(kind, documents, queries):
    few = build(kind, documents[:300])
    hits = few.search(queries[:3], 500)
    assert hits.rows.shape == (3, 500)
    filled = hits.rows >= 0
    assert (filled.sum(axis=1) <= 300).all()
    assert (hits.scores[~filled] == -np.inf).all()
    assert np.isfinite(hits.scores[filled]).all()
    ranked = sort_canonically(few.search(queries[:3], 500), np.arange(300), 500)
    assert (np.diff(ranked.rows >= 0, axis=1).sum(axis=1) <= 1).all()
    np.testing.assert_array_equal((ranked.rows >= 0).sum(axis=1), filled.sum(axis=1))


def test_duplicates_have_equal_scores_and_are_ordered_by_id(kind, documents):
    copies = np.concatenate([documents, documents[5:6], documents[5:6]])
    index = build(kind, copies)
    tie_rank = np.arange(len(copies))
    tie_rank[[5, COUNT]] = tie_rank[[COUNT, 5]]
    found = sort_canonically(index.search(documents[5:6], 200), tie_rank, 200)
    own = np.flatnonzero(np.isin(found.rows[0], [5, COUNT, COUNT + 1]))
    assert len(own) == 3
    if kind.exact_scores and "HNSW" not in kind.spec:
        assert own.tolist() == [0, 1, 2]
    assert np.ptp(found.scores[0, own]) <= 1e-6
    if np.ptp(found.scores[0, own]) == 0:
        assert found.rows[0, own].tolist() == [COUNT + 1, 5, COUNT]


def test_save_and_load_give_identical_hits(kind, index, documents, queries, tmp_path: Path):
    """On another device, sums are in another order, so that the last bits of scores differ."""
    index.save(tmp_path / "some.index")
    expected = index.search(queries, K)
    for device in {kind.device, "cpu"}:
        spec = IndexSpec.parse(kind.spec)
        loaded = FaissIndex.load(tmp_path / "some.index", spec, DIM, device)
        assert len(loaded) == COUNT
        found = loaded.search(queries, K)
        if kind.device == "cpu":
            assert_same(found, expected)
        lengths = np.linalg.norm(queries, axis=1, keepdims=True)  # documents have unit length
        off = 2 * DIM * 2.0**-24 * lengths
        assert (np.abs(found.scores - expected.scores) <= off).all()
        np.testing.assert_array_equal(found.rows, expected.rows)


def test_the_seed_decides_what_is_trained(kind, index, documents, queries):
    if "HNSW" in kind.spec:
        pytest.skip("graphs are inserted in parallel")
    assert_same(build(kind, documents).search(queries, K), index.search(queries, K))
