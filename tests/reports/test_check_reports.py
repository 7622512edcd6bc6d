"""Reports of a check: parsed back, with names that would break them."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec import structs

from bench.compare.statistics import Differences, Resampling, paired, resample
from bench.gate.check import Against, Check, Row, Terms, conclude
from bench.gate.power import DetectableEffect
from bench.gate.published import check_published
from bench.gate.quick import Look, Quick, relation
from bench.gate.speed_check import Pace, SpeedCheck
from bench.gate.subset import Subset
from bench.speed.records import Spread
from reports.check_junit import junit
from reports.check_reports import markdown
from reports.markdown import plain
from retrievers.models.card import Expected

AWKWARD = "a|b<script>`x`</script>&*\x00"


def some_paired(by: float, count: int = 40):
    scores = np.r_[np.full(count, by), np.zeros(60)]
    drawn = resample(scores[:, None], Resampling(199))
    return paired([Differences(scores, drawn.bootstrap[:, 0], drawn.flipped[:, 0])])


def row(name: str, **fields: object) -> Row:
    known = {"measure": "RR@10", "candidate": 0.5, "baseline": 0.6, "paired": some_paired(-0.1)}
    return Row(name=name, **{**known, **fields})


ROWS = (
    row("beir/scifact"),
    row(AWKWARD, failure=f"{AWKWARD} lost 0.1"),
    row("gone", candidate=None, baseline=None, paired=None, missing="no result"),
    row("few", paired=some_paired(0.1, 3)),
)


@pytest.fixture
def check() -> Check:
    against = Against(
        role="baseline",
        name=AWKWARD,
        outcome="REGRESSION",
        reasons=(f"{AWKWARD} lost 0.1",),
        rows=ROWS,
        mean=row("mean"),
        largest_loss=0.02,
    )
    return Check(
        candidate=AWKWARD,
        outcome="REGRESSION",
        exit_code=1,
        reasons=(f"{AWKWARD} lost 0.1",),
        rule="margin",
        margin=0.01,
        floor=0.1,
        tolerance=None,
        against=(against,),
        foreseen=(DetectableEffect(AWKWARD, 300, 0.2, "a guess", 0.03),),
        warnings=("blind",),
    )


def test_junit_has_a_test_case_for_each_collection_the_mean_and_the_outcome(check):
    (suite,) = ElementTree.fromstring(junit(check).encode())
    found = suite.findall("testcase")
    cases = {case.get("name"): [child.tag for child in case] for case in found}
    assert cases == {
        "beir/scifact": [],
        AWKWARD.replace("\x00", "\\u0000"): ["failure"],
        "gone": ["error"],
        "few": ["skipped"],
        "mean": [],
        "outcome": ["failure"],
    }
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "6", "failures": "2", "errors": "1", "skipped": "1"}


def test_junit_names_measures_apart_where_a_collection_has_several():
    claims = [("one", "RR@10", 0.5), ("one", "R@100", 0.75), ("two", "RR@10", 0.5)]
    expected = [Expected(dataset=a, measure=b, value=c, source="paper") for a, b, c in claims]
    measured = {"one": {"RR@10": 0.5, "R@100": 0.7}, "two": {"RR@10": 0.5}}
    against = check_published(measured, expected, {}, ["one", "two"])
    done = conclude("mine", [against], (), Terms(expect_same=True))

    (suite,) = ElementTree.fromstring(junit(done).encode())

    cases = suite.findall("testcase")
    names = [case.get("name") for case in cases]
    assert names == ["one RR@10", "one R@100", "two", "outcome"]
    assert [case.get("name") for case in cases if len(case)] == ["one R@100", "outcome"]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("REGRESSION", "failure"),
        ("DRIFT", "error"),
        ("MISSING", "error"),
        ("INCONCLUSIVE", "skipped"),
    ],
)
def test_junit_tells_outcomes_apart_by_kind_type_and_message(check, outcome, kind):
    one = structs.replace(check.against[0], outcome=outcome, reasons=("because",))
    text = junit(structs.replace(check, outcome=outcome, exit_code=9, against=(one,)))
    (suite,) = ElementTree.fromstring(text.encode())
    (case,) = [case for case in suite.iter("testcase") if case.get("name") == "outcome"]
    (note,) = case
    assert (note.tag, note.get("type")) == (kind, outcome)
    assert note.get("message") == note.text == f"{outcome}: because"
    assert {one.get("name"): one.get("value") for one in suite.iter("property")} == {
        "outcome": outcome,
        "exit_code": "9",
    }


def test_speed_has_a_table_and_test_cases(check):
    fast = pace("encoding", 1.01, "OK")
    slow = pace("answering", 1.5, "REGRESSION")
    speed = SpeedCheck(
        baseline=AWKWARD,
        slower=1.1,
        collection="beir/scifact",
        rows=100,
        processor="any",
        load=0.5,
        paces=(fast, slow),
        outcome="REGRESSION",
        reasons=("answering takes 1.50 times as long",),
    )
    told = structs.replace(check, speed=speed)
    assert "### Speed: REGRESSION" in markdown(told)
    assert "1.500" in markdown(told)
    _, suite = ElementTree.fromstring(junit(told).encode())
    assert suite.get("failures") == "1"
    assert [child.tag for case in suite for child in case] == ["failure"]


def pace(what: str, slowdown: float, outcome: str) -> Pace:
    seconds = Spread.of([1.0, 1.1])
    return Pace(
        what=what,
        unit="ms",
        candidate_rate=1.0,
        baseline_rate=1.0,
        candidate_s=seconds,
        baseline_s=seconds,
        slowdown=slowdown,
        low=slowdown,
        high=slowdown,
        outcome=outcome,
    )


LOOK = Look(
    time="2030-01-01T00:00:00+00:00",
    candidate=AWKWARD,
    baseline="old",
    candidate_fingerprint="a",
    baseline_fingerprint="b",
    collection="one",
    protocol="p",
    measure="RR@10",
    documents=10,
    of=100,
    seed=0,
    difference=0.03,
    low=-0.01,
    high=0.05,
    full=0.01,
)


def test_a_first_look_says_whom_it_favours_and_how_looks_related_to_full_checks(check):
    subset = Subset(
        collection=AWKWARD,
        documents=10,
        of=100,
        judged=3,
        hard=5,
        random=2,
        depth=10,
        pooled=("bm25 1", "old 2"),
        seed=0,
    )
    new = structs.replace(check, quick=Quick(300.0, (subset,), (), None))
    assert "favour the candidate" in markdown(new)
    assert "No first look has a full result yet" in markdown(new)
    old = structs.replace(check, quick=Quick(300.0, (subset,), (LOOK,), relation([LOOK])))
    assert "look minus full was +0.0200 on average" in markdown(old)
    assert "+0.0100" in markdown(structs.replace(check, looks=(LOOK,)))
    assert "<script>" not in markdown(old)


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_header(check):
    text = markdown(check)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {6, 12}
    assert "<script>" not in text
    assert not re.search(r"(?<!\\)`", text)


def test_markdown_says_the_outcome_first_and_the_margin(check):
    text = markdown(check)
    assert text.startswith("## REGRESSION: ")
    assert "beyond 0.0200 are ruled out" in text
    assert "no result" in text


def test_plain_text_stays_on_one_line_and_keeps_its_words():
    assert plain("one\n two") == "one two"
    assert plain("a|b") == "a\\|b"
