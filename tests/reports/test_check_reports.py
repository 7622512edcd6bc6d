"""Reports of a check: parsed back, with names that would break them."""

from xml.etree import ElementTree

import numpy as np
import pytest

from bench.decisions.check import Against, Check, Row
from bench.decisions.foresight import Foreseen
from bench.decisions.statistics import Differences, Resampling, paired, resample
from reports.check_junit import junit
from reports.check_reports import markdown, plain

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
        foreseen=(Foreseen(AWKWARD, 300, 0.2, "a guess", 0.03),),
        warnings=("blind",),
    )


def test_junit_has_a_test_case_for_each_collection_the_mean_and_the_outcome(check):
    (suite,) = ElementTree.fromstring(junit(check).encode())
    found = suite.findall("testcase")
    cases = {case.get("name"): [child.tag for child in case] for case in found}
    assert cases == {
        "beir/scifact": [],
        AWKWARD.replace("\x00", "\ufffd"): ["failure"],
        "gone": ["error"],
        "few": ["skipped"],
        "mean": [],
        "outcome": ["failure"],
    }
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "6", "failures": "2", "errors": "1", "skipped": "1"}


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_header(check):
    text = markdown(check)
    rows = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert sorted(set(rows)) == [6, 12]
    assert "<script>" not in text
    assert "`" not in text


def test_markdown_says_the_outcome_first_and_the_margin(check):
    text = markdown(check)
    assert text.startswith("## REGRESSION: ")
    assert "beyond 0.0200 are ruled out" in text
    assert "no result" in text


def test_plain_text_stays_on_one_line_and_keeps_its_words():
    assert plain("one\n two") == "one two"
    assert plain("a|b") == "a&#124;b"
