"""Exact search with NumPy and PyTorch against brute force: ids and scores, equal bit for bit.

Whatever the tiles, blocks or storage, with ties and duplicated vectors; PyTorch on the processor,
and on a GPU where there is one.
"""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation import certificate, device_search, exact
from bench.evaluation.certificate import exact_scores, float32_error, float64_error
from bench.evaluation.exact import (
    ArrayVectors,
    convert_to_float32,
    exact_search,
    score_candidates,
)
from bench.store.shards import PendingShard, StoredVectors, document_keys, read_shard, write_shard
from foundation.errors import BenchError
from retrievers.encoders.protocol import PhaseTimer
from retrievers.index.hits import Hits
from retrievers.models.card import Recipe
from tests.support.exact_oracle import (
    assert_filled_as,
    assert_same,
    brute_force,
    corpora,
    nearly_tied,
    planted,
    search_on_device,
    ties,
)
from tests.support.examples import with_examples

INF = float("inf")
SEARCHES = {"numpy": exact_search, "torch": search_on_device}
if torch.cuda.is_available():
    SEARCHES["cuda"] = partial(search_on_device, device="cuda")


@pytest.fixture(params=SEARCHES)
def search(request):
    return SEARCHES[request.param]


@with_examples(75)
@given(
    corpus=corpora(),
    k=st.integers(1, 80),
    tile_rows=st.integers(1, 700),
    block_bytes=st.integers(1, 1_000_000),
    product_rows=st.integers(1, 64),
    slack=st.integers(1, 20),
    scale=st.sampled_from([1e-30, 1.0, 1e15]),
    halves=st.booleans(),
    search=st.sampled_from([*SEARCHES.values()]),
)
def test_no_tile_block_product_or_storage_changes_ids_order_or_scores(
    corpus, k, tile_rows, block_bytes, product_rows, slack, scale, halves, search
):
    vectors, queries, tie_rank = corpus
    vectors = vectors.astype(np.float16) if halves else vectors * np.float32(scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "PRODUCT_ROWS", product_rows)
        patch.setattr(device_search, "MAX_SCORES", product_rows * len(queries))
        patch.setattr(device_search, "SCORED_VALUES", product_rows * 20)
        patch.setattr(certificate, "SLACK", slack)
        patch.setattr(exact, "BLOCK_BYTES", block_bytes)
        hits = search(ArrayVectors(vectors), queries, k, tie_rank, tile_rows=tile_rows)
    assert_filled_as(hits, brute_force(vectors, queries, k, tie_rank))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("k", [10, 3000])
def test_planted_neighbours_duplicates_and_ties(k, dtype, search):
    vectors, queries, tie_rank = planted(4000, 40, 12)
    small, _ = ties(4000)
    for corpus, asked in ((vectors, queries), (small, small[:12])):
        stored = ArrayVectors(corpus.astype(dtype))
        hits = search(stored, asked, k, tie_rank, tile_rows=1999)
        assert_same(hits, brute_force(stored.array, asked, k, tie_rank))


def test_float64_decides_where_the_order_of_float32_is_wrong_at_the_cut(search, monkeypatch):
    monkeypatch.setattr(certificate, "SLACK", 1)
    vectors, query = nearly_tied(400, 48)
    truth = brute_force(vectors, query, 10, np.arange(400))
    faiss = pytest.importorskip("faiss")
    proposed = faiss.knn(query, vectors, 11, metric=faiss.METRIC_INNER_PRODUCT)[1][0]
    assert not set(truth.rows[0]) <= set(proposed), "the data do not test anything"
    for tile_rows in (13, 400):
        asked = ArrayVectors(vectors), query, 10, np.arange(400)
        assert_same(search(*asked, tile_rows=tile_rows), truth)


def test_the_error_bound_holds_for_faiss_and_numpy_and_is_not_wasteful():
    vectors, query = nearly_tied(2000, 384)
    norm = np.linalg.norm(vectors.astype(np.float64), axis=1).max()
    bound = float32_error(384, np.linalg.norm(query.astype(np.float64), axis=1), norm)[0]
    truth = (vectors.astype(np.float64) * query).sum(axis=1)
    assert np.abs((vectors @ query[0]) - truth).max() <= bound
    assert bound < 3e-5 * norm * np.linalg.norm(query)
    faiss = pytest.importorskip("faiss")
    scores, rows = faiss.knn(query, vectors, 2000, metric=faiss.METRIC_INNER_PRODUCT)
    assert np.abs(scores[0] - truth[rows[0]]).max() <= bound


def test_sums_of_another_order_are_rounded_as_the_one_that_decides():
    vectors, query = nearly_tied(2000, 64)  # sums that cancel: the order changes some scores
    queries64 = np.concatenate([query, query[:, ::-1]]).astype(np.float64)
    rows, asked = np.tile(np.arange(2000), 2), np.repeat([0, 1], 2000)
    truth = exact_scores(vectors, rows, queries64, asked)
    assert (truth[:2000] != (vectors.astype(np.float64) @ queries64[0]).astype(np.float32)).any()
    longest = float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())
    sum_error = float64_error(64, np.linalg.norm(queries64, axis=1), longest)
    scores = score_candidates(vectors, rows, queries64, asked, sum_error)
    np.testing.assert_array_equal(scores, truth)


@with_examples(30)
@given(
    seed=st.integers(0, 2**32),
    k=st.integers(1, 12),
    copies=st.integers(1, 400),
    tile_rows=st.integers(50, 1000),
    slack=st.integers(1, 20),
)
def test_a_query_close_to_a_whole_tile_does_not_displace_results_of_others(
    seed, k, copies, tile_rows, slack
):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((900, 8)).astype(np.float32)
    queries = rng.standard_normal((5, 8)).astype(np.float32)
    start = int(rng.integers(0, 900 - copies))
    vectors[start : start + copies] = queries[0]  # ties of the best
    vectors[-300:] += np.linspace(0, 9, 300, dtype=np.float32)[:, None] * queries[1]
    tie_rank = rng.permutation(900)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "SLACK", slack)
        patch.setattr(exact, "MERGED_CELLS", slack * 20)
        hits = exact_search(ArrayVectors(vectors), queries, k, tie_rank, tile_rows=tile_rows)
    assert_same(hits, brute_force(vectors, queries, k, tie_rank))


def test_vectors_stored_as_float16_are_ranked_by_what_is_stored(tmp_path, search):
    vectors, tie_rank = ties(3000)
    vectors += np.float32(1e-5)
    halves = vectors.astype(np.float16)
    recipe = Recipe(model="m", kind="hashing", dim=48, normalize=True, store_dtype="float16")
    keys = document_keys([""] * 3000, [str(row) for row in range(3000)])
    batch = PendingShard(keys, np.arange(3000))
    shard, _ = read_shard(write_shard(tmp_path, "document", recipe, batch, vectors))
    truth = brute_force(halves.astype(np.float32), vectors[:5], 100, tie_rank)
    for stored in (StoredVectors((shard,), np.arange(3000), 48), ArrayVectors(halves)):
        asked = stored, vectors[:5], 100, tie_rank
        for tile_rows in (999, exact.PRODUCT_ROWS + 500):
            assert_same(search(*asked, tile_rows=tile_rows), truth)


def test_an_error_while_the_next_tile_is_read_is_raised():
    class Broken:
        shape = (6, 4)

        def tiles(self, rows):
            yield 0, np.ones((3, 4), np.float32)
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        exact_search(Broken(), np.ones((1, 4), np.float32), 2, np.arange(6), tile_rows=3)


def test_a_memory_mapped_corpus_gives_the_same_hits_and_is_counted_and_timed(tmp_path):
    vectors, tie_rank = ties(100)
    np.save(tmp_path / "v.npy", vectors)
    mapped = ArrayVectors(np.load(tmp_path / "v.npy", mmap_mode="r"))
    rows, timer = list[int](), PhaseTimer()
    hits = exact_search(
        mapped, vectors[:3], 5, tie_rank, tile_rows=30, advance=rows.append, timer=timer
    )
    assert rows == [30, 30, 30, 10]
    assert set(timer.seconds) == {"search", "rescore"}
    assert_same(hits, brute_force(vectors, vectors[:3], 5, tie_rank))


def test_no_queries_and_no_documents_give_empty_hits(search):
    vectors = np.ones((3, 4), np.float32)
    none = search(ArrayVectors(vectors), vectors[:0], 2, np.arange(3))
    assert none.rows.shape == none.scores.shape == (0, 2)
    empty = search(ArrayVectors(vectors[:0]), vectors, 2, np.arange(0))
    assert_same(empty, Hits(np.full((3, 2), -INF, np.float32), np.full((3, 2), -1)))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.float32, np.nan), (np.float32, np.inf), (np.float32, 3e38), (np.float16, np.inf)],
)
def test_a_vector_without_a_float32_product_is_refused_by_its_row(dtype, value, search):
    bad = np.ones((6, 4), dtype)
    bad[4, 2] = value
    ones = np.ones((6, 4), np.float32)
    with pytest.raises(BenchError, match="document 4 is not finite"):
        search(ArrayVectors(bad), ones, 2, np.arange(6), tile_rows=3)
    with pytest.raises(BenchError, match="query 4 is not finite"):
        search(ArrayVectors(ones), bad.astype(np.float32), 2, np.arange(6))


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


@pytest.mark.parametrize("flushes", [False, True])
def test_every_number_in_float16_becomes_numpys_in_float32(flushes: bool) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite, found = halves[np.isfinite(halves)], np.empty(1 << 16, np.float32)
    torch.set_flush_denormal(flushes)
    try:
        convert_to_float32(halves, found)
        converted = np.empty(len(finite), np.float32)
        convert_to_float32(finite, converted)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(found, halves.astype(np.float32))
    assert converted.tobytes() == finite.astype(np.float32).tobytes()
