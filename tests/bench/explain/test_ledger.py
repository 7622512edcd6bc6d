"""The ledger of a search system: exact sums, and what each of its methods tells apart."""

import json
import shutil

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench as library
from bench.comparing.statistics import Resampling
from bench.evaluation.scoring import score
from bench.explain.ledger import Ledger, SearchStage, compare_stages
from bench.explain.stages import examine
from bench.explain.system import StoredSystem, make_run
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from tests.support.search_faults import World, make_world

MEASURES = ("nDCG@3", "R@5")


def read_answers(query_ids, answers, k):
    return make_run(query_ids, map(StoredSystem(None, "").read, answers), k)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    corpus = {f"d{number}": {"text": f"text {number}"} for number in range(9)}
    queries = {f"q{number}": f"query {number}" for number in range(6)}
    qrels = {query: {f"d{row}": row % 3, f"d{row + 3}": 1} for row, query in enumerate(queries)}
    cache = tmp_path_factory.mktemp("cache")
    return Dataset.from_dicts(corpus, queries, qrels, cache_dir=cache)


RANKING = st.permutations([f"d{number}" for number in range(9)] + ["left-over"])
RUN = st.fixed_dictionaries(
    {f"q{number}": st.tuples(RANKING, st.integers(0, 10)) for number in range(6)}
)


@given(st.lists(RUN, min_size=2, max_size=6))
def test_terms_of_random_stages_sum_to_the_difference_of_every_query(dataset, drawn):
    stages = [
        SearchStage(str(place), read_answers(list(each), [ids[:k] for ids, k in each.values()], 9))
        for place, each in enumerate(drawn)
    ]
    resampling = Resampling(resamples=99)
    made = compare_stages(dataset, stages, MEASURES, 9, resampling, system="random")
    ends = [score(stage.run, dataset.qrels, MEASURES) for stage in (stages[0], stages[-1])]
    for place, measure in enumerate(MEASURES):
        exact, deployed = (each.by_query(measure) for each in ends)
        for number, query in enumerate(made.queries):
            terms = [row.by_query[place][number] for row in made.rows]
            assert sum(terms) == pytest.approx(deployed[query] - exact[query], abs=1e-12)
        terms = [row.terms[place].difference for row in made.rows]
        assert sum(terms) == pytest.approx(made.totals[place].difference, abs=1e-12)


def test_an_answer_keeps_its_order_whatever_its_scores_are():
    similar = [[("b", 0.9), ("a", 0.9), ("c", 0.1)]]
    assert next(read_answers(["q"], similar, 3).rankings())[1] == ["b", "a", "c"]
    far = [[("b", 0.1), ("a", 0.7), ("c", 0.9)], []]
    assert [ids for _, ids, _ in read_answers(["q", "r"], far, 2).rankings()] == [["b", "a"]]
    assert next(read_answers(["q"], [[5, 7, 5, 6]], 3).rankings())[1] == ["5", "7", "6"]


class Memory:
    """Vectors in memory, searched exactly."""

    name = "memory"

    def __init__(self, world, ids=None, vectors=None):
        self.encode = world.model.require_encoder().encode_queries
        self.stored = world.ids if ids is None else ids
        self.array = world.vectors if vectors is None else vectors

    def search(self, queries, k):
        return Memory.search_vectors(self, self.encode(queries), k)

    def search_vectors(self, vectors, k):
        scores = np.asarray(vectors) @ self.array.T
        order = np.argsort(-scores, axis=1)[:, :k]
        return [
            [(self.stored[row], float(line[row])) for row in rows]
            for line, rows in zip(scores, order, strict=True)
        ]

    def ids(self):
        return self.stored

    def vectors(self, ids):
        return self.array[[self.stored.index(id_) for id_ in ids]]


class SearchOnly:
    """A system that only answers texts."""

    def __init__(self, system):
        self.search = system.search


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def ledger(world, system) -> Ledger:
    opened = StoredSystem.open(system, trust_code=False)
    return examine(opened, world.model, world.dataset, world.question)


def test_a_system_without_faults_loses_nothing_in_any_row(world):
    made = ledger(world, Memory(world))
    assert made.exit_code == 0
    assert made.exact == made.deployed
    assert [row.name for row in made.rows] == [
        "0 documents are missing",
        "stored vectors as exact as float32 (400 documents)",
        "search: the answers are those of exact search",
        "query vectors as the checkpoint's",
    ]
    assert all(term.difference == 0 for row in made.rows for term in row.terms)


def test_a_row_that_only_another_method_would_split_names_it(world):
    kept = world.ids[80:]
    system = Memory(world, kept, world.vectors[80:])
    made = ledger(world, SearchOnly(system))
    (row,) = made.rows
    assert row.apply.startswith("ids() and vectors() and search_vectors()")
    assert row.terms == tuple(made.totals)
    assert made.exit_code == 5
    whole = ledger(world, system)
    missing = "80 documents are missing: d000, d001, d002, d003 and 76 more"
    assert whole.rows[0].name == missing
    assert whole.totals[0].difference == made.totals[0].difference
    system.vectors = None
    listed = ledger(world, system)
    assert listed.rows[0] == whole.rows[0]
    assert listed.rows[1].apply.startswith("vectors() of the system")


def test_vectors_of_another_dimension_are_one_row_with_the_search(world):
    system = Memory(world)
    system.vectors = lambda ids: np.ones((len(ids), 3), np.float32)
    made = ledger(world, system)
    assert made.rows[1].name.startswith("stored vectors, search, ")
    assert "stored vectors have 3 dimensions, the checkpoint's 64" in made.notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": lambda: ["x1", "x2"]}, "stores no document of words: its ids are such as 'x1'"),
        ({"vectors": lambda ids: [[1.0]] * 3}, "returned 3 vectors for 400 ids"),
        ({"vectors": lambda ids: [None, *[[1.0]] * (len(ids) - 1)]}, "and none for 'd000'"),
        ({"search": lambda queries, k: []}, "returned 0 rankings for 1 query"),
        ({"search": lambda queries, k: 1 / 0}, "ZeroDivisionError"),
        ({"search": lambda queries, k: [3.5] * len(queries)}, "returned a float as a ranking"),
    ],
)
def test_a_system_that_answers_wrongly_is_refused_with_what_it_did(world, change, message):
    system = Memory(world)
    vars(system).update(change)
    with pytest.raises(BenchError) as error:
        ledger(world, system)
    assert message in str(error.value)
    assert error.value.hint


SYSTEM = """
from pathlib import Path

import numpy as np

from bench.runner.workspace import Workspace


class Prod:
    version = "7"

    def __init__(self):
        self.model = Workspace(Path("cache")).load("tiny.toml").require_encoder()
        texts = dict(line.rstrip("\\n").split("\\t") for line in open("texts.tsv"))
        self.stored = list(texts)[:KEPT]
        self.array = self.model.encode_documents([""] * KEPT, list(texts.values())[:KEPT])

    def search(self, queries, k):
        scores = self.model.encode_queries(queries) @ self.array.T
        return [[self.stored[row] for row in np.argsort(-line)[:k]] for line in scores]

    def ids(self):
        return self.stored
"""


@pytest.fixture
def system_file(world, tmp_path, monkeypatch):
    """The folder of the world with a system in a file, which stores 320 of 400 documents."""
    folder = tmp_path / "folder"
    shutil.copytree(world.workspace.cache_dir.parent, folder)
    monkeypatch.chdir(folder)
    corpus = world.dataset.corpus
    _, texts = corpus.documents_at(corpus.rows_of(world.ids))
    rows = (f"{id_}\t{text}\n" for id_, text in zip(world.ids, texts, strict=True))
    (folder / "texts.tsv").write_text("".join(rows), encoding="utf-8")
    (folder / "search.py").write_text(SYSTEM.replace("KEPT", "320"), encoding="utf-8")
    return folder


ARGUMENTS = ("search.py:Prod", "--on", "words", "--checkpoint", "tiny.toml")


def test_command_json_and_python_give_the_same_ledger(system_file, bench):
    run = bench("explain", *ARGUMENTS, "--trust-code")
    assert run.code == 5, run.stderr
    assert run.stdout.startswith("## DRIFT: Prod")
    assert "80 documents are missing" in run.stdout
    assert "add them there" in run.stdout
    document = bench("explain", *ARGUMENTS, "--trust-code", "--json")
    assert document.code == 5
    read = msgspec.convert(json.loads(document.stdout), Ledger)
    python = library.ledger("search.py:Prod", on="words", checkpoint="tiny.toml", trust_code=True)
    assert read == python
    assert (read.version, read.measures) == ("7", ("nDCG@10", "R@50"))
    recall = bench("explain", *ARGUMENTS, "--trust-code", "--json", "--measure", "R@20")
    assert json.loads(recall.stdout)["measures"] == ["nDCG@10", "R@20"]
