"""Tables of comparisons are well-formed Markdown that show what qualifies a figure."""

import msgspec
import pytest

from bench.comparing.comparison import ChangedQueries, ChangedQuery, ShownDocument
from bench.comparing.pairs import Comparison, ComparisonRow
from bench.comparing.statistics import Difference
from reports.comparison import changes_table, comparison_rows, comparison_table
from tests.support.markdown import notes_of, numbers, rows_of, tables_of

PAIRED = Difference(
    difference=-0.01234,
    low=-0.03,
    high=0.005,
    p=0.1234,
    p_adjusted=0.2468,
    wins=1000,
    ties=2000,
    losses=1100,
    effect=-0.053,
    detectable=0.0212,
)
ROW = ComparisonRow(
    on="beir/tiny",
    measure="nDCG@10",
    queries=4100,
    mean_a=0.5,
    mean_b=0.51234,
    paired=PAIRED,
    verdict="neither",
)
SUITE = ComparisonRow(
    on="beir",
    measure="nDCG@10",
    queries=47000,
    members=14,
    mean_a=0.4,
    mean_b=0.41234,
    paired=msgspec.structs.replace(PAIRED, p_adjusted=None),
    verdict="b",
)
QUERY = ChangedQuery(
    query_id="q1",
    text="what is\na wing",
    score_a=1.0,
    score_b=0.25,
    answers=(),
    documents=(
        ShownDocument(doc_id="d1", grade=2, rank_a=1, rank_b=None, text="Wings | lift"),
        ShownDocument(doc_id="d7", grade=None, rank_a=30, rank_b=4, text=""),
    ),
)
CHANGES = ChangedQueries(
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


def test_a_row_has_every_figure_rounded_for_people():
    (row,) = rows_of(table())
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
        "better": "neither",
        "win / tie / loss": "1,000 / 2,000 / 1,100",
        "effect": "-0.05",
        "detectable": "0.0212",
    }


def test_a_suite_has_a_row_without_a_correction():
    row = rows_of(table(suites=[SUITE]))[1]
    assert (row["collection"], row["p (Holm)"]) == ("mean of beir, 14 sets", "")
    assert row["better"] == "new"


def test_an_incomplete_suite_names_what_is_missing():
    gap = changed(SUITE, mean_a=None, mean_b=None, paired=None, missing=("beir/nq", "beir/fever"))
    text = table(suites=[gap])
    (note,) = notes_of(text)
    assert numbers(note) == ["2", "14"]
    assert note.endswith("beir/nq, beir/fever")
    assert rows_of(text)[1]["better"] == ""


def test_a_gap_is_an_empty_row_with_a_note():
    gap = changed(ROW, mean_b=None, paired=None, missing=("new: no result",))
    text = table(gap)
    (row,) = rows_of(text)
    assert [row[name] for name in ("old", "new", "difference", "p", "better")] == [
        "0.5000",
        *[""] * 4,
    ]
    (note,) = notes_of(text)
    assert all(word in note for word in ("beir/tiny", "new", "no result"))


@pytest.mark.parametrize(
    ("fields", "column", "cell"),
    [
        ({"in_domain_b": True}, "new", "0.5123 (in-domain)"),
        (
            {"paired": changed(PAIRED, wins=4, losses=5)},
            "95 % interval",
            "-0.0300 to +0.0050 (few)",
        ),
        ({"paired": changed(PAIRED, p=1e-6)}, "p", "1e-06"),
    ],
)
def test_a_qualified_figure_is_marked(fields, column, cell):
    assert rows_of(table(changed(ROW, **fields)))[0][column] == cell


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"official": False}, ("beir/tiny",)),
        ({"paired": changed(PAIRED, wins=4, losses=5)}, ("(few)",)),
    ],
)
def test_only_a_qualified_figure_has_a_note(fields, words):
    (note,) = notes_of(table(changed(ROW, **fields)))
    assert all(word in note for word in words)
    assert notes_of(table()) == []


def test_a_comparison_without_changed_queries_states_so():
    same = changed(PAIRED, wins=0, losses=0, low=None, high=None)
    text = table(changed(ROW, paired=same))
    assert rows_of(text)[0]["95 % interval"] == "no query changed"
    assert "(few)" not in text
    none = changes_table(changed(CHANGES, changed=0, queries=()))
    assert (tables_of(none), none.count("\n")) == ([], 0)


def test_a_changed_query_shows_its_documents_with_their_ranks():
    heading, query, documents = changes_table(CHANGES).split("\n\n")
    assert (heading.split(",")[0], numbers(heading)) == ("beir/tiny", ["1", "12"])
    assert query == "query q1: what is a wing\nold 1.0000, new 0.2500 (+0.7500)"
    assert [list(row.values()) for row in rows_of(documents)] == [
        ["d1", "2", "1", "-", "Wings | lift"],
        ["d7", "", "30", "4", ""],
    ]


def test_a_data_frame_has_unrounded_values_of_each_column_that_is_printed():
    frame = comparison_rows(Comparison("old", "new", (ROW,), (SUITE,), ())).frame()
    assert len(frame) == 1
    for name in ("difference", "low", "high", "p", "wins", "ties", "losses", "effect"):
        assert frame[name].item() == getattr(PAIRED, name)
    assert frame["p_holm"].item() == PAIRED.p_adjusted
    assert frame["new"].item() == ROW.mean_b
    assert frame["better"].item() == ""
