"""Settings of a stage: a preset with changes, or complete ones with a changed field."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.experiments.grid import Table
from foundation.errors import BenchError

# Fields of which one is set: naming one unsets the others.
ONE_OF = (("steps", "epochs", "tokens"), ("model", "scratch"), ("tokenizer", "vocabulary"))
UNSET = {"model": "", "tokenizer": ""}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """A preset's table with changes; a table of another ``name`` takes the old one's place."""
    table = dict(base)
    for key, value in changes.items():
        for other in (name for names in ONE_OF if key in names for name in names):
            if other in table and other not in changes:
                table[other] = UNSET.get(other)
        old = table.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and _same_kind(old, value):
            table[key] = merged(old, value)
        else:
            table[key] = value
    return table


def _same_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "name" not in new or old.get("name") == new["name"]


def split_off(table: Mapping[str, Any], stage: str) -> tuple[Table, Table]:
    """Fields of the harness (``preset``, ``on``, ``split``), and the rest.

    Raises:
        BenchError: there is no ``on``, neither a preset nor complete settings, or one of the three
            is not text.
    """
    own = {key: table[key] for key in ("preset", "on", "split") if key in table}
    rest = {key: value for key, value in table.items() if key not in own}
    on = own.get("on")
    if not _is_list_of_text(on):
        raise BenchError(f"[{stage}] needs on, a list of collections", 'on = ["beir/nfcorpus"]')
    if "preset" not in own and "title" not in rest:
        raise BenchError(f"[{stage}] needs a preset", 'preset = "NAME", or a .toml file')
    for key in ("preset", "split"):
        if not isinstance(own.get(key, ""), str):
            raise BenchError(f"[{stage}] {key} is {own[key]!r}", "a name in quotes")
    return own, rest


def _is_list_of_text(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return all(isinstance(item, str) for item in value)
