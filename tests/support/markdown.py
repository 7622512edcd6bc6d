"""Markdown, read back: tables, lists, and the figures of sentences."""

import re

BLOCK = re.compile(r"(?:^\|.*\|$\n?)+", re.MULTILINE)
FIGURE = re.compile(r"(?<![\w.@-])[+-]?\d(?:[\d,.:]*\d)?")
RULE = re.compile(r":?-+:?")


def tables_of(text: str) -> list[list[dict[str, str]]]:
    """Rows of each table by header; fails where the rows of a table differ in length."""
    return [_rows(block) for block in BLOCK.findall(text)]


def rows_of(text: str) -> list[dict[str, str]]:
    """Rows of the first table."""
    return tables_of(text)[0]


def row_named(text: str, name: str) -> dict[str, str]:
    """The row of the first table that begins with this cell."""
    return next(row for row in rows_of(text) if next(iter(row.values())) == name)


def notes_of(text: str) -> list[str]:
    """Items of the lists."""
    return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]


def numbers(text: str) -> list[str]:
    """Figures, as they are written, in their order."""
    return FIGURE.findall(text)


def added(text: str, plain: str) -> str:
    """Lines of a text that another one does not have."""
    return "\n".join(line for line in text.splitlines() if line not in plain.splitlines())


def _rows(block: str) -> list[dict[str, str]]:
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
    headers, rule, *rows = [[_shown(cell) for cell in line] for line in lines]
    assert all(RULE.fullmatch(cell) for cell in rule)
    return [dict(zip(headers, row, strict=True)) for row in rows]


def _shown(cell: str) -> str:
    """As a reader of Markdown shows it."""
    return re.sub(r"\\(.)", r"\1", cell.strip()).replace("&lt;", "<").replace("&amp;", "&")
