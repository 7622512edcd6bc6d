"""Tables keep their shape, whatever names say."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from foundation.printable import one_line, printable
from reports.markdown import code, plain, table

commonmark = MarkdownIt("commonmark")


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
    [
        ("a|b", "a\\|b"),
        (" two\n lines ", "two lines"),
        ("\x1b[31mred", "\\\\u001b[31mred"),
        ("[click](http://evil)", "[click\\](http\\://evil)"),
        ("![x](//evil/p.png)", "![x\\](//evil/p.png)"),
        ("[x][1]", "[x\\][1]"),
        ("<script>`x`</script>", "&lt;script>\\`x\\`&lt;/script>"),
        ("&lt;b", "&amp;lt;b"),
        ("", ""),
    ],
)
def test_a_name_is_shown_and_not_read(text, shown):
    assert plain(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "beir/scifact",
        "my_model-v1.2@depth=10",
        "0.5 [0.4–0.6]",
        "C++ & Rust (few)",
        "a * b",
        "https://x.org",
    ],
)
def test_ordinary_names_and_figures_stay_as_they_are(text):
    assert plain(text) == text


@given(st.text(alphabet="[](){}<>`\\|&;#:/ahtpw.1\n"))
def test_no_text_becomes_a_link_or_html(text):
    parsed = commonmark.render(f"- {plain(text)}\n\nx {plain(text)}")
    assert not re.search("<(a|img|code|em)[ >]", parsed)


@given(st.text(alphabet="`ab \\|"))
def test_code_is_shown_as_it_is(text):
    line = one_line(text)
    if line:
        assert f"<code>{line}</code>" in commonmark.render(f"x {code(text)} y")


@given(st.lists(st.lists(st.text(), min_size=3, max_size=3), max_size=4))
def test_every_line_of_a_table_has_as_many_cells_as_it_has_columns(rows):
    lines = table(["a", "b|c", "d\ne"], rows, "lrl").split("\n")
    assert len(lines) == 2 + len(rows)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}


@given(st.text())
def test_one_line_is_one_line_and_prints(text):
    assert printable(one_line(text)) == one_line(text)
    assert len(one_line(text).splitlines()) <= 1
    assert one_line(one_line(text)) == one_line(text)
