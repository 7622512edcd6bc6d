"""Tables of comparisons are well-formed Markdown that show what qualifies a figure."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.compare.changed import ChangedQuery, Changes, JudgedDocument, RankedDocument
from bench.compare.compare import Comparison, OnCollection, OnSuite
from bench.compare.panels import Difference
from bench.compare.statistics import Paired, Resampling
from foundation.printable import printable
from reports.compare_tables import changes_table, comparison_table, legend

PAIRED = Paired(
    difference=-0.01234,
    low=-0.03,
    high=0.005,
    p=0.1234,
    exact=False,
    wins=1000,
    ties=2000,
    losses=1100,
    effect=-0.053,
    detectable=0.0212,
)
ROW = OnCollection(
    collection="beir/tiny",
    measure="nDCG@10",
    queries=4100,
    mean_a=0.5,
    mean_b=0.51234,
    in_domain_a=False,
    in_domain_b=False,
    official=True,
    paired=PAIRED,
    p_holm=0.2468,
    verdict="neither",
    missing=(),
    protocol=(),
    left_out=0,
)
SUITE = OnSuite(
    suite="beir",
    measure="nDCG@10",
    members=14,
    mean_a=0.4,
    mean_b=0.41234,
    paired=PAIRED,
    verdict="b",
    missing=(),
    forced=False,
)
QUERY = ChangedQuery(
    query_id="q1",
    text="what is\na wing",
    score_a=1.0,
    score_b=0.25,
    answers=(),
    judged=(
        JudgedDocument(doc_id="d1", grade=2, rank_a=1, rank_b=None, text="Wings | lift"),
        JudgedDocument(doc_id="d2", grade=1, rank_a=30, rank_b=4, text=""),
    ),
    more_judged=0,
    top_a=(RankedDocument("d1", 2), RankedDocument("d7", None)),
    top_b=(RankedDocument("d8", 0),),
)
CHANGES = Changes(
    a="old",
    b="new",
    collection="beir/tiny",
    measure="nDCG@10",
    changed=12,
    without="",
    queries=(QUERY,),
)


def table(row=ROW, suites=(), recipes=()) -> str:
    return comparison_table(Comparison("old", "new", (row,), tuple(suites), tuple(recipes)))


def changed(record, **fields):
    return msgspec.structs.replace(record, **fields)


def parsed(text: str) -> list[dict[str, str]]:
    """Rows of the first table by header; fails where rows differ in length."""
    block = re.search(r"(^\|.*\n?)+", text, re.MULTILINE)[0]
    split = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in block.splitlines()
    ]
    headers, rule, *rows = split
    assert all(re.fullmatch(r":?-+:?", cell) for cell in rule)
    return [dict(zip(headers, row, strict=True)) for row in rows]


def test_a_row_has_every_figure_rounded_for_people():
    (row,) = parsed(table())
    assert row == {
        "collection": "beir/tiny",
        "measure": "nDCG@10",
        "queries": "4,100",
        "old": "0.5000",
        "new": "0.5123",
        "difference": "-0.0123",
        "95 % interval": "-0.0300 to +0.0050",
        "p": "0.1234",
        "p (Holm)": "0.2468",
        "better": "cannot tell",
        "win / tie / loss": "1,000 / 2,000 / 1,100",
        "effect": "-0.05",
        "detectable": "0.0212",
    }


@pytest.mark.parametrize(("verdict", "better"), [("a", "old"), ("b", "new")])
def test_the_better_model_is_named(verdict, better):
    assert parsed(table(changed(ROW, verdict=verdict)))[0]["better"] == better


def test_a_suite_has_a_row_without_a_correction():
    row = parsed(table(suites=[SUITE]))[1]
    assert (row["collection"], row["p (Holm)"]) == ("mean of beir, 14 sets", "")
    assert row["better"] == "new"


def test_a_gap_is_an_empty_row_with_a_note():
    gap = changed(ROW, mean_b=None, paired=None, p_holm=None, missing=("new: no result",))
    text = table(gap)
    (row,) = parsed(text)
    assert [row[name] for name in ("old", "new", "difference", "p", "better")] == [
        "0.5000",
        *[""] * 4,
    ]
    assert "- beir/tiny: missing: new: no result" in text


def test_an_incomplete_suite_names_what_is_missing():
    gap = changed(SUITE, mean_a=None, mean_b=None, paired=None, missing=("beir/nq", "beir/fever"))
    text = table(suites=[gap])
    assert "- beir: no mean: 2 of 14 missing: beir/nq, beir/fever" in text
    assert parsed(text)[1]["better"] == ""


def test_a_long_gap_names_the_first_members_and_counts_all():
    gap = changed(SUITE, paired=None, missing=("a", "b", "c", "d"))
    assert "- beir: no mean: 4 of 14 missing: a, b, c, …" in table(suites=[gap])
    gap = changed(SUITE, paired=None, missing=("a", "b", "c"))
    assert table(suites=[gap]).endswith("- beir: no mean: 3 of 14 missing: a, b, c")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"in_domain_b": True}, "0.5123 (in-domain)"),
        ({"official": False}, "not the published collection"),
        ({"left_out": 1234}, "1,234 queries that not all models have left out"),
        (
            {"protocol": (Difference("depth", "10", "100"),)},
            "FORCED across protocols: depth 10 and 100",
        ),
        ({"protocol": (Difference("version", "", "2"),)}, "version - and 2"),
        ({"protocol": (Difference("depth", "10", "100"),)}, "beir/tiny (forced)"),
        ({"paired": changed(PAIRED, wins=4, losses=5)}, "-0.0300 to +0.0050 (few)"),
        ({"paired": changed(PAIRED, p=1e-6)}, "1e-06"),
    ],
)
def test_what_qualifies_a_figure_is_said_and_only_then(fields, said):
    assert said in table(changed(ROW, **fields))
    assert said not in table()


def test_what_is_not_known_is_left_empty():
    unknown = changed(PAIRED, low=None, high=None, effect=None, detectable=None)
    (row,) = parsed(table(changed(ROW, paired=unknown)))
    assert {row[name] for name in ("95 % interval", "effect", "detectable")} == {""}


def test_where_no_query_changed_that_is_said():
    same = changed(PAIRED, wins=0, losses=0, low=None, high=None)
    text = table(changed(ROW, paired=same))
    assert parsed(text)[0]["95 % interval"] == "no query changed"
    assert "(few)" not in text
    assert changes_table(changed(CHANGES, changed=0, queries=())) == (
        "beir/tiny, old and new: no query changed, by nDCG@10"
    )


def test_recipes_that_differ_have_a_table_of_their_own():
    text = table(
        recipes=[Difference("dtype", "float32", "float16"), Difference("index", "", "IVF|8")]
    )
    assert parsed(text.split("\n\n")[-1]) == [
        {"what differs in the recipes": "dtype", "old": "float32", "new": "float16"},
        {"what differs in the recipes": "index", "old": "-", "new": "IVF|8"},
    ]


def test_the_legend_says_how_often_and_with_which_seed():
    assert "9,999 resamples, seed 7" in legend(Resampling(9_999, 7))


def test_a_changed_query_shows_relevant_documents_and_rankings_side_by_side():
    heading, query, relevant, rankings = changes_table(CHANGES).split("\n\n")
    assert heading == "beir/tiny, old and new: 1 of 12 changed queries, by nDCG@10"
    assert query == "query q1: what is a wing\nold 1.0000, new 0.2500 (+0.7500)"
    assert parsed(relevant) == [
        {
            "relevant": "d1",
            "grade": "2",
            "rank in old": "1",
            "rank in new": "-",
            "text": "Wings | lift",
        },
        {
            "relevant": "d2",
            "grade": "1",
            "rank in old": "30",
            "rank in new": "4",
            "text": "(not in this corpus)",
        },
    ]
    assert parsed(rankings) == [
        {"rank": "1", "old": "d1 (grade 2)", "new": "d8 (grade 0)"},
        {"rank": "2", "old": "d7", "new": ""},
    ]


def test_more_relevant_documents_than_are_shown_are_counted():
    text = changes_table(changed(CHANGES, queries=(changed(QUERY, more_judged=15),)))
    assert "and 15 more relevant documents" in text
    assert "more relevant" not in changes_table(CHANGES)


def test_ids_without_a_collection_are_shown_with_the_reason():
    bare = changed(QUERY, text=None, judged=())
    text = changes_table(changed(CHANGES, without="tiny is not here", queries=(bare,)))
    assert "ids only, no texts and grades: tiny is not here" in text
    assert "query q1\n" in text
    assert "relevant" not in text


def test_accepted_answers_are_shown_where_they_decide():
    text = changes_table(changed(CHANGES, queries=(changed(QUERY, answers=("Paris", "Rome")),)))
    assert "answers: Paris; Rome" in text


def test_a_long_text_is_cut_to_one_line():
    text = changes_table(changed(CHANGES, queries=(changed(QUERY, text="long \n" * 100),)))
    line = next(line for line in text.splitlines() if line.startswith("query q1"))
    assert len(line) < 100
    assert line.endswith("…")


@settings(deadline=None)
@given(st.text(min_size=1))
def test_no_text_breaks_a_table_or_reaches_the_terminal_as_a_control_character(text):
    document = changed(QUERY.judged[0], doc_id=text, text=text)
    shown = changes_table(
        changed(CHANGES, queries=(changed(QUERY, judged=(document,), text=text),))
    )
    (row,) = parsed(shown.split("\n\n")[2])
    assert row["grade"] == "2"
    assert printable(shown) == shown
