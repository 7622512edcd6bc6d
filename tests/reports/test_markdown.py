"""Names are shown and not read, whatever they say."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from foundation.printable import one_line, printable
from reports.table import code, plain

commonmark = MarkdownIt("commonmark")


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


@given(st.text())
def test_one_line_is_one_line_and_prints(text):
    assert printable(one_line(text)) == one_line(text)
    assert len(one_line(text).splitlines()) <= 1
    assert one_line(one_line(text)) == one_line(text)
