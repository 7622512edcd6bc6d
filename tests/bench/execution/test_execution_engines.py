"""Every engine writes the same vectors and finds the same documents, whoever does the work."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.evaluate.search import canonical
from bench.execution.protocol import TreeMerge
from foundation.errors import BenchError
from retrievers.index.faiss_index import Hits
from tests.support.engines import Bed, files_of
from tests.support.exact_oracle import assert_same, brute_force

K = 50


@pytest.fixture(scope="module", params=["local", "processes", "ray"])
def engine_of(request):
    """The engine of a kind for what it works on."""
    if request.param == "local":
        yield lambda bed: bed.local()
    elif request.param == "processes":
        pool = request.getfixturevalue("processes")
        yield lambda bed: bed.pooled(pool)
    else:
        pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
        from tests.support.ray_cluster import two_actors

        with two_actors() as pool:
            yield lambda bed: bed.pooled(pool)


def test_shards_are_those_of_one_process_byte_by_byte(
    engine_of, collection, card, undisturbed, tmp_path
):
    bed = Bed(tmp_path, collection, card)
    shards, advanced = bed.missing(), []
    encoded = engine_of(bed).encode(shards, advanced.append)
    assert len(shards) == 5
    assert encoded.shards == set(shards)
    assert encoded.texts == sum(advanced) == len(bed.corpus)
    assert encoded.counts["tokens"] > len(bed.corpus)
    files = files_of(shards, bed.space.vectors_dir)
    assert len(files) == 3 * len(shards)
    assert files == files_of(shards, undisturbed.space.vectors_dir)
    assert engine_of(bed).encode(shards, advanced.append).texts == 0


@pytest.mark.parametrize("cuts", [(), (1,), (700, 701, 5000), tuple(range(900, 9000, 900))])
def test_ids_order_and_scores_are_those_of_brute_force_for_any_tiles(engine_of, undisturbed, cuts):
    bed, queries = undisturbed, undisturbed.queries()
    edges = [0, *cuts, len(bed.corpus)]
    tiles = [range(*edges[n : n + 2]) for n in range(len(edges) - 1)]
    searched = []
    hits = engine_of(bed).search(tiles, queries, K, searched.append)
    assert_same(hits, brute_force(bed.vectors(), queries, K, bed.corpus.tie_rank))
    assert sum(searched) == len(bed.corpus)


def test_a_corpus_of_fewer_documents_than_the_depth_leaves_places_unfilled(engine_of, undisturbed):
    hits = engine_of(undisturbed).search([range(3)], undisturbed.queries(), 5, lambda rows: None)
    assert (np.sort(hits.rows, axis=1) == [-1, -1, 0, 1, 2]).all()


def test_vectors_that_are_not_there_are_not_searched(engine_of, collection, card, tmp_path):
    bed = Bed(tmp_path, collection, card)
    queries = bed.queries()
    with pytest.raises(BenchError, match="vectors of rows 0 to 9,000 are not in"):
        engine_of(bed).search([range(9000)], queries, 5, lambda rows: None)


def test_shards_of_another_corpus_are_refused(engine_of, undisturbed):
    with pytest.raises(BenchError, match="1 of 1 shards are of other texts than this corpus"):
        engine_of(undisturbed).encode(["0" * 32], lambda texts: None)


@settings(deadline=None)
@given(data=st.data(), parts=st.integers(1, 9), k=st.integers(1, 12))
def test_rankings_of_parts_become_that_of_the_whole(data, parts, k):
    """Scores are few, so that ties are decided within and between parts."""
    rows = data.draw(st.integers(parts, 60))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    scores = rng.integers(-2, 3, (3, rows)).astype(np.float32)
    tie_rank = rng.permutation(rows)
    owner = np.sort(rng.integers(0, parts, rows))
    merge = TreeMerge(tie_rank, k)
    everything = np.broadcast_to(np.arange(rows), scores.shape)
    for part in rng.permutation(parts):
        own = np.flatnonzero(owner == part)
        merge.add(canonical(Hits(scores[:, own], everything[:, own]), tie_rank, k))
    assert_same(merge.hits(3), canonical(Hits(scores, everything), tie_rank, k))
