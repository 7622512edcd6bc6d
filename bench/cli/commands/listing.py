"""``list``: what there is."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import indent

from bench.cli import describe
from bench.cli.model_list import HEADINGS, ModelLine, model_lines, short_count
from bench.cli.options.data import ListOptions
from bench.cli.printing import columns, print_json, print_rows
from bench.exit_codes import ExitCode
from foundation.errors import BenchError
from reports.table import Column, Table


def listing(options: ListOptions) -> int:
    """Names with a line about each; models in groups."""
    if options.what == "models":
        return _list_models(options)
    rows = [
        {"name": name, "about": about}
        for name, about in describe.listing(options.what)
        if options.match.lower() in f"{name} {about}".lower()
    ]
    if not rows:
        raise _nothing_matches(options)
    print_rows(rows, options.output.json)
    return ExitCode.OK


def _list_models(options: ListOptions) -> int:
    lines = model_lines(options.group, options.match, options.licence)
    if not lines:
        raise _nothing_matches(options)
    if options.output.json:
        print_json([asdict(line) for line in lines])
    else:
        print("\n\n".join(_tables(lines)))
    return ExitCode.OK


def _tables(lines: Sequence[ModelLine]) -> Iterator[str]:
    """A heading and a table for each group, without columns that are empty there."""
    shown: list[Column[ModelLine]] = [
        Column("name", lambda line: line.name),
        Column("size", lambda line: line.parameters, short_count),
        Column("dim", lambda line: line.dim or ""),
        Column("licence", lambda line: line.licence),
        Column("about", lambda line: line.title),
    ]
    for group, heading in HEADINGS.items():
        if rows := [line for line in lines if line.group == group]:
            cells = Table(rows, shown).without_empty().cells()
            yield f"{heading}\n{indent(columns(cells), '  ')}"


def _nothing_matches(options: ListOptions) -> BenchError:
    return BenchError(
        f"none of the {options.what} matches what was typed",
        f"see `python -m bench list {options.what}`",
    )
