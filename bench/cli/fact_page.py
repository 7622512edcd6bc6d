"""A record as a page of text: the main facts on one screen, or all of them."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 80, 40  # columns and lines of a page
KEY_WIDTH = 24
NAMED = 4  # items of a long list on a page
LIST_LINES = 3  # of a list or table; a text is not cut
NOT_STATED = ("parameters", "dim")  # where they are 0
DETAILS = ("source", "tolerance")  # of an item of a list, which `every_fact` has
EMPTY: tuple[object, ...] = (None, "", [], (), {})
HASH = re.compile(r"[0-9a-f]{40,64}")
# Facts that come first, of whatever is shown; the others follow in the order of their record.
FIRST = (
    "content",
    "name",
    "title",
    "missing",
    "warning",
    "preset",
    "model",
    "main_measure",
    "measures",
    "protocol.collection",
    "queries",
    "documents",
    "checkpoint",
    "query_checkpoint",
    "revision",
    "parameters",
    "dim",
    "pooling",
    "stages",
    "normalize",
    "similarity",
    "prompts",
    "max_query_tokens",
    "max_document_tokens",
    "licence",
    "public",
    "instructions",
    "split",
    "counts",
    "exclude_self",
    "depth",
    "trained_on",
    "expected",
    "unverified",
    "citation",
    "source",
)


def page(facts: Mapping[str, Any], command: str) -> str:
    """The main facts of a record on at most `HEIGHT` lines of `WIDTH` columns.

    Args:
        command: that shows all facts, for the last line.
    """
    shown = {key: (_summary(value), _is_long(value)) for key, value in _fields(facts)}
    order = [key for first in FIRST for key in shown if f"{key}.".startswith(f"{first}.")]
    keys = dict.fromkeys([*order, *shown])
    lines = [line for key in keys for line in _wrapped(key, *shown[key])]
    return "\n".join([*lines[: HEIGHT - 1], f"All facts: {command}"])


def every_fact(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """A record as lines: nested keys joined with dots, a line an item of a list, no empty ones."""
    if isinstance(value, Mapping):
        for inner, content in value.items():
            yield from every_fact(content, f"{key}.{inner}" if key else str(inner))
    elif isinstance(value, list | tuple):
        yield from ((key, _line(item)) for item in value)
    elif value not in (None, ""):
        yield key, str(value)


def _fields(facts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Facts with a value, by dotted key; tables of many entries stay whole."""
    for key, value in facts.items():
        if isinstance(value, Mapping) and (len(value) <= 2 * NAMED or key == "protocol"):
            yield from _fields(value, f"{above}{key}.")
        elif value not in EMPTY and not (key in NOT_STATED and not value):
            yield f"{above}{key}", value


def _summary(value: Any) -> str:
    """A value on one line; of a long list or table, the first items and how many there are."""
    if isinstance(value, Mapping):
        pairs = [f"{key} {_item(inner)}" for key, inner in value.items() if inner not in EMPTY]
        return _first(pairs, 2 * NAMED, ", ")
    if isinstance(value, list | tuple):
        items = [_brief(item) for item in value]
        whole = any(isinstance(item, Mapping) for item in value)
        return _first(items, NAMED, "; ") if whole else _first(items, 3 * NAMED, ", ")
    return f"{value[:12]}…" if HASH.fullmatch(str(value)) else _item(value)


def _is_long(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _brief(item: Any) -> str:
    """An item of a list without its details: ``beir/scifact nDCG@10 0.645``."""
    if not isinstance(item, Mapping):
        return _item(item)
    words = [_item(value) for key, value in item.items() if key not in DETAILS]
    return " ".join(word for word in words if word)


def _first(items: Sequence[str], most: int, between: str) -> str:
    if len(items) <= most:
        return between.join(items)
    return f"{len(items)}: {between.join(items[:most])}{between}…"


def _item(item: Any) -> str:
    if isinstance(item, float):
        return f"{item:.4g}"
    if isinstance(item, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in item.items() if inner not in EMPTY)
    if isinstance(item, list | tuple):
        return ", ".join(map(str, item))
    return str(item)


def _line(item: Any) -> str:
    """An item of a list with all that it states."""
    if not isinstance(item, Mapping):
        return str(item)
    return ", ".join(str(value) for value in item.values() if value not in EMPTY)


def _wrapped(key: str, text: str, cut: bool) -> Iterable[str]:
    lines = textwrap.wrap(
        text,
        WIDTH - KEY_WIDTH,
        max_lines=LIST_LINES if cut else None,
        placeholder=" …",
        break_on_hyphens=False,
    )
    if not lines:
        return
    first = f"{key:<{KEY_WIDTH}}{lines[0]}"
    if len(key) >= KEY_WIDTH:
        yield key
        first = f"{'':<{KEY_WIDTH}}{lines[0]}"
    yield first
    yield from (f"{'':<{KEY_WIDTH}}{line}" for line in lines[1:])
