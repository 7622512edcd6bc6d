"""Names of measures, and their values on rankings small enough to work out by hand."""

import pytest

from bench.evaluation.scoring import parse_measure
from foundation.errors import BenchError


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
    assert f"Did you mean {suggestion}" in caught.value.hint
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
