"""Bounds over all labels of unjudged documents are those of trying each labeling."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.comparing.holes import HoleTable, tabulate_holes
from bench.comparing.settling import (
    estimate_relevance,
    examine_holes,
    expected_effects,
    find_not_pooled,
    find_verdicts,
    is_certain,
)
from bench.evaluation.runs import Run
from bench.evaluation.scoring import DEFINITIONS, list_measures, parse_measure, score
from datasets_cfg.readers.reader import Qrels
from foundation.errors import BenchError
from tests.support.examples import with_examples

DOCUMENTS = [f"d{number}" for number in range(8)]
COPIES = {"d5": "x", "d6": "x", "d7": "x"}  # three documents with one text
MEASURES = ("nDCG@3", "nDCG", "R@4", "R(rel=2)@4", "P@3", "RR", "RR(rel=2)@3", "Success@2")


def make_run(rankings: dict[str, list[str]]) -> Run:
    rows = [(q, doc, -float(rank)) for q, docs in rankings.items() for rank, doc in enumerate(docs)]
    return Run.from_rows(*zip(*rows, strict=True))


def make_qrels(rows: list[tuple[str, str, int]]) -> Qrels:
    queries, documents, grades = zip(*rows, strict=True)
    return Qrels(queries, documents, np.array(grades, np.int32))


rankings = st.lists(st.sampled_from(DOCUMENTS), min_size=1, max_size=5, unique=True)
judgements = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 3), min_size=1, max_size=4)


def check_every_labeling(a: list[str], b: list[str], grades: dict[str, int], measure: str) -> None:
    by_text = {COPIES.get(doc, doc): grade for doc, grade in grades.items()}
    known = {doc: by_text[COPIES.get(doc, doc)] for doc in grades}  # copies agree
    runs = (make_run({"q": a}), make_run({"q": b}))
    qrels = make_qrels([("q", *pair) for pair in known.items()])
    table = tabulate_holes(runs, qrels, measure, COPIES)
    depth = table.measure.cutoff
    retrieved = {*a[:depth], *b[:depth]}
    copied = {
        doc: by_text[COPIES[doc]]
        for doc in retrieved & COPIES.keys() - known.keys()
        if COPIES[doc] in by_text
    }
    differences = []
    possible = sorted({0, *table.levels.tolist()})
    for labels in itertools.product(possible, repeat=len(table.holes)):
        of_holes = {
            doc: label
            for label, hole in zip(labels, table.holes, strict=True)
            for doc in table.documents[hole]
        }
        every = make_qrels([("q", *pair) for pair in {**known, **copied, **of_holes}.items()])
        name = table.measure.name
        expected = [score(run, every, [name]).values[name][0] for run in runs]
        found = table.scores(np.array([labels], dtype=np.int64).reshape(1, -1))
        np.testing.assert_allclose(found[:, 0, 0], expected, atol=1e-12)
        differences.append(expected[0] - expected[1])
    for hole, found_alone in enumerate(table.differences_if_relevant()):
        alone = np.zeros((1, len(table.holes)), dtype=np.int64)
        alone[0, hole] = table.levels[0]
        assert found_alone == pytest.approx(table.differences(alone)[0, 0], abs=1e-12)
    low, high, exact = table.bounds()
    assert exact
    np.testing.assert_allclose([low[0], high[0]], [min(differences), max(differences)], atol=1e-10)


@with_examples(20)
@given(a=rankings, b=rankings, grades=judgements, measure=st.sampled_from(MEASURES))
def test_scores_and_bounds_are_those_of_every_labeling(a, b, grades, measure):
    check_every_labeling(a, b, grades, measure)


def test_every_native_measure_is_tested_here_or_refused():
    run = make_run({"q": ["d1"]})
    native = {name.removesuffix("@k") for name in list_measures() if name.endswith("@k")}
    assert all(parse_measure(f"{kind}@5").native for kind in native)
    assert native >= DEFINITIONS.keys()
    assert {re.split(r"[@(]", name)[0] for name in MEASURES} == set(DEFINITIONS)
    for kind in native - DEFINITIONS.keys():
        with pytest.raises(BenchError, match=f"no bounds of {kind}@5 over unknown labels"):
            tabulate_holes((run, run), make_qrels([("q", "d2", 1)]), f"{kind}@5")


def many_queries(queries: int = 60) -> HoleTable:
    """a finds the relevant document of each query first, b second; others are not judged."""
    names = [f"q{number:02}" for number in range(queries)]
    a = make_run({name: ["good", "x", "y"] for name in names})
    b = make_run({name: ["z", "good", "x"] for name in names})
    qrels = make_qrels([(name, "good", 1) for name in names] + [(n, "bad", 0) for n in names])
    return tabulate_holes((a, b), qrels, "RR@3")


def test_the_verdict_test_agrees_with_the_exact_randomisation_test():
    rng = np.random.default_rng(0)
    for shift in np.linspace(-0.8, 0.8, 9):
        d = rng.normal(shift, 1, 12)
        signs = np.array(list(itertools.product([-1, 1], repeat=12)))
        p = float(np.mean(np.abs(signs @ d) >= abs(d.sum()) - 1e-12))
        if abs(p - 0.05) > 0.02:
            assert find_verdicts(d[None])[0] == np.sign(d.sum()) * (p <= 0.05)


@pytest.mark.parametrize("width", [0.0, 0.05, 0.2, 0.6])
@pytest.mark.parametrize("mean", [-0.5, 0.0, 0.02, 0.4])
def test_a_certain_verdict_holds_for_the_worst_labels_that_a_search_finds(width, mean):
    rng = np.random.default_rng(1)
    middle = rng.normal(mean, 0.3, 100)
    low, high = middle - width * rng.random(100), middle + width * rng.random(100)
    z = 1.959964
    drawn = np.where(rng.random((3000, 100)) < rng.random((3000, 1)), low, high)
    drawn = np.concatenate([drawn, [low], [high], [middle]])
    statistic = drawn.sum(axis=1) / np.linalg.norm(drawn, axis=1)
    verdict = int(find_verdicts(middle[None])[0])
    if is_certain(low, high, verdict):
        assert (np.sign(statistic) * (np.abs(statistic) >= z) == verdict).all()
    elif width == 0:
        raise AssertionError("there is nothing to label")


def test_a_clear_difference_is_settled_and_a_close_one_is_open():
    table = many_queries()
    assert examine_holes(table, "a", "b").outcome in ("probably", "open")
    runs = make_run({f"q{n}": ["good"] for n in range(60)}), make_run({"q0": ["bad"]})
    clear = make_qrels(
        [(f"q{n}", doc, int(doc == "good")) for n in range(60) for doc in ("good", "bad")]
    )
    found = examine_holes(tabulate_holes(runs, clear, "nDCG@10"), "a", "b")
    assert (found.outcome, found.low, found.high, found.holes) == ("settled", 1, 1, 0)
    assert found.warnings[-2:] == (
        "a has fewer than 10 documents for 60 queries",
        "b has fewer than 10 documents for 60 queries",
    )


def test_the_effect_of_a_hole_is_the_change_of_the_statistic_times_its_chance():
    names = [f"q{number}" for number in range(30)]
    a = make_run({name: [f"a{rank}" for rank in range(3)] for name in names})
    b = make_run({name: [f"b{rank}" for rank in range(3)] for name in names})
    known = [(name, doc, n % 2) for n, name in enumerate(names) for doc in ("a0", "b1", "b2")]
    qrels = make_qrels([row for row in known if row[:2] != ("q3", "b1")] + [("q3", "c", 0)])
    qrels = make_qrels([*qrels, *[(name, doc, 0) for name in names for doc in ("a1", "b0")]])
    qrels = make_qrels([row for row in qrels if row[1] != "a2"] + [(n, "a2", 1) for n in names])
    table = tabulate_holes((a, b), qrels, "nDCG@3")
    assert [table.documents[hole] for hole in table.holes] == [("b1",)]
    chance, _ = estimate_relevance(table)
    effects = expected_effects(table, chance)
    statistics = []
    for label in (0, 1):
        (d,) = table.differences(np.array([[label]]))
        statistics.append(d.sum() / np.sqrt((d**2).sum()))
    assert effects[0] == pytest.approx(chance[0] * abs(statistics[1] - statistics[0]))


def simulated(seed: int = 0) -> tuple[dict[tuple[str, str], int], Run]:
    """Grades of a ranking, whose chance of relevance falls with the rank and varies by query."""
    rng = np.random.default_rng(seed)
    names = [f"q{number}" for number in range(400)]
    ranking = {name: [f"{name}-{rank}" for rank in range(10)] for name in names}
    ease = dict(zip(names, rng.normal(0, 1.5, len(names)), strict=True))
    grades = {
        (name, doc): int(rng.random() < 1 / (1 + np.exp(1.2 * np.log2(rank + 2) - 2 - ease[name])))
        for name in names
        for rank, doc in enumerate(ranking[name])
    }
    return grades, make_run(ranking)


def test_estimated_relevance_is_calibrated_by_rank_and_by_query():
    truth, run = simulated()
    rng = np.random.default_rng(1)
    qrels = make_qrels([(*pair, grade) for pair, grade in truth.items() if rng.random() < 0.5])
    table = tabulate_holes((run, run), qrels, "nDCG@10")
    chance = estimate_relevance(table)[0]
    rank = table.rank[0, table.holes]
    others = table.known[1][0][table.query[table.holes]]
    for some in (rank == 1, rank <= 3, rank >= 4, others == 0, others >= 3):
        actual = np.mean(
            [
                truth[table.query_ids[table.query[hole]], table.documents[hole][0]]
                for hole in table.holes[some]
            ]
        )
        assert chance[some].mean() == pytest.approx(actual, abs=0.06)
    assert chance[others >= 3].mean() > chance[others == 0].mean() + 0.2


def two_models(chances: tuple[float, float]) -> tuple[tuple[Run, Run], dict]:
    """Rankings without a common document, relevant with a ``chance`` that depends on the model."""
    rng = np.random.default_rng(3)
    names = [f"q{number}" for number in range(200)]
    docs = [
        {name: [f"{name}-{side}-{rank}" for rank in range(5)] for name in names} for side in "ab"
    ]
    grades = {
        (name, doc): int(rng.random() < chance)
        for ranking, chance in zip(docs, chances, strict=True)
        for name in names
        for doc in ranking[name]
    }
    return (make_run(docs[0]), make_run(docs[1])), grades


def test_holes_of_the_model_whose_judged_documents_are_relevant_more_often_are_so_too():
    runs, truth = two_models((0.4, 0.1))
    rng = np.random.default_rng(4)
    qrels = make_qrels([(*pair, grade) for pair, grade in truth.items() if rng.random() < 0.5])
    table = tabulate_holes(runs, qrels, "nDCG@5")
    chance = estimate_relevance(table)[0]
    for side, actual in enumerate((0.4, 0.1)):
        assert chance[table.side[table.holes] == side].mean() == pytest.approx(actual, abs=0.05)


@pytest.mark.parametrize("agreed", [0.0, 0.8])
def test_a_model_outside_the_pool_counts_like_the_other_if_they_agree_on_what_is_relevant(agreed):
    rng = np.random.default_rng(5)
    names = [f"q{number}" for number in range(200)]
    both = {name: [f"{name}-{rank}" for rank in range(2)] for name in names}
    rankings = [
        {n: both[n] + [f"{n}-{side}-{r}" for r in range(3)] for n in names} for side in "ab"
    ]
    listed = [(n, doc, 1) for n in names for doc in both[n] if rng.random() < agreed]
    alone = [(n, doc, 1) for n in names for doc in rankings[0][n][2:] if rng.random() < 0.3]
    qrels = make_qrels([*listed, *alone])
    table = tabulate_holes((make_run(rankings[0]), make_run(rankings[1])), qrels, "nDCG@5")
    chance = estimate_relevance(table)[0][table.side[table.holes] == 1].mean()
    assert chance > 0.2 if agreed else chance < 0.2


def test_imported_judgements_correct_the_assumed_number_of_hidden_relevant_documents():
    truth, run = simulated()
    rng = np.random.default_rng(1)
    listed = [(*pair, 1) for pair, grade in truth.items() if grade and rng.random() < 0.5]
    judged = [(*pair, grade) for pair, grade in truth.items() if (*pair, 1) not in listed]
    judged = [judged[row] for row in rng.permutation(len(judged))[:100]]
    means = []
    for imported in (0, len(judged)):
        qrels = make_qrels([*listed, *judged[:imported]])
        table = tabulate_holes((run, run), qrels, "nDCG@10", imported=imported)
        means.append(estimate_relevance(table)[0].mean())
    actual = np.mean([grade for _, _, grade in judged])
    assert means[0] < actual / 2  # half of the relevant documents are hidden, not 3 of 13
    assert means[1] == pytest.approx(actual, rel=0.35)


def test_a_ranking_that_was_pooled_alone_is_found():
    names = [f"q{number}" for number in range(40)]
    a = make_run({name: [f"a{rank}" for rank in range(10)] for name in names})
    b = make_run({name: [f"b{rank}" for rank in range(10)] for name in names})
    only_a = make_qrels([(name, "a3", 1) for name in names])
    both = make_qrels([(name, doc, 1) for name in names for doc in ("a3", "b4")])
    for runs, side in (((a, b), 1), ((b, a), 0)):
        table = tabulate_holes(runs, only_a, "nDCG@10")
        np.testing.assert_array_equal(find_not_pooled(table), table.side == side)
        (warning,) = examine_holes(table, "one", "two").warnings
        assert warning.startswith(("one", "two")[1 - side])
    assert not find_not_pooled(tabulate_holes((a, b), both, "nDCG@10")).any()
