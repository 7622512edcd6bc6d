"""One ranking, whatever the tiles, blocks, engine or storage: with ties and duplicated vectors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.evaluate.exact import (
    ArrayVectors,
    candidate_search,
    exact_search,
    streaming,
    tile_search,
)
from retrievers.encoders.clock import Clock
from retrievers.index.faiss_index import Hits
from tests.benchmarks.search_in_budget import FileVectors

faiss = pytest.importorskip("faiss")


def brute_force(vectors: np.ndarray, queries: np.ndarray, k: int, tie_rank: np.ndarray) -> Hits:
    """All products in float64, rounded to float32, sorted by score, then tie rank."""
    products = vectors.astype(np.float64)[None] * queries.astype(np.float64)[:, None]
    scores = products.sum(axis=2).astype(np.float32)
    best = np.lexsort((-np.broadcast_to(tie_rank, scores.shape), -scores), axis=1)[:, :k]
    return Hits(np.take_along_axis(scores, best, 1), best)


def assert_same(hits: Hits, other: Hits) -> None:
    np.testing.assert_array_equal(hits.rows, other.rows)
    np.testing.assert_array_equal(hits.scores, other.scores)


@st.composite
def corpora(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors of random floats, many of them twice or more, in a random or the worst order."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    distinct, dim = draw(st.integers(1, 300)), draw(st.integers(1, 40))
    vectors = rng.standard_normal((distinct, dim)).astype(np.float32)
    vectors = vectors[rng.integers(0, distinct, draw(st.integers(1, 600)))]
    queries = rng.standard_normal((draw(st.integers(1, 6)), dim)).astype(np.float32)
    if draw(st.booleans()):  # every tile is better than the ones before it
        vectors = vectors[np.argsort(vectors @ queries[0], kind="stable")]
    return np.ascontiguousarray(vectors), queries, rng.permutation(len(vectors))


@settings(max_examples=120, deadline=None)
@given(
    corpus=corpora(),
    k=st.integers(1, 80),
    tile_rows=st.integers(1, 700),
    block_bytes=st.integers(1, 200_000),
    product_rows=st.integers(1, 64),
    slack=st.integers(1, 20),
)
def test_no_tile_block_or_product_size_changes_ids_order_or_scores(
    corpus, k, tile_rows, block_bytes, product_rows, slack
):
    vectors, queries, tie_rank = corpus
    k = min(k, len(vectors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_search, "PRODUCT_ROWS", product_rows)
        patch.setattr(tile_search, "SLACK", slack)
        hits = exact_search(
            ArrayVectors(vectors),
            queries,
            k,
            tie_rank,
            tile_rows=tile_rows,
            block_bytes=block_bytes,
        )
    assert_same(hits, brute_force(vectors, queries, k, tie_rank))


def ties(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Small integers: thousands of equal scores at every cut."""
    rng = np.random.default_rng(2)
    return rng.integers(-2, 3, (rows, 48)).astype(np.float32), rng.permutation(rows)


@pytest.mark.parametrize("k", [10, 1000, 3000])
def test_an_engine_alone_and_products_beside_it_give_the_same_hits(k, monkeypatch):
    vectors, tie_rank = ties(5000)
    truth = brute_force(vectors, vectors[:8], k, tie_rank)
    with_torch = pytest.importorskip("torch") and candidate_search.with_torch("cpu")
    # The way of a GPU, which proposes for every tile, with both engines on this processor.
    for knn in (candidate_search.engine("cpu"), with_torch):
        monkeypatch.setattr(streaming, "engine", lambda device, knn=knn: knn)
        for device in ("cpu", "cuda"):
            hits = exact_search(
                ArrayVectors(vectors), vectors[:8], k, tie_rank, device=device, tile_rows=1999
            )
            assert_same(hits, truth)


def test_pytorch_proposes_in_float32_also_where_faster_products_are_switched_on():
    torch = pytest.importorskip("torch")
    vectors, _ = ties(50)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        scores, rows = candidate_search.with_torch("cpu")(vectors[:3], vectors, 5)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    products = vectors[:3] @ vectors.T
    np.testing.assert_array_equal(scores, -np.sort(-products, axis=1)[:, :5])
    np.testing.assert_array_equal(np.take_along_axis(products, rows, 1), scores)


def test_a_gpu_with_pytorch_gives_the_same_hits_as_the_cpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    vectors, tie_rank = ties(5000)
    truth = brute_force(vectors, vectors[:8], 1000, tie_rank)
    search = ArrayVectors(vectors), vectors[:8], 1000, tie_rank
    assert_same(exact_search(*search, device="cuda", tile_rows=1999), truth)


def test_vectors_stored_as_float16_are_ranked_by_what_is_stored(tmp_path):
    vectors, tie_rank = ties(3000)
    vectors += np.float32(1e-5)
    halves = vectors.astype(np.float16)
    (tmp_path / "v.f16").write_bytes(halves.tobytes())
    truth = brute_force(halves.astype(np.float32), vectors[:5], 100, tie_rank)
    for tile_rows in (100, 999, 4000):
        stored = FileVectors(tmp_path / "v.f16", 48)
        assert_same(exact_search(stored, vectors[:5], 100, tie_rank, tile_rows=tile_rows), truth)


def test_an_error_while_the_next_tile_is_read_is_raised():
    class Broken:
        shape = (6, 4)

        def tiles(self, rows):
            yield 0, np.ones((3, 4), np.float32)
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        exact_search(Broken(), np.ones((1, 4), np.float32), 2, np.arange(6), tile_rows=3)


def test_the_clock_is_told_candidates_and_rescoring_apart():
    vectors, tie_rank = ties(500)
    clock = Clock()
    exact_search(ArrayVectors(vectors), vectors[:3], 10, tie_rank, tile_rows=100, clock=clock)
    assert set(clock.seconds) == {"search", "rescore"}
    assert min(clock.seconds.values()) > 0
