"""``show``: what is known of a model, a collection, a suite or a result."""

from collections.abc import Iterable
from typing import Any

from bench.cli.commands.common import print_json
from bench.cli.describe import describe
from bench.cli.options.data import ShowOptions
from bench.exit_codes import ExitCode
from reports.tables import facts_table


def show(options: ShowOptions) -> int:
    """All facts, each with its name."""
    facts = describe(options.name)
    if options.output.json:
        print_json(facts)
    else:
        print(facts_table(list(_flat(facts))))
    return ExitCode.OK


def _flat(value: Any, key: str = "") -> Iterable[tuple[str, str]]:
    """A record as lines: nested keys joined with dots, a line an item of a table, no empty ones."""
    if isinstance(value, dict):
        for inner, found in value.items():
            yield from _flat(found, f"{key}.{inner}" if key else str(inner))
    elif isinstance(value, list | tuple):
        items = [_line(item) for item in value]
        yield from zip([key] * len(items), items, strict=True)
    elif value not in (None, ""):
        yield key, str(value)


def _line(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    return ", ".join(str(value) for value in item.values() if value not in ("", (), []))
