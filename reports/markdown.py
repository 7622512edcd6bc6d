"""Markdown that no name can break: tables, and text in headings and lists."""

import re
from collections.abc import Sequence

from tabulate import tabulate

from foundation.printable import one_line

SIDES = {"l": "left", "r": "right"}
# What would end a cell, or begin code, HTML or a link. Brackets alone are no link, a bare address
# shows where it leads, and slanted words are harmless.
_READ = re.compile(r"[\\`|<]|\](?=[(\[:])|(?<=\()\w+:(?=//)|&(?=#?\w+;)", re.ASCII)
_ENTITIES = {"<": "&lt;", "&": "&amp;"}  # not every reader of Markdown escapes these by a slash


def plain(text: str) -> str:
    """Text on one line that Markdown shows and does not read."""
    return _READ.sub(lambda match: _escaped(match[0]), one_line(text))


def _escaped(text: str) -> str:
    """The last sign escaped."""
    return _ENTITIES.get(text, f"{text[:-1]}\\{text[-1]}")


def code(text: str) -> str:
    """Text on one line as code, whatever backticks it holds."""
    line = one_line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str = "l") -> str:
    """A table in GitHub's Markdown; cells are `plain`.

    Args:
        align: ``l`` or ``r`` for each column; the last letter is of all further columns, too.
    """
    names, *cells = [[plain(text) for text in row] for row in [headers, *rows]]
    sides = [SIDES[letter] for letter in align.ljust(len(names), align[-1])][: len(names)]
    return str(tabulate(cells, names, tablefmt="github", colalign=sides, disable_numparse=True))
