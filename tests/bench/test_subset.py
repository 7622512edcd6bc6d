"""Parts of collections: what must be in them, and rankings restricted to them."""

from types import SimpleNamespace

import numpy as np
import pytest
from collections_for_tests import write_collection
from hypothesis import given
from hypothesis import strategies as st

from bench.decisions.subset import DEEPEST, Pool, choose, part_of, pool_of, restricted
from bench.pipeline import Options, evaluate
from bench.store import VectorStore
from datasets_cfg.dataset import open_dataset
from retrievers.index import IndexSpec
from retrievers.model import open_encoder, resolve_model

COUNT, CUTOFF = 120, 3
WORDS = [f"word{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(10)]
FLAT = IndexSpec.parse("flat")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("subset")


@pytest.fixture(scope="module")
def dataset(place):
    rng = np.random.default_rng(0)
    documents = {
        f"d{i:03}": ("", " ".join([*rng.choice(WORDS, 6).tolist(), WORDS[i % 60]]))
        for i in range(COUNT)
    }
    queries = {f"q{i:02}": f"{WORDS[i]} {WORDS[i + 1]}" for i in range(20)}
    qrels = {(f"q{i:02}", f"d{i:03}"): 1 for i in range(20)} | {("q00", "gone"): 1}
    folder = write_collection(place / "tiny", documents, queries, qrels)
    return open_dataset(str(folder), cache_dir=place)


def evaluated(name, dataset, place, depth=None):
    model = resolve_model(name)
    encoder = None if name == "bm25" else open_encoder(model)
    options = Options(FLAT, depth=depth, measures=("nDCG@3",))
    return evaluate(dataset, model, encoder, VectorStore(place / "vectors"), options)


@pytest.fixture(scope="module")
def runs(dataset, place):
    return {name: evaluated(name, dataset, place).run for name in ("bm25", "hashing")}


def kept_ids(dataset, kept):
    return set(np.array(dataset.corpus.ids.to_pylist())[kept].tolist())


def test_judged_documents_and_the_first_of_every_ranking_are_always_there(dataset, runs):
    pool = pool_of(dataset, runs, CUTOFF)
    subset, kept = choose(pool, 0, seed=0)
    needed = {f"d{i:03}" for i in range(20)}
    for run in runs.values():
        for _, documents, _ in run.rankings():
            needed |= set(documents[:CUTOFF])
    assert kept_ids(dataset, kept) == needed
    assert subset.judged == 20
    assert (subset.random, subset.depth) == (0, CUTOFF)


def test_a_limit_beyond_the_collection_is_all_of_it(dataset, runs):
    subset, kept = choose(pool_of(dataset, runs, CUTOFF), 10 * COUNT, seed=0)
    assert kept.all()
    assert subset.documents == subset.of == COUNT


pools = st.integers(1, 200).flatmap(
    lambda count: st.tuples(
        st.lists(st.booleans(), min_size=count, max_size=count),
        st.lists(st.integers(0, DEEPEST), min_size=count, max_size=count),
        st.integers(1, 20),
        st.integers(0, 250),
    )
)


@given(pools)
def test_a_part_has_the_size_asked_for_and_its_kinds_add_up(made):
    judged, ranks, cutoff, limit = made
    pool = Pool("any", np.array(judged), np.array(ranks), cutoff, ("a", "b"))
    subset, kept = choose(pool, limit, seed=1)
    assert subset.documents == kept.sum() == subset.judged + subset.hard + subset.random
    assert subset.documents == min(len(judged), max(limit, pool.smallest))
    assert kept[pool.judged | (pool.best_rank < cutoff)].all()
    harder = pool.best_rank[~kept].min(initial=DEEPEST)
    assert harder >= subset.depth


def test_the_seed_decides_the_random_sample_alone(dataset, runs):
    pool = pool_of(dataset, runs, CUTOFF)
    first, again, other = (choose(pool, pool.smallest + 20, seed)[1] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("name", ["hashing", "bm25"])
def test_a_restricted_ranking_is_the_ranking_of_the_part(dataset, runs, place, name):
    """BM25's scores depend on the collection, so only its order within the whole is promised."""
    pool = pool_of(dataset, runs, CUTOFF)
    _, kept = choose(pool, pool.smallest + 20, seed=0)
    part = part_of(dataset, kept, place)
    assert set(part.corpus.ids.to_pylist()) == kept_ids(dataset, kept)
    run = restricted(runs[name], dataset.corpus, kept)
    whole = {query: documents for query, documents, _ in runs[name].rankings()}
    there = kept_ids(dataset, kept)
    for query, documents, _ in run.rankings():
        assert documents == [one for one in whole[query] if one in there]
        assert len(documents) >= min(CUTOFF, len(whole[query]))
    if name == "hashing":
        fresh = evaluated(name, part, place, CUTOFF).run
        ours = {query: documents[:CUTOFF] for query, documents, _ in run.rankings()}
        assert {query: documents for query, documents, _ in fresh.rankings()} == ours


def test_documents_that_the_corpus_does_not_have_are_left_out(dataset, runs):
    run = runs["bm25"]
    kept = np.zeros(COUNT, bool)
    stranger = SimpleNamespace(
        query_ids=run.query_ids,
        offsets=run.offsets,
        doc_ids=run.doc_ids,
        scores=run.scores,
    )
    assert len(restricted(stranger, dataset.corpus, kept)) == 0


def test_a_part_is_built_once_and_keeps_titles_and_queries(dataset, runs, place):
    _, kept = choose(pool_of(dataset, runs, CUTOFF), 0, seed=0)
    first, again = part_of(dataset, kept, place), part_of(dataset, kept, place)
    assert first.corpus.sha256 == again.corpus.sha256 != dataset.corpus.sha256
    assert first.queries == dataset.queries
    assert first.facts.counts.documents == kept.sum()
