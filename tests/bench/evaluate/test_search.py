"""The one order, and exact search against brute force: ids and scores, equal bit for bit."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bench.evaluate import search
from bench.evaluate.exact import ArrayVectors, block_search, exact_search, rescoring
from bench.evaluate.exact.bounds import dot_error
from bench.evaluate.search import approximate, canonical, drop_self, order, recall
from foundation.errors import BenchError
from retrievers.index.faiss_index import Hits
from tests.support.exact_oracle import assert_same, nearly_tied

faiss = pytest.importorskip("faiss")
INF = float("inf")


def float32_bits(score: float) -> float:
    """A Python float rounded to float32, through its bytes."""
    return struct.unpack("f", struct.pack("f", score))[0]


def brute_force(
    vectors: np.ndarray, queries: np.ndarray, k: int, ids: list[bytes]
) -> tuple[list[list[float]], list[list[bytes]]]:
    """Scores and ids of the k best by Python sort; math.fsum is the correctly rounded sum."""
    all_scores, all_ids = [], []
    for query in queries:
        scores = [
            float32_bits(math.fsum(float(a) * float(b) for a, b in zip(query, row, strict=True)))
            for row in vectors
        ]
        ranking = sorted(zip(scores, ids, strict=True), reverse=True)[:k]
        all_scores.append([score for score, _ in ranking])
        all_ids.append([name for _, name in ranking])
    return all_scores, all_ids


def ranks(ids: list[bytes]) -> np.ndarray:
    rank = np.empty(len(ids), np.int64)
    rank[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return rank


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[bytes], int, int]:
    """Few distinct vectors drawn many times: duplicates, ties at the cut, zero vectors.

    Components are eighths, so that float64 sums are exact and equal to math.fsum.
    """
    dim = draw(st.integers(1, 48))
    eighths = st.integers(-24, 24).map(lambda value: value / 8)
    distinct = draw(hnp.arrays(np.float32, (draw(st.integers(1, 6)), dim), elements=eighths))
    chosen = draw(st.lists(st.integers(0, len(distinct) - 1), min_size=1, max_size=40))
    queries = draw(hnp.arrays(np.float32, (draw(st.integers(1, 4)), dim), elements=eighths))
    zero = draw(st.booleans())
    vectors = np.concatenate([distinct[chosen], np.zeros((2 * zero, dim), np.float32)])
    count = len(vectors)
    ids = draw(st.lists(st.binary(max_size=3), min_size=count, max_size=count, unique=True))
    return vectors, queries, ids, draw(st.integers(1, count + 3)), draw(st.integers(1, count))


@settings(max_examples=150, deadline=None)
@given(problem=problems(), slack=st.integers(1, 3), block_bytes=st.integers(1, 20_000))
def test_exact_search_equals_brute_force_in_scores_and_ids(problem, slack, block_bytes):
    vectors, queries, ids, k, tile_rows = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_search, "SLACK", slack)
        hits = exact_search(
            ArrayVectors(vectors),
            queries,
            k,
            ranks(ids),
            tile_rows=tile_rows,
            block_bytes=block_bytes,
        )
    scores, names = brute_force(vectors, queries, k, ids)
    filled = min(k, len(vectors))
    assert hits.scores[:, :filled].tolist() == scores
    assert [[ids[row] for row in row_list] for row_list in hits.rows[:, :filled]] == names
    assert (hits.rows[:, filled:] == -1).all()
    assert (hits.scores[:, filled:] == -INF).all()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dim=st.integers(1, 48), scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e15]))
def test_tile_size_never_changes_a_ranking_of_arbitrary_floats(data, dim, scale):
    elements = st.floats(-1, 1, width=32)
    count = data.draw(st.integers(2, 30))
    vectors = data.draw(hnp.arrays(np.float32, (count, dim), elements=elements))
    vectors = np.concatenate([vectors, np.flip(vectors, 0)]) * np.float32(scale)
    queries = data.draw(hnp.arrays(np.float32, (3, dim), elements=elements))
    k = data.draw(st.integers(1, count))
    tie_rank = np.random.default_rng(0).permutation(2 * count)
    whole = exact_search(ArrayVectors(vectors), queries, k, tie_rank)
    products = vectors[None].astype(np.float64) * queries[:, None].astype(np.float64)
    scores = products.sum(axis=2).astype(np.float32)
    best = np.lexsort((-np.broadcast_to(tie_rank, scores.shape), -scores), axis=1)[:, :k]
    np.testing.assert_array_equal(whole.rows, best)
    np.testing.assert_array_equal(whole.scores, np.take_along_axis(scores, best, 1))
    for tile_rows in {1, k, 2 * count - 1}:
        assert_same(
            exact_search(ArrayVectors(vectors), queries, k, tie_rank, tile_rows=tile_rows), whole
        )


def test_thousands_of_duplicates_at_the_cut_are_ordered_by_id_only():
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((6000, 32)).astype(np.float32)
    vectors[rng.permutation(6000)[:5000]] = vectors[0]
    queries = np.concatenate([vectors[:1], rng.standard_normal((3, 32)).astype(np.float32)])
    tie_rank = rng.permutation(6000)
    hits = exact_search(ArrayVectors(vectors), queries, 100, tie_rank)
    assert (hits.scores[0] == hits.scores[0, 0]).all()
    same = np.flatnonzero((vectors == vectors[0]).all(axis=1))
    assert hits.rows[0].tolist() == same[np.argsort(-tie_rank[same])][:100].tolist()
    for tile_rows in (77, 1024, 5999):
        assert_same(
            exact_search(ArrayVectors(vectors), queries, 100, tie_rank, tile_rows=tile_rows), hits
        )


def test_float64_decides_where_the_order_of_float32_is_wrong_at_the_cut(monkeypatch):
    monkeypatch.setattr(block_search, "SLACK", 1)
    vectors, query = nearly_tied(400, 48)
    k = 10
    scores = (vectors.astype(np.float64) * query).sum(axis=1).astype(np.float32)
    tie_rank = np.arange(400)
    truth = np.lexsort((-tie_rank, -scores))[:k]
    proposed = faiss.knn(query, vectors, k + 1, metric=faiss.METRIC_INNER_PRODUCT)[1][0]
    assert not set(truth) <= set(proposed), "the data do not test anything"
    for tile_rows in (13, 100, 400):
        hits = exact_search(ArrayVectors(vectors), query, k, tie_rank, tile_rows=tile_rows)
        assert hits.rows[0].tolist() == truth.tolist()
        np.testing.assert_array_equal(hits.scores[0], scores[truth])


def test_the_error_bound_holds_for_faiss_and_numpy_and_is_not_wasteful():
    vectors, query = nearly_tied(2000, 384)
    norm = np.linalg.norm(vectors.astype(np.float64), axis=1).max()
    bound = dot_error(384, np.linalg.norm(query.astype(np.float64), axis=1), norm)[0]
    truth = (vectors.astype(np.float64) * query).sum(axis=1)
    scores, rows = faiss.knn(query, vectors, 2000, metric=faiss.METRIC_INNER_PRODUCT)
    assert np.abs(scores[0] - truth[rows[0]]).max() <= bound
    assert np.abs((vectors @ query[0]) - truth).max() <= bound
    assert bound < 3e-5 * norm * np.linalg.norm(query)


def test_a_block_of_queries_or_candidates_never_changes_a_ranking(monkeypatch):
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((500, 17)).astype(np.float32)
    queries = rng.standard_normal((23, 17)).astype(np.float32)
    tie_rank = rng.permutation(500)
    whole = exact_search(ArrayVectors(vectors), queries, 20, tie_rank)
    monkeypatch.setattr(rescoring, "RESCORE_BYTES", 1)
    for block_bytes in (1, 40_000, 1 << 20):
        hits = exact_search(
            ArrayVectors(vectors), queries, 20, tie_rank, tile_rows=90, block_bytes=block_bytes
        )
        assert_same(hits, whole)
    single = [
        exact_search(ArrayVectors(vectors), queries[i : i + 1], 20, tie_rank) for i in range(23)
    ]
    scores = np.concatenate([hits.scores for hits in single])
    assert_same(Hits(scores, np.concatenate([hits.rows for hits in single])), whole)


def test_a_memory_mapped_corpus_gives_the_same_hits_and_is_counted_once(tmp_path):
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((100, 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    rows: list[int] = []
    hits = exact_search(
        ArrayVectors(mapped), vectors[:3], 5, np.arange(100), tile_rows=30, advance=rows.append
    )
    assert rows == [30, 30, 30, 10]
    assert_same(hits, exact_search(ArrayVectors(vectors), vectors[:3], 5, np.arange(100)))


def test_no_queries_and_no_documents_give_empty_hits():
    vectors = np.ones((3, 4), np.float32)
    none = exact_search(ArrayVectors(vectors), vectors[:0], 2, np.arange(3))
    assert none.rows.shape == none.scores.shape == (0, 2)
    empty = exact_search(ArrayVectors(vectors[:0]), vectors, 2, np.arange(0))
    assert (empty.rows == -1).all()
    assert (empty.scores == -INF).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_vector_without_a_float32_product_is_refused_by_its_row(value):
    vectors = np.ones((6, 4), np.float32)
    bad = vectors.copy()
    bad[4, 2] = value
    with pytest.raises(BenchError, match="document 4 is not finite"):
        exact_search(ArrayVectors(bad), vectors[:1], 2, np.arange(6), tile_rows=3)
    with pytest.raises(BenchError, match="query 4 is not finite"):
        exact_search(ArrayVectors(vectors), bad, 2, np.arange(6))


def test_shapes_that_do_not_fit_are_refused():
    vectors = ArrayVectors(np.ones((6, 4), np.float32))
    with pytest.raises(BenchError, match=r"queries are float32 \(2, 5\)"):
        exact_search(vectors, np.ones((2, 5), np.float32), 2, np.arange(6))
    with pytest.raises(BenchError, match="5 tie ranks for 6 documents"):
        exact_search(vectors, np.ones((2, 4), np.float32), 2, np.arange(5))
    with pytest.raises(BenchError, match="depth 0"):
        exact_search(vectors, np.ones((2, 4), np.float32), 0, np.arange(6))
    with pytest.raises(ValueError, match="C-contiguous"):
        ArrayVectors(np.ones((6, 4), np.float32).T)


# The order


@given(
    hits=st.lists(st.tuples(st.floats(allow_nan=False, width=32), st.integers(-1, 50)), max_size=30)
)
def test_order_is_score_then_rank_falling_with_unfilled_places_last(hits):
    scores = np.array([score for score, _ in hits], np.float32)
    tie_rank = np.array([rank for _, rank in hits], np.int64)
    expected = sorted(
        range(len(hits)),
        key=lambda i: (hits[i][1] < 0, -hits[i][0], -hits[i][1]) if hits[i][1] >= 0 else (True,),
    )
    assert order(scores, tie_rank).tolist() == expected


def test_order_compares_scores_as_float32_and_zeros_as_equal():
    assert order([0.1, 0.1 + 1e-12], [1, 0]).tolist() == [0, 1]
    assert order([-0.0, 0.0], [1, 0]).tolist() == [0, 1]


def test_order_refuses_nan_but_not_in_unfilled_places():
    with pytest.raises(BenchError, match="NaN"):
        order([1.0, np.nan], [0, 1])
    assert order([1.0, np.nan], [0, -1]).tolist() == [0, 1]


def test_order_refuses_ranks_that_its_keys_cannot_hold():
    assert order([1.0, 1.0], [0, search.MAX_RANK]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="tie ranks"):
        order([1.0], [search.MAX_RANK + 1])


def hits_of(scores: list[list[float]], rows: list[list[int]]) -> Hits:
    return Hits(np.array(scores, np.float32), np.array(rows, np.int64))


def test_an_unfilled_row_never_becomes_the_last_document():
    found = canonical(hits_of([[9.0, 1.0, 1.0]], [[-1, 0, 2]]), np.array([5, 6, 7]), 3)
    assert_same(found, hits_of([[1.0, 1.0, -INF]], [[2, 0, -1]]))


def test_canonical_hits_are_cut_or_padded_to_the_depth():
    hits = hits_of([[1.0, 1.0]], [[0, 1]])
    assert canonical(hits, np.array([0, 1]), 1).rows.tolist() == [[1]]
    assert_same(canonical(hits, np.array([0, 1]), 3), hits_of([[1.0, 1.0, -INF]], [[1, 0, -1]]))


def test_approximate_keeps_the_scores_of_the_index():
    class Index:
        def search(self, queries, k):
            return hits_of([[0.5, 0.5, -3e38]], [[0, 1, -1]])

    found = approximate(Index(), np.ones((1, 2), np.float32), 3, np.array([0, 1]))
    assert_same(found, hits_of([[0.5, 0.5, -INF]], [[1, 0, -1]]))


# Self-matches


def test_dropping_the_self_match_keeps_the_depth():
    hits = hits_of([[3, 2, 1], [3, 2, 1], [3, 2, 1]], [[7, 8, 9], [7, 8, 9], [7, 8, 9]])
    left = drop_self(hits, np.array([8, -1, 5]), 2)
    assert_same(left, hits_of([[3, 1], [3, 2], [3, 2]], [[7, 9], [7, 8], [7, 8]]))


def test_a_query_without_own_document_keeps_its_unfilled_places():
    left = drop_self(hits_of([[3, -INF, -INF]], [[7, -1, -1]]), np.array([-1]), 2)
    assert_same(left, hits_of([[3, -INF]], [[7, -1]]))


def test_dropping_self_matches_needs_one_more_than_the_depth():
    with pytest.raises(ValueError, match="depth 2"):
        drop_self(hits_of([[3, 2]], [[7, 8]]), np.array([7]), 2)


# Recall against exact


def test_recall_is_the_share_of_true_neighbours_found():
    truth = hits_of([[3, 2], [3, 2], [3, -INF], [-INF, -INF]], [[1, 2], [1, 2], [0, -1], [-1, -1]])
    found = hits_of([[3, 2], [3, 2], [3, -INF], [3, 2]], [[2, 1], [2, 9], [-1, 0], [1, 2]])
    assert recall(found, truth, 2).tolist() == [1.0, 0.5, 1.0, 1.0]
    assert recall(found, truth, 1).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_recall_does_not_match_rows_of_another_query_or_unfilled_places():
    truth = hits_of([[3.0], [3.0]], [[1], [-1]])
    found = hits_of([[3.0], [3.0]], [[-1], [1]])
    assert recall(found, truth, 1).tolist() == [0.0, 1.0]
