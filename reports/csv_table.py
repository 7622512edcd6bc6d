"""CSV for programs and spreadsheets."""

import csv
import io
from collections.abc import Iterable, Sequence

from foundation.printable import one_line

_COMPUTED = tuple("=+-@＝＋－＠")


def csv_table(fields: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A heading and a line for each row, RFC 4180, nothing rounded.

    Text that a spreadsheet would compute, such as ``=HYPERLINK(…)``, begins with an apostrophe.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(_COMPUTED) else text
