"""Named TOML files of one kind: shipped ones by name, one's own by path; strict records.

Presets, grids of experiments and model cards are such files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec

from foundation.errors import BenchError
from foundation.records import convert_table, decode_toml, fields_of
from foundation.suggestions import did_you_mean

SUFFIX = ".toml"
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True)
class TomlFiles(Generic[R]):
    """The files of one kind, and how a record is changed by dotted names.

    Attributes:
        kind: what one is called in messages, such as ``preset for pre-training``.
        folder: of the shipped ones.
        record: the strict msgspec Struct that each is read into.
        dec_hook: see `msgspec.convert`.
        choice: dotted name of the field that decides which other fields its table has.
        instead_of: dotted names of fields, and the neighbours whose place each takes.
    """

    kind: str
    folder: Path
    record: type[R]
    dec_hook: Callable[[type, Any], Any] | None = None
    choice: str = ""
    instead_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Names of the shipped ones, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob(f"*{SUFFIX}")))

    def load(self, name_or_path: str | Path) -> R:
        """The record of a shipped name, with or without ``.toml``, or of a file.

        Raises:
            BenchError: no such name or file, not TOML, an unknown field, or a wrong value.
        """
        path = self._path(str(name_or_path))
        try:
            content = path.read_bytes()
        except OSError as error:
            meant = did_you_mean(path.stem, self.names())
            raise BenchError(f"cannot read {path}: {error.strerror}", meant) from error
        return self.parse(content, str(path))

    def parse(self, content: bytes, source: str) -> R:
        """A record from TOML; ``source`` names the content in messages.

        Raises:
            BenchError: not TOML, an unknown field, or a wrong value.
        """
        return self.convert(decode_toml(content, dict[str, Any], source), source)

    def convert(self, table: Mapping[str, Any], source: str) -> R:
        """A record from a table; ``source`` names it in messages.

        Raises:
            BenchError: an unknown field, or a wrong value.
        """
        return convert_table(table, self.record, source, self.dec_hook)

    def changed(self, record: R, changes: Mapping[str, Any], source: str) -> R:
        """The record with other values, checked again as when it was read.

        Args:
            changes: by dotted name: ``seed``, ``optimizer.lr``, ``rounds.0.depth``. Another
                `choice` drops the fields of the old one, whatever the order.
            source: of the changes, for messages.

        Raises:
            BenchError: an unknown name, or a wrong value.
        """
        table = msgspec.to_builtins(record)
        for name in sorted(changes, key=lambda name: name != self.choice):
            *path, last = name.split(".")
            inner = table
            for key in path:
                inner = self._inside(inner, key, f"{source}: a {self.kind} has no {name}")
            if not isinstance(inner, dict):
                raise BenchError(f"{source}: {name} is a whole table", "name a field of it")
            if name == self.choice and inner["name"] != changes[name]:
                inner.clear()
            for other in self.instead_of.get(name, ()):
                inner.pop(other, None)
            inner[last] = changes[name]
        return self.convert(table, source)

    def _path(self, name: str) -> Path:
        """A shipped name comes before a file without the suffix; a file before any other name."""
        path, stem = Path(name), name.removesuffix(SUFFIX)
        if stem in self.names() and (stem == name or not path.is_file()):
            return self.folder / f"{stem}{SUFFIX}"
        if path.is_file() or path.suffix == SUFFIX or "/" in name:
            return path
        known = f"use one of {', '.join(self.names())}, or a {SUFFIX} file"
        raise BenchError(
            f"no {self.kind} is called {name!r}, and there is no such file",
            did_you_mean(stem, self.names(), known),
        )

    def _inside(self, table: Any, key: str, problem: str) -> Any:
        """The table of that name, or of that number in a list."""
        if isinstance(table, list | tuple) and key.isdecimal() and int(key) < len(table):
            return table[int(key)]
        if isinstance(table, dict) and isinstance(table.get(key), dict | list | tuple):
            return table[key]
        known = fields_of(self.record)
        if key in known:
            raise BenchError(problem, f"this {self.kind} has no table {key}: set the whole of it")
        raise BenchError(problem, did_you_mean(key, known))


class HasVariants(Protocol):
    """A record that also says how it looks at another scale."""

    @property
    def name(self) -> str:
        """Name of the record."""
        ...

    @property
    def variants(self) -> Mapping[str, Any]:
        """By name, structs whose fields, where set, take the place of the record's own."""
        ...


def variant_fields(record: HasVariants, variant: str) -> dict[str, Any]:
    """The fields that a variant of a record sets, and the variant's name.

    Raises:
        BenchError: it has no such variant.
    """
    if variant not in record.variants:
        known = ", ".join(record.variants) or "none"
        raise BenchError(f"{record.name} has no variant {variant!r}", f"its variants: {known}")
    fields = msgspec.structs.asdict(record.variants[variant])
    set_there = {name: value for name, value in fields.items() if value}
    return {**set_there, "name": f"{record.name}-{variant}"}
