"""Parts of collections: what must be in them, and whose scores they leave as they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluate.judging import score_run
from bench.evaluate.pipeline import Options, evaluate
from bench.gate.subset import DEEPEST, CandidatePool, choose, part_of, pool_of
from bench.store import VectorStore
from datasets_cfg.dataset import open_dataset
from retrievers.encoders.opening import open_encoder
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.model import resolve_model
from tests.support.collections import OWN_WORDS, write_collection

COUNT, CUTOFF = 120, 3
FLAT = IndexSpec.parse("flat")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("subset")


@pytest.fixture(scope="module")
def dataset(place):
    rng = np.random.default_rng(0)
    documents = {
        f"d{i:03}": ("", " ".join([*rng.choice(OWN_WORDS, 6).tolist(), OWN_WORDS[i % 60]]))
        for i in range(COUNT)
    }
    queries = {f"q{i:02}": f"{OWN_WORDS[i]} {OWN_WORDS[i + 1]}" for i in range(20)}
    qrels = {(f"q{i:02}", f"d{i:03}"): 1 for i in range(20)} | {("q00", "gone"): 1}
    folder = write_collection(place / "tiny", documents, queries, qrels)
    (folder / "dataset.toml").write_text('name = "tiny"\nmain_measure = "nDCG@3"\n')
    return open_dataset(str(folder), cache_dir=place)


def evaluated(name, dataset, place, depth=None):
    model = resolve_model(name)
    encoder = None if name == "bm25" else open_encoder(model)
    options = Options(FLAT, depth=depth, measures=())
    return evaluate(dataset, model, encoder, VectorStore(place / "vectors"), options)


@pytest.fixture(scope="module")
def runs(dataset, place):
    return {name: evaluated(name, dataset, place).run for name in ("bm25", "hashing")}


def kept_ids(dataset, kept):
    return set(np.array(dataset.corpus.ids.to_pylist())[kept].tolist())


def test_judged_documents_and_what_is_found_by_whom_it_is_compared_with_are_always_there(
    dataset, runs
):
    pool = pool_of(dataset, runs, {"hashing"}, CUTOFF)
    subset, kept = choose(pool, 0, seed=0)
    needed = {f"d{i:03}" for i in range(20)}
    for name, depth in (("hashing", CUTOFF), ("bm25", 1)):
        for _, documents, _ in runs[name].rankings():
            needed |= set(documents[:depth])
    assert kept_ids(dataset, kept) == needed
    assert subset.judged == 20
    assert (subset.random, subset.depth) == (0, 1)


def test_a_limit_beyond_the_collection_is_all_of_it(dataset, runs):
    subset, kept = choose(pool_of(dataset, runs, {"hashing"}, CUTOFF), 10 * COUNT, seed=0)
    assert kept.all()
    assert subset.documents == subset.of == COUNT


pools = st.integers(1, 200).flatmap(
    lambda count: st.tuples(
        st.lists(st.booleans(), min_size=count, max_size=count),
        st.lists(st.booleans(), min_size=count, max_size=count),
        st.lists(st.integers(0, DEEPEST), min_size=count, max_size=count),
        st.integers(0, 250),
    )
)


@given(pools)
def test_a_part_has_the_size_asked_for_and_its_kinds_add_up(made):
    judged, compared, ranks, limit = made
    pool = CandidatePool("any", np.array(judged), np.array(compared), np.array(ranks), ("a", "b"))
    subset, kept = choose(pool, limit, seed=1)
    assert subset.documents == kept.sum() == subset.judged + subset.hard + subset.random
    assert subset.documents == min(len(judged), max(limit, pool.smallest))
    assert kept[pool.needed].all()
    harder = pool.best_rank[~kept].min(initial=DEEPEST)
    assert harder >= subset.depth


def test_the_seed_decides_the_random_sample_alone(dataset, runs):
    pool = pool_of(dataset, runs, {"hashing"}, CUTOFF)
    first, again, other = (choose(pool, pool.smallest + 20, seed)[1] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_a_model_that_is_compared_with_scores_on_the_part_as_on_the_whole(dataset, runs, place):
    pool = pool_of(dataset, runs, {"hashing"}, CUTOFF)
    _, kept = choose(pool, pool.smallest + 5, seed=0)
    part = part_of(dataset, kept, place)
    assert set(part.corpus.ids.to_pylist()) == kept_ids(dataset, kept)
    assert len(part.corpus) < COUNT
    fresh = evaluated("hashing", part, place, CUTOFF)
    found = {query: documents for query, documents, _ in fresh.run.rankings()}
    whole = {query: documents[:CUTOFF] for query, documents, _ in runs["hashing"].rankings()}
    assert found == whole
    scores, _ = score_run(dataset, runs["hashing"], ("nDCG@3",), CUTOFF)
    assert scores.values["nDCG@3"] == pytest.approx(fresh.scores.values["nDCG@3"])


def test_a_part_is_built_once_and_keeps_titles_and_queries(dataset, runs, place):
    _, kept = choose(pool_of(dataset, runs, {"hashing"}, CUTOFF), 0, seed=0)
    first, again = part_of(dataset, kept, place), part_of(dataset, kept, place)
    assert first.corpus.sha256 == again.corpus.sha256 != dataset.corpus.sha256
    assert first.queries == dataset.queries
    assert first.facts.counts.documents == kept.sum()
