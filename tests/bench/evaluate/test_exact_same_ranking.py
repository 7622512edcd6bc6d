"""One ranking, whatever the tiles, blocks or storage: with ties and duplicated vectors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.evaluate.exact import ArrayVectors, exact_search, tile_search
from bench.store import StoredVectors
from bench.store.keys import document_keys
from bench.store.shards import read_shard, write_shard
from retrievers.encoders.clock import Clock
from retrievers.models.recipe import Recipe
from tests.support.exact_oracle import assert_same, brute_force, corpora, ties

faiss = pytest.importorskip("faiss")


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
