"""Rows and JSON documents on stdout, as several commands print them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from tabulate import tabulate

from bench.cli.terminal import as_typed


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns without a frame."""
    text = str(tabulate(rows, tablefmt="plain", disable_numparse=True))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def print_next(what: str, command: str) -> None:
    """The command to type next, by the name under which the program was called."""
    print(as_typed(f"{what}: {command}"))


def print_json(document: Any) -> None:
    """One document on stdout."""
    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())
