"""The report of ways to learn a sequence, from a record."""

import csv
import io

import msgspec
import pytest

from bench.compare.statistics import Paired, Resampling
from bench.compare.transfer import Forgetting
from bench.compare.transfer import Row as Checkpoint
from bench.experiments.sequence.comparing import Compared, Row
from bench.monitor.quality_curve import Level
from reports.sequence_tables import comma_separated, markdown, plan
from tests.support.leaderboards import result_of


def paired(difference: float, p: float = 0.5) -> Paired:
    limits = {"low": difference - 0.01, "high": difference + 0.01}
    counts = {"wins": 1, "ties": 2, "losses": 3}
    others = {"exact": False, "effect": None, "detectable": None}
    return Paired(difference=difference, p=p, **limits, **counts, **others)


def level(value: float) -> Level:
    return Level(value, value - 0.02, value + 0.02)


def row(method: str, value: float, p_holm: float | None, forgotten: float | None) -> Row:
    levels = {"bio": level(value), "a|b": level(value)}
    forgetting = Forgetting(
        measure="nDCG@10",
        rows=(Checkpoint(f"{method}-1", levels), Checkpoint(f"{method}-2", levels)),
        base="",
        trained=("bio", "a|b"),
        also=(),
        queries={"bio": 40, "a|b": 30},
        average=level(value),
        backward=None,
        forward=None,
        kept=None,
        resampling=Resampling(),
    )
    return Row(
        method=method,
        settings="settings",
        after=levels,
        average=level(value),
        gained=paired(0.03),
        forgotten=None if forgotten is None else paired(forgotten),
        against=None if p_holm is None else paired(-0.04, p_holm),
        p_holm=p_holm,
        losses={"bio": value + 2, "a|b": value + 3},
        seconds=12.6,
        forgetting=forgetting,
    )


@pytest.fixture
def found() -> Compared:
    rows = (
        row("plain", 0.3, None, -0.05),
        row("ewc", 0.2, 0.01, -0.01),
        row("apart", 0.31, 0.9, None),
    )
    return Compared(
        name="two",
        title="Two domains",
        measure="nDCG@10",
        domains=("bio", "a|b"),
        also=(),
        queries={"bio": 40, "a|b": 30},
        base="start",
        before={"bio": level(0.25), "a|b": level(0.26)},
        before_average=level(0.255),
        rows=rows,
        trained="mlm-small from start",
        command="python -m bench continual two",
        conditions=result_of("start", "bio").conditions,
        resampling=Resampling(),
    )


def test_the_table_has_the_start_and_each_method(found):
    lines = markdown(found).splitlines()
    table = [
        line for line in lines if line.startswith(("| start", "| plain ", "| ewc ", "| apart "))
    ]
    assert "0.2550 (0.2350 to 0.2750)" in table[0]
    assert "0.3000 (0.2800 to 0.3200)" in table[1]
    assert all(line.count("|") - line.count("\\|") == 5 for line in table[:4])


def test_what_could_not_be_separated_and_what_one_training_cannot_say_is_said(found):
    text = markdown(found, ["plain"])
    assert "Separated from plain at 5 %: ewc." in text
    assert "Could not be separated from plain: apart." in text
    assert "One training of each" in text
    assert "kept apart" in text
    assert "![plain](plain.svg)" in text
    assert "![ewc]" not in text


def test_a_collection_that_is_not_the_published_one_is_marked(found):
    assert "not the published" not in markdown(found)
    marked = msgspec.structs.replace(found, unofficial=("bio",))
    assert "**This is not the published bio.**" in markdown(marked)


def test_the_csv_has_all_figures_unrounded(found):
    rows = list(csv.DictReader(io.StringIO(comma_separated(found))))
    against = [one for one in rows if one["kind"] == "against"]
    assert [(one["method"], float(one["p_holm"])) for one in against] == [
        ("ewc", 0.01),
        ("apart", 0.9),
    ]
    assert [one["method"] for one in rows if one["kind"] == "forgotten"] == ["plain", "ewc"]
    mean = [one for one in rows if one["collection"] == "mean" and one["kind"] == "after"]
    assert [float(one["value"]) for one in mean] == [0.255, 0.3, 0.2, 0.31]


def test_what_was_learnt_of_each_domain_stands_beside_what_was_kept(found):
    _, _, gained = markdown(found).partition("## What was gained and forgotten")
    lines = [line.split("|") for line in gained.splitlines() if line.startswith("|")][:5]
    assert [line[-3].strip() for line in (lines[0], *lines[2:])] == [
        "MLM loss",
        "2.800",
        "2.700",
        "2.810",
    ]
    rows = csv.DictReader(io.StringIO(comma_separated(found)))
    losses = [(one["collection"], one["value"]) for one in rows if one["kind"] == "mlm loss"]
    assert losses[:2] == [("bio", "2.3"), ("a|b", "3.3")]


def test_a_plan_says_how_much_is_to_do():
    text = plan({"plain": "nothing", "ewc": "EWC"}, {"bio": 1000, "law": 500}, "mlm-small", 2)
    assert "4 trainings; 7,500 documents to encode" in text
