"""Tables as people and programs read them, and Markdown that no name can break."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from foundation.errors import to_one_line
from reports.format import count, score, short_text
from reports.table import Column, Table, code, escape, make_table
from tests.support.markdown import rows_of

ROWS = [("a|b", 1 / 3, 12_345), ("=x", None, None)]
TABLE = Table(
    ROWS,
    [
        Column("model", lambda row: row[0]),
        Column("nDCG@10", lambda row: row[1], score),
        Column("queries", lambda row: row[2], count),
    ],
)


def test_people_read_rounded_values_under_headers_numbers_on_the_right():
    assert TABLE.markdown().splitlines() == [
        "| model   |   nDCG@10 |   queries |",
        "|---------|-----------|-----------|",
        "| a\\|b    |    0.3333 |    12,345 |",
        "| =x      |           |           |",
    ]


def test_machine_formats_hold_unrounded_values():
    assert TABLE.frame()["nDCG@10"][0] == 1 / 3
    assert TABLE.csv() == "model,nDCG@10,queries\na|b,0.3333333333333333,12345\n'=x,,\n"


def test_a_table_may_have_no_rows_and_headers_that_are_the_same():
    assert rows_of(make_table(["a", "b"], []).markdown()) == []
    assert make_table(["a", "a"], [["x", "y"]]).markdown().splitlines()[2] == "| x   | y   |"
    assert make_table(["a", "b"], []).csv() == "a,b\n"


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=4))
def test_every_line_of_markdown_has_as_many_cells_as_there_are_columns(rows):
    lines = make_table(["a", "b|c", "d\ne"], rows).markdown().split("\n")
    assert len(lines) == 2 + len(rows)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}


@pytest.mark.parametrize(
    "text", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "  =1", "\t=1", "\r\n=1", "＝1"]
)
def test_a_name_that_a_spreadsheet_would_compute_begins_with_an_apostrophe(text):
    assert list(csv.reader(io.StringIO(make_table([text], [[text]]).csv()))) == [
        ["'" + text.strip()],
        ["'" + text.strip()],
    ]


def test_cells_of_csv_cannot_control_the_terminal():
    assert make_table(["a"], [["red\x1b[31m\x9b"]]).csv() == "a\nred\\u001b[31m\\u009b\n"


commonmark = MarkdownIt("commonmark")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("\x1b[31mred", "\\\\u001b[31mred"),
        ("[click](http://evil)", "[click\\](http\\://evil)"),
        ("![x](//evil/p.png)", "![x\\](//evil/p.png)"),
        ("<script>`x`</script>", "&lt;script>\\`x\\`&lt;/script>"),
        ("&lt;b", "&amp;lt;b"),
    ],
)
def test_markdown_in_a_name_is_escaped(text, shown):
    assert escape(text) == shown


@given(st.text(alphabet="[](){}<>`\\|&;#:/ahtpw.1\n"))
def test_no_text_becomes_a_link_or_html(text):
    parsed = commonmark.render(f"- {escape(text)}\n\nx {escape(text)}")
    assert not re.search("<(a|img|code|em)[ >]", parsed)


@given(st.text(alphabet="`ab \\|"))
def test_code_is_shown_unchanged(text):
    line = to_one_line(text)
    if line:
        assert f"<code>{line}</code>" in commonmark.render(f"x {code(text)} y")


def test_long_text_is_cut_to_the_width_of_a_terminal():
    table = Table(["word " * 60], [Column("text", str, short_text)])
    (row,) = rows_of(table.markdown())
    assert len(row["text"]) <= 80
    assert row["text"].endswith("word…")
