"""The denominator, identities between measures, ties and refused judgements."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.runs import Run
from bench.evaluation.scoring import relevance_matrix, score, tie_bounds
from datasets_cfg.readers.reader import Qrels
from foundation.errors import BenchError
from tests.support.examples import with_examples

DOCUMENTS = [f"d{number}" for number in range(6)]
Row = tuple[str, str, float]

RUNS = st.dictionaries(
    st.tuples(st.sampled_from("abcx"), st.sampled_from(DOCUMENTS)), st.sampled_from([1.0, 2.0, 3.0])
).map(lambda table: [(query, doc, value) for (query, doc), value in table.items()])
QRELS = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from(DOCUMENTS)),
    st.integers(-1, 3),
    min_size=1,
).map(lambda table: qrels_of([(query, doc, grade) for (query, doc), grade in table.items()]))

NATIVE = ["nDCG@3", "nDCG", "R@2", "P@2", "RR", "RR@2", "AP", "AP@2", "AP(rel=2)", "Success@2"]


def run_of(rows: list[Row]) -> Run:
    return Run.from_rows(*([row[i] for row in rows] for i in range(3)))


def qrels_of(rows: list[tuple[str, str, int]]) -> Qrels:
    queries, documents, grades = ([row[i] for row in rows] for i in range(3))
    return Qrels(tuple(queries), tuple(documents), np.array(grades, dtype=np.int32))


def test_queries_without_results_or_relevant_documents_score_zero_and_others_count_nowhere():
    run = run_of([("a", "d1", 1.0), ("b", "d1", 1.0), ("x", "d1", 1.0)])
    scores = score(run, qrels_of([("a", "d1", 1), ("b", "d1", 0), ("c", "d1", 1)]), NATIVE)
    assert scores.query_ids == ("a", "b", "c")
    for name in NATIVE:
        assert scores.values[name][1:].tolist() == [0.0, 0.0]
        assert scores.mean(name) == pytest.approx(scores.values[name][0] / 3)
    assert scores.values["RR"][0] == 1
    assert (scores.unanswered, scores.ignored) == (1, 1)


def test_queries_may_be_given_where_some_have_no_judgement():
    run = run_of([("a", "d1", 1.0)])
    scores = score(run, qrels_of([("a", "d1", 1)]), ["P@1", "Rprec"], queries=["b", "a", "c"])
    assert scores.query_ids == ("b", "a", "c")
    assert scores.values["P@1"].tolist() == [0.0, 1.0, 0.0]
    assert scores.values["Rprec"].tolist() == [0.0, 1.0, 0.0]


def test_judgements_outside_the_given_queries_are_refused():
    with pytest.raises(BenchError, match="'b' has judgements"):
        score(run_of([]), qrels_of([("b", "d1", 1)]), ["P@1"], queries=["a"])


def test_a_pair_with_two_grades_is_refused_by_name():
    qrels = qrels_of([("a", "d1", 1), ("b", "d2", 1), ("b", "d2", 0)])
    with pytest.raises(BenchError, match="'d2' for query 'b' is judged twice"):
        score(run_of([("a", "d1", 1.0)]), qrels, ["P@1"])


def test_a_repeated_judgement_counts_once():
    run = run_of([("a", "d1", 1.0)])
    once, twice = [("a", "d1", 1), ("a", "d2", 2)], [("a", "d1", 1), ("a", "d2", 2), ("a", "d2", 2)]
    for name in [*NATIVE, "Rprec"]:
        expected = score(run, qrels_of(once), [name]).mean(name)
        assert score(run, qrels_of(twice), [name]).mean(name) == expected


def test_values_have_the_canonical_name_and_the_order_that_was_asked_for():
    scores = score(run_of([]), qrels_of([("a", "d1", 1)]), ["Rprec", "MRR@10", "R@5"])
    assert list(scores.values) == ["Rprec", "RR@10", "R@5"]
    assert scores.mean("MRR@10") == scores.mean("RR@10")


@given(rows=RUNS, qrels=QRELS)
def test_at_depth_one_three_measures_are_the_same(rows, qrels):
    scores = score(run_of(rows), qrels, ["RR@1", "P@1", "Success@1"])
    assert scores.values["RR@1"].tolist() == scores.values["P@1"].tolist()
    assert scores.values["RR@1"].tolist() == scores.values["Success@1"].tolist()


@given(rows=RUNS, qrels=QRELS)
def test_recall_never_falls_with_depth(rows, qrels):
    names = [f"R@{k}" for k in range(1, 8)]
    scores = score(run_of(rows), qrels, names)
    assert (np.diff([scores.values[name] for name in names], axis=0) >= 0).all()


@given(qrels=QRELS)
def test_a_perfect_run_has_an_ndcg_of_one(qrels):
    rows = [(query, doc, float(grade)) for query, doc, grade in qrels]
    scores = score(run_of(rows), qrels, ["nDCG", "nDCG@3", "RR"])
    has_relevant = scores.values["RR"] > 0
    expected = has_relevant.astype(float)
    np.testing.assert_allclose(scores.values["nDCG"], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scores.values["nDCG@3"], expected, rtol=0, atol=1e-12)


@given(rows=RUNS, qrels=QRELS, seed=st.integers(0, 9))
def test_neither_repetition_nor_the_order_of_lines_changes_a_value(rows, qrels, seed):
    shuffled = random.Random(seed).sample(rows, len(rows))
    first, again, other = (score(run_of(lines), qrels, NATIVE) for lines in (rows, rows, shuffled))
    for name in NATIVE:
        assert first.values[name].tobytes() == again.values[name].tobytes()
        assert first.values[name].tobytes() == other.values[name].tobytes()


def orders(rows: list[Row], query: str) -> list[list[Row]]:
    """Every ranking of one query that its scores allow."""
    own = sorted((row for row in rows if row[0] == query), key=lambda row: -row[2])
    ties = [list(tie) for _, tie in itertools.groupby(own, key=lambda row: row[2])]
    choices = itertools.product(*(itertools.permutations(tie) for tie in ties))
    return [[row for tie in choice for row in tie] for choice in choices]


def untied(ranking: list[Row]) -> list[Row]:
    return [(query, doc, -float(rank)) for rank, (query, doc, _) in enumerate(ranking)]


def brute_bounds(rows: list[Row], qrels: Qrels, name: str) -> tuple[float, float]:
    """Mean of each query's lowest, and highest, value over all permutations of its ties."""
    lows, highs = [], []
    for number, query in enumerate(qrels.queries()):
        scored = (score(run_of(untied(one)), qrels, [name]) for one in orders(rows, query))
        found = [scores.values[name][number] for scores in scored]
        lows.append(min(found))
        highs.append(max(found))
    return float(np.mean(lows)), float(np.mean(highs))


@pytest.mark.parametrize("name", [*NATIVE, "Judged@2"])
@with_examples(5)
@given(
    rows=RUNS.map(lambda rows: [(q, d, min(s, 2.0)) for q, d, s in rows if d < "d4"]),
    qrels=QRELS,
)
def test_tie_bounds_are_the_extremes_over_all_permutations(name, rows, qrels):
    low, high = tie_bounds(run_of(rows), qrels, name)
    assert (low, high) == pytest.approx(brute_bounds(rows, qrels, name), abs=1e-12)
    assert low - 1e-12 <= score(run_of(rows), qrels, [name]).mean(name) <= high + 1e-12


def test_scores_that_differ_only_beyond_float32_are_a_tie():
    run = run_of([("a", "d1", 1.00000001), ("a", "d2", 1.0)])
    assert tie_bounds(run, qrels_of([("a", "d1", 1)]), "RR") == (0.5, 1.0)


def test_a_query_with_negative_grades_only_is_scored_by_every_provider():
    run = run_of([("a", "d1", 1.0), ("b", "d1", 2.0), ("b", "d2", 1.0)])
    qrels = qrels_of([("a", "d1", -2), ("b", "d1", -2), ("b", "d2", 1)])
    scores = score(run, qrels, ["Rprec", "Bpref", "infAP", "NumRet", "RR"])
    found = {name: values.tolist() for name, values in scores.values.items()}
    assert found["Rprec"] == [0.0, 0.0]
    assert found["NumRet"] == [1.0, 2.0]
    assert found["RR"] == [0.0, 0.5]
    assert found["Bpref"] == [0.0, 1.0]
    assert found["infAP"][0] == 0.0


def test_a_measure_that_its_provider_cannot_compute_is_refused_by_name():
    run, qrels = run_of([("a", "d1", 1.0)]), qrels_of([("a", "d1", 1)])
    with pytest.raises(BenchError, match="cannot compute Accuracy of this run") as error:
        score(run, qrels, ["Accuracy"])  # the share of pairs in order, where there is no pair
    assert "--measure" in error.value.hint


def test_relevance_matrix_has_the_scores_and_grades_of_each_ranking():
    run = Run.from_rows(
        ["b", "b", "b", "a", "unjudged"], ["x", "y", "z", "y", "x"], [1.0, 3.0, 2.0, 5.0, 9.0]
    )
    qrels = Qrels(("a", "b", "b", "c"), ("y", "y", "z", "x"), np.array([1, 1, 2, 2], np.int32))
    scores, relevant = relevance_matrix(run, qrels, rel=2)
    inf = np.inf
    assert scores.tolist() == [[5, -inf, -inf], [3, 2, 1], [-inf] * 3]
    assert relevant.tolist() == [[False] * 3, [False, True, False], [False] * 3]
    _, relevant = relevance_matrix(run, qrels, rel=1)
    assert relevant.tolist() == [[True, False, False], [True, True, False], [False] * 3]
