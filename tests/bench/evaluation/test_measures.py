"""Names of measures, and their values on rankings small enough to work out by hand."""

import math

import numpy as np
import pytest

from bench.evaluation.scoring import JudgedRun, evaluate_measure, list_measures, parse_measure
from foundation.errors import BenchError

# Query 0 found grades 0, 2, -1 at ranks 1, 2, 4; query 1 found nothing; both have a missed 1.
JUDGED = JudgedRun(
    queries=2,
    retrieved=np.array([4, 0]),
    hit_query=np.array([0, 0, 0]),
    hit_rank=np.array([0, 1, 3]),
    hit_grade=np.array([0, 2, -1]),
    judged_query=np.array([0, 0, 0, 0, 1]),
    judged_grade=np.array([2, 1, 0, -1, 1]),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nDCG@10", (2 / math.log2(3)) / (2 + 1 / math.log2(3))),
        ("nDCG", (2 / math.log2(3)) / (2 + 1 / math.log2(3))),
        ("nDCG@1", 0.0),
        ("R@2", 1 / 2),
        ("R(rel=2)@2", 1.0),
        ("P@5", 1 / 5),
        ("RR", 1 / 2),
        ("RR@1", 0.0),
        ("RR(rel=3)", 0.0),
        ("AP", 1 / 4),
        ("AP(rel=2)@2", 1 / 2),
        ("Success@1", 0.0),
        ("Success@2", 1.0),
        ("Judged@2", 1.0),
        ("Judged@3", 2 / 3),
        ("Judged@10", 3 / 4),
        ("Judged", 3 / 4),
    ],
)
def test_values_are_those_of_the_definition(name, expected):
    assert evaluate_measure(parse_measure(name), JUDGED) == pytest.approx(
        [expected, 0.0], abs=1e-15
    )


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("MRR@10", "RR@10"),
        ("Recall@100", "R@100"),
        ("MAP", "AP"),
        ("AP(rel=1)", "AP"),
        ("nDCG(dcg='log2')@10", "nDCG@10"),
        ("ndcg_cut_10", "nDCG@10"),
        ("map", "AP"),
        ("recip_rank", "RR"),
    ],
)
def test_an_alias_has_the_name_of_its_measure(alias, name):
    assert parse_measure(alias) == parse_measure(name)
    assert parse_measure(alias).name == name
    assert parse_measure(alias).native


@pytest.mark.parametrize("name", ["Rprec", "Bpref", "AP(rel=0)", "P(judged_only=True)@5"])
def test_other_measures_are_left_to_ir_measures(name):
    assert not parse_measure(name).native


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("ndcg@10", "nDCG@10?"), ("nDGC@10", "nDCG@10"), ("recall@100", "R@100?"), ("P", "P@10?")],
)
def test_a_misspelt_measure_is_refused_with_a_suggestion(name, suggestion):
    with pytest.raises(BenchError, match="no measure") as caught:
        parse_measure(name)
    assert f"did you mean {suggestion}" in caught.value.hint
    assert "python -m bench list measures" in caught.value.hint


@pytest.mark.parametrize("name", ["", "nDCG@", "nDCG@10.5", "nDCG(k=3)", "no such", "10", "a\0"])
def test_an_unknown_measure_is_refused(name):
    with pytest.raises(BenchError, match="no measure") as caught:
        parse_measure(name)
    assert "list measures" in caught.value.hint


@pytest.mark.parametrize("name", ["P@0", "nDCG@0", "P@True"])
def test_a_cutoff_below_one_is_refused(name):
    with pytest.raises(BenchError, match="cutoff"):
        parse_measure(name)


def test_a_measure_that_no_provider_computes_is_refused_at_once():
    with pytest.raises(BenchError, match="not installed"):
        parse_measure("nDCG(dcg='exp-log2')@10")


def test_listed_measures_come_with_titles_native_ones_first():
    names = list_measures()
    assert next(iter(names)) == "nDCG@k"
    assert names["Rprec"]
    assert all(parse_measure(name.replace("@k", "@10")).native for name in names if "@" in name)
