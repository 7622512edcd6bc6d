"""Reports of a check: parsed back, with names that would break them."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec import structs

from bench.comparing.pairs import FieldDifference
from bench.comparing.statistics import Resampling, ScoreMatrix, paired_difference
from bench.gate.candidate import Candidate, check_published
from bench.gate.check_record import Check, CheckRow, LostQuery, Reason
from reports.check import junit, markdown, verdict_paragraph
from retrievers.models.card import ExpectedScore
from tests.support.markdown import numbers
from tests.support.results import evaluation

AWKWARD = "a|b<script>`x`</script>&*\x00"


def some_paired(by: float, count: int = 40):
    scores = np.r_[np.full(count, by), np.zeros(60)][:, None]
    return paired_difference([ScoreMatrix("", "", {"a": 0}, scores, Resampling(199)).minus("a")])


def row(name: str, **fields: object) -> CheckRow:
    known = {
        "measure": "RR@10",
        "mean_a": 0.5,
        "mean_b": 0.54,
        "paired": some_paired(-0.1),
        "bound": 0.02,
    }
    return CheckRow(on=name, **{**known, **fields})


ROWS = (
    row("beir/scifact"),
    row(AWKWARD, failure=f"{AWKWARD} lost 0.1"),
    row("gone", mean_a=None, mean_b=None, paired=None, missing=("no result",)),
    row("few", paired=some_paired(0.1, 3)),
)


@pytest.fixture
def check() -> Check:
    return Check(
        candidate=AWKWARD,
        baseline=AWKWARD,
        outcome="REGRESSION",
        reasons=(Reason(f"{AWKWARD} lost 0.1"),),
        rows=ROWS,
        mean=row("mean"),
        margin=0.01,
        floor=0.1,
        recipes=(FieldDifference("pooling", "cls", AWKWARD),),
        warnings=("blind",),
    )


def test_junit_has_a_test_case_for_each_collection_the_mean_and_the_outcome(check):
    (suite,) = ElementTree.fromstring(junit(check).encode())
    found = suite.findall("testcase")
    cases = {case.get("name"): [child.tag for child in case] for case in found}
    assert cases == {
        "beir/scifact": ["system-out"],
        AWKWARD.replace("\x00", "\\u0000"): ["failure", "system-out"],
        "gone": ["error"],
        "few": ["system-out"],
        "mean": ["system-out"],
        "outcome": ["failure", "system-out", "system-err"],
    }
    assert suite.findtext("testcase/system-err") == "warning: blind"
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors")}
    assert counts == {"tests": "6", "failures": "2", "errors": "1"}


def test_junit_names_measures_apart_where_a_collection_has_several():
    claims = [("one", "RR@10", 0.5), ("one", "R@100", 0.75), ("two", "RR@10", 0.5)]
    expected = [ExpectedScore(dataset=a, measure=b, value=c, source="paper") for a, b, c in claims]
    measured = {"one": {"RR@10": 0.5, "R@100": 0.7}, "two": {"RR@10": 0.5}}
    stored = {
        name: evaluation({key: np.array([value]) for key, value in own.items()}, ["q"])
        for name, own in measured.items()
    }
    done = check_published(Candidate("mine", stored), expected, ["one", "two"])
    (suite,) = ElementTree.fromstring(junit(done).encode())
    cases = suite.findall("testcase")
    names = [case.get("name") for case in cases]
    assert names == ["one RR@10", "one R@100", "two", "outcome"]
    failed = [case.get("name") for case in cases if case.find("error") is not None]
    assert failed == ["one R@100", "outcome"]


@pytest.mark.parametrize(
    ("outcome", "code", "kind"),
    [
        ("REGRESSION", "1", "failure"),
        ("DRIFT", "5", "error"),
        ("MISSING", "4", "error"),
        ("INCONCLUSIVE", "3", "failure"),
    ],
)
def test_junit_tells_outcomes_apart_by_kind_type_and_message(check, outcome, code, kind):
    text = junit(structs.replace(check, outcome=outcome, reasons=(Reason("because"),)))
    (suite,) = ElementTree.fromstring(text.encode())
    (case,) = [case for case in suite.iter("testcase") if case.get("name") == "outcome"]
    note = case[0]
    assert (note.tag, note.get("type")) == (kind, outcome)
    assert note.get("message") == note.text == f"{outcome}: because"
    assert {one.get("name"): one.get("value") for one in suite.iter("property")} == {
        "outcome": outcome,
        "exit_code": code,
    }


def test_markdown_says_the_outcome_first_then_the_verdict_then_the_rule(check):
    text = markdown(check)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {4, 5, 9}
    assert "<script>" not in text
    assert not re.search(r"(?<!\\)`", text)
    heading, sentence, *_ = text.split("\n\n")
    assert heading.startswith("## REGRESSION: ")
    assert {"0.5400", "0.5000"} <= set(numbers(sentence))
    before, after = text.split("### How it was decided")
    for term in ("randomisation", "p (Holm)", "not ruled out", "Gaffke", "(the margin)"):
        assert term in after
        assert term not in before
    assert "| pooling" in before


def verdict(check: Check, **changed: object) -> str:
    """Return the paragraph of a verdict with other fields."""
    return verdict_paragraph(structs.replace(check, **changed))


SOME = structs.replace(ROWS[0], measure="nDCG@10")
LOST = LostQuery(collection="beir/scifact", query_id="7", text="a *b*", candidate=0, baseline=1)


def test_a_verdict_of_one_collection_names_models_scores_and_what_is_ruled_out(check):
    named = structs.replace(check, candidate="new")
    one = {"rows": (SOME,), "mean": None, "baseline": "old"}
    scores, worst = verdict(named, **one, worst=(LOST,)).split(". ")
    assert scores.startswith("new ")
    assert all(word in scores for word in ("baseline, old", "nDCG@10", "beir/scifact"))
    assert numbers(scores) == ["0.5400", "0.5000", "-0.0400", "100"]
    assert worst.endswith("7 “a *b*” 1.00 → 0.00.")
    ruled_out = verdict(named, **one, outcome="OK").split(". ")[1]
    assert numbers(ruled_out) == ["0.0200", "95"]
    gained = {**one, "rows": (structs.replace(SOME, bound=-0.01),), "reasons": ()}
    margin, sure = verdict(named, **gained, outcome="OK").split(". ")
    assert numbers(margin)[0] == "0.0100"
    assert numbers(sure) == ["0.0100", "95"]
    assert "gain" in sure


def test_a_passed_check_tells_the_losses_that_it_allows_whatever_a_collection_is_called(check):
    proof = Reason("a loss of more than 0.0200 on we lost it is ruled out", "we lost it")
    allowed = Reason("we lost it lost 0.0100 (p 0.01): allowed", "we lost it", loss=0.01, p=0.01)
    said = verdict(check, outcome="OK", reasons=(proof, allowed))
    assert allowed.what in said
    assert proof.what not in said


@pytest.mark.parametrize("outcome", ["REGRESSION", "DRIFT", "INCONCLUSIVE", "MISSING"])
def test_no_outcome_but_ok_reassures(check, outcome):
    said = verdict(check, outcome=outcome, worst=(LOST,))
    assert not re.search("ruled out|is sure|no loss", said)


def test_the_scores_of_the_baseline_are_only_equal_ones(check):
    same = structs.replace(check, margin=None, floor=None, tolerance=0.0005)
    equal = structs.replace(SOME, paired=some_paired(0.0))
    assert "has exactly the scores of" in verdict(same, outcome="OK", rows=(equal,), mean=None)
    assert "within the tolerance: nDCG" in verdict(same, outcome="OK", rows=(SOME,), mean=None)


def test_a_verdict_of_several_collections_has_the_mean_and_those_that_lost(check):
    rows = (SOME, structs.replace(SOME, on="two", failure="two lost 0.1"))
    other = structs.replace(LOST, collection="two", text="")
    mean, lost, worst, *rest = re.split(
        r"\. (?=[A-Z])", verdict(check, rows=rows, worst=(LOST, other))
    )
    assert not rest
    assert numbers(mean) == ["0.5400", "0.5000", "-0.0400", "200"]
    assert mean.endswith("over beir/scifact, two (200 queries)")
    assert "two, nDCG@10" in lost
    assert numbers(lost) == ["0.5400", "0.5000", "-0.0400"]
    assert numbers(worst) == ["7", "1.00", "0.00"] * 2


def test_a_verdict_names_what_is_missing_and_rules_nothing_out(check):
    gone = verdict(check, outcome="MISSING", rows=(SOME, ROWS[2]), mean=None)
    *_, missing = gone.split(". ")
    assert missing.endswith("gone: no result.")
    assert "95" not in numbers(gone)
