"""A table in the forms that are asked for, and Markdown that no name can break.

Markdown also reads well in a terminal. pandas is imported when a table is written; its cells need
none, so that `list` answers at once. JSON documents of commands are the records themselves.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from foundation.printable import to_one_line
from reports.format import as_text

if TYPE_CHECKING:
    import pandas as pd


# What would end a cell, or begin code, HTML or a link. Brackets alone are no link, a bare address
# shows where it leads, and slanted words are harmless.
_READ = re.compile(r"[\\`|<]|\](?=[(\[:])|(?<=\()\w+:(?=//)|&(?=#?\w+;)", re.ASCII)
_ENTITIES = {"<": "&lt;", "&": "&amp;"}  # not every reader of Markdown escapes these by a slash


def escape(text: str) -> str:
    """Text on one line that Markdown shows and does not read."""
    return _READ.sub(lambda match: _escaped(match[0]), to_one_line(text))


def _escaped(text: str) -> str:
    """The last sign escaped."""
    return _ENTITIES.get(text, f"{text[:-1]}\\{text[-1]}")


def code_span(text: str) -> str:
    """Text on one line as code, whatever backticks it holds."""
    line = to_one_line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}"


def bullet_list(lines: Iterable[str]) -> str:
    """A list; its lines are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)


Row = TypeVar("Row")

_COMPUTED = tuple("=+-@＝＋－＠")  # a spreadsheet computes what begins with these


class Bold(str):
    """Text in bold, where a form of the table has that."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        header: the name, also for programs.
        value: of a row, raw.
        format: of a value, for people; text stands on the left, all else on the right.
    """

    header: str
    value: Callable[[Row], Any]
    format: Callable[[Any], str] = as_text

    def format_cell(self, row: Row) -> str:
        """The cell of a row, for people."""
        return self.format(self.value(row))


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows, and what is shown of each."""

    rows: Sequence[Row]
    columns: Sequence[Column[Row]]

    def drop_empty_columns(self) -> "Table[Row]":
        """Without the columns in which no row has anything to say."""
        filled = [
            column for column in self.columns if any(column.format_cell(row) for row in self.rows)
        ]
        return Table(self.rows, filled)

    def frame(self) -> "pd.DataFrame":
        """The values, nothing rounded."""
        return self._values(lambda value: value).infer_objects()

    def csv(self) -> str:
        """RFC 4180, nothing rounded.

        Text that a spreadsheet would compute, such as ``=HYPERLINK(…)``, begins with an apostrophe.
        """
        return str(self._values(_spreadsheet_cell).to_csv(index=False, lineterminator="\n"))

    def markdown(self) -> str:
        """GitHub's Markdown; no name breaks it."""
        from tabulate import tabulate

        rows = [
            [_markdown_cell(column.format_cell(row)) for column in self.columns]
            for row in self.rows
        ]
        headers = [_markdown_cell(column.header) for column in self.columns]
        sides = ["left" if column.format is as_text else "right" for column in self.columns]
        return str(tabulate(rows, headers, "github", colalign=sides, disable_numparse=True))

    def _values(self, written: Callable[[Any], Any]) -> "pd.DataFrame":
        cells = [[written(column.value(row)) for column in self.columns] for row in self.rows]
        return _frame(cells, [written(column.header) for column in self.columns])


def columns_for(
    names: Iterable[str],
    value: Callable[[Row, str], Any],
    format: Callable[[Any], str] = as_text,
    header: str = "{}",
) -> list[Column[Row]]:
    """A column for each name, with the value that a row has under it."""

    def column(name: str) -> Column[Row]:
        return Column(header.replace("{}", name), lambda row: value(row, name), format)

    return [column(name) for name in names]


def table_from_rows(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table[Sequence[Any]]:
    """A table of values in the order of its columns."""
    return Table(rows, [Column(name, itemgetter(place)) for place, name in enumerate(headers)])


def _frame(cells: Sequence[Sequence[Any]], names: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(cells, columns=list(names), dtype=object)


def _spreadsheet_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    line = to_one_line(value)
    return f"'{line}" if line.startswith(_COMPUTED) else line


def _markdown_cell(words: str) -> str:
    return f"**{escape(words)}**" if isinstance(words, Bold) else escape(words)
