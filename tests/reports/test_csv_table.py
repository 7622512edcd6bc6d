"""CSV that spreadsheets show and do not compute."""

import csv
import io

import pytest

from reports.csv_table import csv_table


@pytest.mark.parametrize(
    "text", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "  =1", "\t=1", "\r\n=1", "＝1"]
)
def test_a_name_that_a_spreadsheet_would_compute_begins_with_an_apostrophe(text):
    _, line = csv.reader(io.StringIO(csv_table(["model"], [[text]])))
    assert line == ["'" + text.strip()]


def test_numbers_are_not_rounded_and_may_be_negative():
    assert csv_table(["a", "b"], [[-1 / 3, None]]) == "a,b\n-0.3333333333333333,\n"


def test_a_terminal_obeys_no_cell():
    assert csv_table(["a"], [["red\x1b[31m\x9b"]]) == "a\nred\\u001b[31m\\u009b\n"
