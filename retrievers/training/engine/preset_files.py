"""Presets of one kind as a folder of strict TOML files: named, read, changed by dotted names."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from foundation.errors import BenchError

Preset = TypeVar("Preset", bound=msgspec.Struct)
FromTable = Callable[[Mapping[str, Any], str], Preset]
Records = tuple[type[msgspec.Struct], ...]


def read_table(
    table: Mapping[str, Any],
    kind: type[Preset],
    source: str,
    records: Records,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> Preset:
    """A strict record from a TOML table; ``records`` are all that it consists of.

    Raises:
        BenchError: an unknown key, or a value of the wrong type; ``source`` is named.
    """
    try:
        return msgspec.convert(dict(table), type=kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        found = re.search(r"unknown field `(\w+)`", str(error))
        hint = _meant(found[1], records) if found else ""
        raise BenchError(f"{source}: {error}", hint) from error


@dataclass(frozen=True)
class PresetFiles(Generic[Preset]):
    """The presets of one kind.

    Attributes:
        purpose: what they are for, in messages.
        folder: of the shipped ones.
        from_table: reads one from a TOML table, and takes the source for messages.
        records: what a preset consists of.
        choice: dotted name that decides which other settings its table has.
        instead_of: dotted names of fields, and the neighbours whose place they take.
    """

    purpose: str
    folder: Path
    from_table: FromTable[Preset]
    records: Records
    choice: str
    instead_of: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """Names of the shipped presets, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob("*.toml")))

    def load(self, name_or_path: str | Path) -> Preset:
        """The preset of that name, or of that ``.toml`` file.

        Raises:
            BenchError: no such preset, not TOML, an unknown key, or a value of the wrong type.
        """
        path = Path(name_or_path)
        if path.suffix != ".toml":
            if str(name_or_path) not in self.names():
                raise self._unknown(str(name_or_path))
            path = self.folder / f"{name_or_path}.toml"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BenchError(f"cannot read the preset {path}: {error.strerror}") from error
        return self.parse(content, str(path))

    def parse(self, content: bytes, source: str) -> Preset:
        """A preset from TOML; ``source`` names the file in messages.

        Raises:
            BenchError: see `load`.
        """
        try:
            table = msgspec.toml.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BenchError(f"{source} is not TOML: {error}") from error
        return self.from_table(table, source)

    def changed(self, preset: Preset, changes: Mapping[str, Any], source: str) -> Preset:
        """The preset with other values, checked again as when it was read.

        Args:
            changes: by dotted name: ``seed``, ``optimizer.lr``, ``rounds.0.depth``. Another
                `choice` drops the settings of the old one, whatever the order.
            source: of the changes, for messages.

        Raises:
            BenchError: an unknown name, or a value of the wrong type.
        """
        table = msgspec.to_builtins(preset)
        for name in sorted(changes, key=lambda one: one != self.choice):
            *path, last = name.split(".")
            inner = table
            for key in path:
                inner = self._inside(inner, key, f"{source}: a preset has no {name}")
            if not isinstance(inner, dict):
                raise BenchError(f"{source}: {name} is a whole table", "name a field of it")
            if name == self.choice and inner["name"] != changes[name]:
                inner.clear()
            if name in self.instead_of:
                inner.pop(self.instead_of[name], None)
            inner[last] = changes[name]
        return self.from_table(table, source)

    def _inside(self, table: Any, key: str, problem: str) -> Any:
        """The table of that name, or of that number in a list."""
        if isinstance(table, list | tuple) and key.isdecimal() and int(key) < len(table):
            return table[int(key)]
        if isinstance(table, dict) and isinstance(table.get(key), dict | list | tuple):
            return table[key]
        raise BenchError(problem, _meant(key, self.records))

    def _unknown(self, name: str) -> BenchError:
        close = difflib.get_close_matches(name, self.names(), n=3, cutoff=0.5)
        known = f"use one of {', '.join(self.names())}, or a .toml file"
        hint = f"did you mean {' or '.join(close)}?" if close else known
        return BenchError(f"no preset for {self.purpose} is called {name!r}", hint)


def _meant(wrong: str, records: Records) -> str:
    """The field that a misspelt key was meant to be."""
    fields = {field for record in records for field in record.__struct_fields__}
    if wrong in fields:
        return "this preset has no table of that name: set the whole of it"
    close = difflib.get_close_matches(wrong, sorted(fields), n=1)
    return f"did you mean {close[0]}?" if close else "remove it: presets are strict"
