"""Tables as Markdown, CSV and data frames, with names escaped for each format.

The Markdown also reads well in a terminal. pandas is imported when a data frame or CSV is made, so
that `list` answers at once. JSON documents of commands are the records themselves.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from foundation.errors import to_one_line
from reports.format import TEXT

if TYPE_CHECKING:
    import pandas as pd


# Characters that end a cell or begin code, HTML or a link. Brackets alone are not a link, a bare
# address shows its target, and italics are harmless.
_READ = re.compile(r"[\\`|<]|\](?=[(\[:])|(?<=\()\w+:(?=//)|&(?=#?\w+;)", re.ASCII)
_ENTITIES = {"<": "&lt;", "&": "&amp;"}  # a backslash does not escape these everywhere


def escape(text: str) -> str:
    """Escape ``text`` for Markdown, on one line."""
    return _READ.sub(lambda match: _escaped(match[0]), to_one_line(text))


def _escaped(text: str) -> str:
    """Escape the last character."""
    return _ENTITIES.get(text, f"{text[:-1]}\\{text[-1]}")


def code(text: str) -> str:
    """Return ``text`` on one line as code in Markdown, with a fence longer than its backticks."""
    line = to_one_line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}"


def bullets(lines: Iterable[str]) -> str:
    """Return a list of ``lines``, which are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)


Row = TypeVar("Row")
Outer = TypeVar("Outer")

_COMPUTED = tuple("=+-@＝＋－＠")  # a spreadsheet evaluates cells that begin with these


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        header: its header, also for programs.
        value: function from a row to the unrounded value.
        format: function from a value to text for people. Text is aligned left, other formats right.
            None is an empty cell.
        data: values for programs by header, if they differ from ``value``.
    """

    header: str
    value: Callable[[Row], Any]
    format: Callable[[Any], str] = str
    data: Mapping[str, Callable[[Row], Any]] | None = None

    @property
    def values(self) -> Mapping[str, Callable[[Row], Any]]:
        """Functions from a row to each unrounded value for programs, by header."""
        return {self.header: self.value} if self.data is None else self.data

    def through(self, get: Callable[[Outer], Row | None]) -> "Column[Outer]":
        """Return this column for rows that ``get`` leads from to a row of it, or to a gap."""

        def of(value: Callable[[Row], Any]) -> Callable[[Outer], Any]:
            return lambda outer: None if (row := get(outer)) is None else value(row)

        data = {name: of(value) for name, value in self.values.items()}
        return Column(self.header, of(self.value), self.format, data)

    def cell(self, row: Row) -> str:
        """Return the cell of ``row``, for people."""
        value = self.value(row)
        return "" if value is None else self.format(value)


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Rows and columns of a table."""

    rows: Sequence[Row]
    columns: Sequence[Column[Row]]

    def drop_empty(self) -> "Table[Row]":
        """Return the table without columns that are empty in all rows."""
        filled = [column for column in self.columns if any(map(column.cell, self.rows))]
        return Table(self.rows, filled)

    def frame(self) -> "pd.DataFrame":
        """Return the unrounded values as a data frame."""
        return self._values(lambda value: value).infer_objects()

    def csv(self) -> str:
        """Return the unrounded values as CSV (RFC 4180).

        Text that a spreadsheet would evaluate, such as ``=HYPERLINK(…)``, is prefixed with an
        apostrophe.
        """
        return str(self._values(_spreadsheet_cell).to_csv(index=False, lineterminator="\n"))

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown, with all names escaped."""
        from tabulate import tabulate

        rows = [[escape(column.cell(row)) for column in self.columns] for row in self.rows]
        headers = [escape(column.header) for column in self.columns]
        sides = ["left" if column.format in TEXT else "right" for column in self.columns]
        return str(tabulate(rows, headers, "github", colalign=sides, disable_numparse=True))

    def _values(self, written: Callable[[Any], Any]) -> "pd.DataFrame":
        import pandas as pd

        columns = [pair for column in self.columns for pair in column.values.items()]
        cells = [[written(value(row)) for _, value in columns] for row in self.rows]
        names = [written(name) for name, _ in columns]
        return pd.DataFrame(cells, columns=names, dtype=object)


def columns_for(
    names: Iterable[str], value: Callable[[Row, str], Any], format: Callable[[Any], str] = str
) -> list[Column[Row]]:
    """Return a column for each name."""

    def column(name: str) -> Column[Row]:
        return Column(name, lambda row: value(row, name), format)

    return [column(name) for name in names]


def make_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table[Sequence[Any]]:
    """Return a table of ``rows``, whose values are in the order of ``headers``."""
    return Table(rows, [Column(name, itemgetter(place)) for place, name in enumerate(headers)])


def _spreadsheet_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    line = to_one_line(value)
    return f"'{line}" if line.startswith(_COMPUTED) else line
