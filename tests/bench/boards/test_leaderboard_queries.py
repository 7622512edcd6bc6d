"""Pairs query by query: none is lost in the plot, and what changed most is what compare says."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.boards import queries as queries_module
from bench.boards.assembly import Choice, assemble
from bench.boards.queries import GRID, dots
from bench.boards.records import Board, OnQueries
from bench.boards.rows import results_in
from bench.comparing.changed import at_hand, most_changed, most_different
from bench.comparing.statistics import Resampling
from bench.evaluate.run_files import write_run
from bench.evaluate.runs import Run
from bench.results.result import TREC_FILE
from bench.workspace import Workspace
from datasets_cfg.dataset import open_dataset
from tests.support.leaderboards import MEASURE, protocol_of, store

QUICK = Resampling(resamples=199)
SCORES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60)
NOWHERE = "it is not here"


@given(SCORES)
def test_every_query_is_in_one_dot_and_no_dot_is_wider_than_a_cell(pairs):
    ids = [f"q{number}" for number in range(len(pairs))]
    a, b = np.array(pairs).T
    found = dots(ids, a, b)
    assert sum(dot.count for dot in found) == len(pairs)
    own = dict(zip(ids, pairs, strict=True))
    for dot in found:
        assert len(dot.queries) == min(dot.count, queries_module.NAMED)
        for query in dot.queries:
            assert abs(own[query][0] - dot.a) <= 1 / GRID + 1e-9
            assert abs(own[query][1] - dot.b) <= 1 / GRID + 1e-9
    assert sum(dot.a * dot.count for dot in found) == pytest.approx(a.sum())
    assert sum(dot.b * dot.count for dot in found) == pytest.approx(b.sum())
    cells = Counter((round(dot.a * GRID), round(dot.b * GRID)) for dot in found)
    assert max(cells.values()) <= 4  # means stay in their cell, but for its border


@given(st.lists(st.sampled_from([-0.5, -0.25, 0.0, 1e-15, 0.25, 0.5]), max_size=20))
def test_the_most_different_are_the_largest_each_way_and_of_ties_the_first(gains):
    def best(sign: int) -> list[int]:
        own = [place for place, gain in enumerate(gains) if sign * gain > 1e-9]
        return sorted(own, key=lambda place: (-abs(gains[place]), place))[:2]

    assert most_different(np.array(gains), 2) == [*best(1), *best(-1)]


@pytest.fixture
def collection(tmp_path):
    """Four queries with a judged document each."""
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    documents = [f'{{"_id": "d{n}", "title": "T{n}", "text": "{"word " * 99}"}}' for n in range(4)]
    (folder / "corpus.jsonl").write_text("\n".join(documents))
    asked = [f'{{"_id": "q{n}", "text": "what is {n}?"}}' for n in range(4)]
    (folder / "queries.jsonl").write_text("\n".join(asked))
    judged = [f"q{n}\td{n}\t1" for n in range(4)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    return open_dataset(str(folder), cache_dir=tmp_path / "cache")


def evaluated(place, collection, model: str, scores, ranked: str = "") -> None:
    """A result on the collection; with a ranking of all documents from one on."""
    protocol = protocol_of(
        collection.name,
        queries_sha256=collection.queries_sha256,
        qrels_sha256=collection.qrels_sha256,
    )
    folder = store(place, model, collection.name, scores, protocol=protocol)
    if ranked:
        ids = [f"q{n}" for n in range(4) for _ in ranked]
        documents = [f"d{digit}" for _ in range(4) for digit in ranked]
        run = Run.from_rows(ids, documents, [-float(n) for n in range(len(ids))])
        write_run(run, folder / TREC_FILE, model)


def board_of(place, opened, **choices) -> Board:
    choice = Choice(pairs=(("a", "b"),), **choices)
    return assemble(results_in(place), {}, choice, QUICK, opened=opened)


def looked(place, opened, **choices) -> OnQueries:
    ((found,),) = (pair.queries for pair in board_of(place, opened, **choices).pairs)
    return found


@pytest.fixture
def results(tmp_path, collection):
    place = tmp_path / "results"
    evaluated(place, collection, "a", [1.0, 0.5, 0.25, 0.0], ranked="0123")
    evaluated(place, collection, "b", [0.0, 0.5, 0.5, 0.0], ranked="3210")
    return place


def test_a_pair_has_texts_judged_documents_and_both_rankings(results, collection):
    board = board_of(results, lambda protocol: collection)
    (found,) = board.pairs[0].queries
    assert found.without_rankings == ""
    first, second = found.changes.queries
    assert (first.query_id, first.text, first.score_a, first.score_b) == ("q0", "what is 0?", 1, 0)
    assert [(one.doc_id, one.grade) for one in first.top_a][:2] == [("d0", 1), ("d1", None)]
    assert [one.doc_id for one in first.top_b][:2] == ["d3", "d2"]
    (judged,) = second.judged
    assert (judged.doc_id, judged.rank_a, judged.rank_b) == ("d2", 3, 2)
    assert judged.text.startswith("T2 word word")
    assert len(judged.text) <= queries_module.WIDTH
    assert found.changes.changed == 2
    texts = {f"q{n}": f"what is {n}?" for n in range(4)}
    assert board.texts == {collection.name: texts}


def test_what_changed_most_is_what_compare_would_say(results, collection):
    found = looked(results, lambda protocol: collection, changed=1).changes
    entries = results_in(results)
    entries.sort(key=lambda one: one.result.recipe.checkpoint)
    theirs = most_changed(("a", "b"), (entries[0], entries[1]), MEASURE, 1, collection)
    assert [one.query_id for one in found.queries] == [one.query_id for one in theirs.queries]
    assert [one.top_b for one in found.queries] == [one.top_b for one in theirs.queries]
    assert found.changed == theirs.changed


def test_without_the_collection_there_are_ids_and_a_reason(results, collection):
    board = board_of(results, lambda protocol: NOWHERE)
    changes = board.pairs[0].queries[0].changes
    assert (changes.without, changes.queries[0].text, board.texts) == (NOWHERE, None, {})
    assert [one.doc_id for one in changes.queries[0].top_a] == ["d0", "d1", "d2", "d3"]


def test_a_result_without_its_ranking_has_its_queries_all_the_same(tmp_path, collection):
    evaluated(tmp_path / "r", collection, "a", [1.0, 0.5, 0.25, 0.0], ranked="0123")
    evaluated(tmp_path / "r", collection, "b", [0.0, 0.5, 0.5, 0.0])
    found = looked(tmp_path / "r", lambda protocol: collection)
    assert "without its ranking" in found.without_rankings
    assert [one.query_id for one in found.changes.queries] == ["q0", "q2"]
    assert found.changes.queries[0].top_a == found.changes.queries[0].top_b == ()


def test_large_rankings_are_read_only_for_pairs_that_were_asked_for(
    results, collection, monkeypatch
):
    monkeypatch.setattr(queries_module, "LIGHT", 1)

    def opened(protocol):
        return collection

    neighbours = assemble(
        results_in(results), {}, Choice(neighbours=True), QUICK, opened=opened
    ).pairs[0]
    assert "--pair" in neighbours.queries[0].without_rankings
    assert neighbours.queries[0].changes.queries[0].top_a == ()
    assert looked(results, opened).changes.queries[0].top_a != ()


def test_a_collection_is_at_hand_only_with_the_queries_that_were_evaluated(tmp_path, monkeypatch):
    monkeypatch.delenv("BENCH_DATA", raising=False)
    protocol = protocol_of("beir/scifact")
    assert "not on this machine" in at_hand(protocol, Workspace(tmp_path, data_dir=tmp_path))


def test_another_collection_of_the_name_is_not_the_one(bench_data, tmp_path):
    protocol = protocol_of("beir/scifact")
    assert "not the one that was evaluated" in at_hand(
        protocol, Workspace(tmp_path, data_dir=bench_data)
    )
