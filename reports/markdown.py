"""Markdown that no name can break."""

import re
from collections.abc import Iterable

from foundation.printable import one_line

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


def bullets(lines: Iterable[str]) -> str:
    """A list; its lines are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)
