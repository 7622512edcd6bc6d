"""One table in all its forms: values stay what they are, and no name breaks a form."""

import csv
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.format import count, score, written
from reports.table import Bold, Column, Italic, Table, columns_of, table_of, tex
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


def test_cells_are_the_headers_and_rows_as_people_read_them():
    assert TABLE.cells() == [
        ["model", "nDCG@10", "queries"],
        ["a|b", "0.3333", "12,345"],
        ["=x", "", ""],
    ]


def test_columns_of_names_have_a_header_made_of_each():
    columns = columns_of(("a", "b{}"), lambda row, name: row[name], score, "{}, s")
    table = Table([{"a": 0.5, "b{}": None}], columns)
    assert rows_of(table.markdown()) == [{"a, s": "0.5000", "b{}, s": ""}]


def test_programs_read_values_as_they_are():
    assert TABLE.csv() == "model,nDCG@10,queries\na|b,0.3333333333333333,12345\n'=x,,\n"


def test_a_data_frame_has_the_values_and_the_headers():
    frame = TABLE.frame()
    assert list(frame.columns) == ["model", "nDCG@10", "queries"]
    assert frame["nDCG@10"][0] == 1 / 3
    assert frame["queries"].isna().tolist() == [False, True]
    assert frame["nDCG@10"].dtype == "float64"


def test_latex_is_a_booktabs_tabular_with_bold_and_italic_text():
    table = Table([(Bold("0.5*"), Italic("a_b"))], [Column("x%", lambda row: row[0], written)])
    table = Table(table.rows, [Column("", lambda row: row[1]), *table.columns])
    assert table.latex().splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r" & x\% \\",
        r"\midrule",
        r"\textit{a\_b} & \textbf{0.5*} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_bold_text_is_bold_in_markdown():
    assert rows_of(table_of(["a"], [[Bold("x|y")]]).markdown()) == [{"a": "**x|y**"}]


def test_columns_in_which_nothing_stands_can_be_left_out():
    table = Table(
        [("a", "", None)], [Column(n, lambda row, i=i: row[i]) for i, n in enumerate("xyz")]
    )
    assert rows_of(table.without_empty().markdown()) == [{"x": "a"}]


def test_a_table_may_have_no_rows_and_headers_that_are_the_same():
    assert rows_of(table_of(["a", "b"], []).markdown()) == []
    assert table_of(["a", "a"], [["x", "y"]]).markdown().splitlines()[2] == "| x   | y   |"
    assert table_of(["a", "b"], []).csv() == "a,b\n"


def test_text_that_looks_like_a_number_stays_as_it_is_written():
    assert rows_of(table_of(["a", "b"], [["0.50", "1e3"]]).markdown()) == [
        {"a": "0.50", "b": "1e3"}
    ]


@settings(deadline=None)
@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=4))
def test_every_line_of_markdown_has_as_many_cells_as_there_are_columns(rows):
    lines = table_of(["a", "b|c", "d\ne"], rows).markdown().split("\n")
    assert len(lines) == 2 + len(rows)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}


@pytest.mark.parametrize(
    "text", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "  =1", "\t=1", "\r\n=1", "＝1"]
)
def test_a_name_that_a_spreadsheet_would_compute_begins_with_an_apostrophe(text):
    assert list(csv.reader(io.StringIO(table_of([text], [[text]]).csv()))) == [
        ["'" + text.strip()],
        ["'" + text.strip()],
    ]


def test_numbers_in_csv_may_be_negative():
    assert table_of(["a", "b"], [[-1 / 3, None]]).csv() == "a,b\n-0.3333333333333333,\n"


def test_a_terminal_obeys_no_cell_of_csv():
    assert table_of(["a"], [["red\x1b[31m\x9b"]]).csv() == "a\nred\\u001b[31m\\u009b\n"


@pytest.mark.parametrize("sign", "&%$#_{}")
def test_signs_that_tex_reads_are_escaped(sign):
    assert tex(f"a{sign}b") == f"a\\{sign}b"


@given(st.text(alphabet="\\&%$#_{}~^ab"))
def test_no_name_is_read_as_tex(text):
    plain = re.sub(r"\\text(backslash|asciitilde|asciicircum)\{\}|\\[&%$#_{}]", "", tex(text))
    assert not set(plain) & set("\\&%$#_{}~^")
