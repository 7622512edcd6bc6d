"""Tables keep their shape, whatever names say."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.markdown import cell, one_line, table


def test_columns_stand_on_the_side_that_is_asked_and_the_last_side_goes_on():
    lines = table(["name", "a", "b"], [["x", "1", "2"], ["long name", "10", "20"]], "lr").split(
        "\n"
    )
    assert [line for line in lines if "-" not in line] == [
        "| name      |   a |   b |",
        "| x         |   1 |   2 |",
        "| long name |  10 |  20 |",
    ]


def test_numbers_stay_as_they_are_written():
    assert "| 0.50 |" in table(["a"], [["0.50"]]).replace("   |", " |")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a|b", "a\\|b"), (" two\n lines ", "two lines"), ("\x1b[31mred", "[31mred"), ("", "")],
)
def test_a_name_neither_ends_its_cell_nor_moves_a_terminal(text, shown):
    assert cell(text) == shown


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=4))
def test_every_line_of_a_table_has_as_many_cells_as_it_has_columns(rows):
    lines = table(["a", "b|c", "d\ne"], rows, "lrl").split("\n")
    assert len(lines) == 2 + len(rows)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}


@given(st.text())
def test_one_line_is_one_line_and_prints(text):
    assert one_line(text).isprintable()
    assert one_line(one_line(text)) == one_line(text)
