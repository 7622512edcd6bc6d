"""Tables in Markdown that no name can break."""

from collections.abc import Sequence

from tabulate import tabulate

SIDES = {"l": "left", "r": "right"}


def one_line(text: str) -> str:
    """Text without line ends and control characters, which a terminal would obey."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def cell(text: str) -> str:
    """One line in which a bar does not end its cell."""
    return one_line(text).replace("|", "\\|")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str = "l") -> str:
    """A table in GitHub's Markdown.

    Args:
        align: ``l`` or ``r`` for each column; the last letter is of all further columns, too.
    """
    names, *cells = [[cell(one) for one in row] for row in [headers, *rows]]
    sides = [SIDES[letter] for letter in align.ljust(len(names), align[-1])][: len(names)]
    return str(tabulate(cells, names, tablefmt="github", colalign=sides, disable_numparse=True))
