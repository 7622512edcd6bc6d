"""One ranking, whatever the tiles, blocks or storage: with ties and duplicated vectors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.evaluate.exact import ArrayVectors, block_search, candidates, exact_search
from bench.evaluate.exact.bounds import double_distance
from bench.evaluate.exact.rescoring import exact_scores, exact_scores_by_query
from bench.store import StoredVectors
from bench.store.keys import document_keys
from bench.store.shards import read_shard, write_shard
from retrievers.encoders.clock import Clock
from retrievers.models.recipe import Recipe
from tests.support.exact_oracle import assert_same, brute_force, corpora, nearly_tied, ties

faiss = pytest.importorskip("faiss")


@settings(max_examples=120, deadline=None)
@given(
    corpus=corpora(),
    k=st.integers(1, 80),
    tile_rows=st.integers(1, 700),
    block_bytes=st.integers(1, 200_000),
    product_rows=st.integers(1, 64),
    slack=st.integers(1, 20),
    first_rows=st.integers(1, 16),
)
def test_no_tile_block_or_product_size_changes_ids_order_or_scores(
    corpus, k, tile_rows, block_bytes, product_rows, slack, first_rows
):
    vectors, queries, tie_rank = corpus
    k = min(k, len(vectors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_search, "PRODUCT_ROWS", product_rows)
        patch.setattr(block_search, "SLACK", slack)
        patch.setattr(block_search, "FIRST_ROWS", first_rows)
        hits = exact_search(
            ArrayVectors(vectors),
            queries,
            k,
            tie_rank,
            tile_rows=tile_rows,
            block_bytes=block_bytes,
        )
    assert_same(hits, brute_force(vectors, queries, k, tie_rank))


def test_vectors_stored_as_float16_are_ranked_by_what_is_stored(tmp_path):
    vectors, tie_rank = ties(3000)
    vectors += np.float32(1e-5)
    halves = vectors.astype(np.float16)
    recipe = Recipe(model="m", kind="hashing", dim=48, normalize=True, store_dtype="float16")
    keys = document_keys([""] * 3000, [str(row) for row in range(3000)])
    shard, _ = read_shard(write_shard(tmp_path, "document", recipe, keys, vectors))
    truth = brute_force(halves.astype(np.float32), vectors[:5], 100, tie_rank)
    for tile_rows in (100, 999, 4000):
        for stored in (StoredVectors((shard,), np.arange(3000), 48), ArrayVectors(halves)):
            hits = exact_search(stored, vectors[:5], 100, tie_rank, tile_rows=tile_rows)
            assert_same(hits, truth)


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


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    k=st.integers(1, 12),
    copies=st.integers(1, 400),
    tile_rows=st.integers(50, 1000),
    first_rows=st.integers(1, 16),
    slack=st.integers(1, 20),
)
def test_a_query_near_which_all_rows_of_a_tile_lie_crowds_out_no_other(
    seed, k, copies, tile_rows, first_rows, slack
):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((900, 8)).astype(np.float32)
    queries = rng.standard_normal((5, 8)).astype(np.float32)
    start = int(rng.integers(0, 900 - copies))
    vectors[start : start + copies] = queries[0]  # ties of the best
    vectors[-300:] += np.linspace(0, 9, 300, dtype=np.float32)[:, None] * queries[1]
    tie_rank = rng.permutation(900)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_search, "SLACK", slack)
        patch.setattr(block_search, "FIRST_ROWS", first_rows)
        patch.setattr(candidates, "MERGED_PLACES", slack * 20)
        hits = exact_search(ArrayVectors(vectors), queries, k, tie_rank, tile_rows=tile_rows)
    assert_same(hits, brute_force(vectors, queries, k, tie_rank))


def test_few_candidates_beyond_the_ranking_are_scored(monkeypatch):
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((20_000, 32)).astype(np.float32)
    queries = rng.standard_normal((20, 32)).astype(np.float32)
    scored = []

    def counted(vectors, rows, *others):
        scored.append(len(rows))
        return exact_scores_by_query(vectors, rows, *others)

    monkeypatch.setattr(block_search, "exact_scores_by_query", counted)
    tie_rank = rng.permutation(20_000)
    hits = exact_search(ArrayVectors(vectors), queries, 100, tie_rank, tile_rows=5000)
    assert_same(hits, brute_force(vectors, queries, 100, tie_rank))
    expected = 20 * 100 * sum(1 / tile for tile in (1, 2, 3, 4))
    assert sum(scored) < 1.1 * expected


def test_sums_of_another_order_are_rounded_as_the_one_that_decides():
    vectors, query = nearly_tied(2000, 64)  # sums that cancel: the order changes some scores
    doubles = np.concatenate([query, query[:, ::-1]]).astype(np.float64)
    rows, asked = np.tile(np.arange(2000), 2), np.repeat([0, 1], 2000)
    truth = exact_scores(vectors, rows, doubles, asked)
    assert (truth[:2000] != (vectors.astype(np.float64) @ doubles[0]).astype(np.float32)).any()
    longest = float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())
    distance = double_distance(64, np.linalg.norm(doubles, axis=1), longest)
    scores = exact_scores_by_query(vectors, rows, doubles, asked, distance)
    np.testing.assert_array_equal(scores, truth)
