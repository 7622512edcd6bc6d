"""Strict records, decoded from JSON and TOML, and collections of named TOML files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Generic, TypeVar, dataclass_transform

import msgspec

from foundation.errors import BenchError, did_you_mean
from foundation.files import Readable, check_not_lfs_pointer, read_file, replace_file
from foundation.record_errors import NAME_PATTERN, describe_problem, list_fields

SUFFIX = ".toml"
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
R = TypeVar("R", bound=msgspec.Struct)

_INSPECTION_LOCK = Lock()
_INSPECTED: set[type[Any]] = set()  # types that msgspec has inspected


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frozen record that refuses unknown fields and wrong types when it is decoded."""


T = TypeVar("T")


def read_json(path: Readable, kind: type[T], hint: str = "") -> T:
    """Return the record in a JSON file.

    Args:
        path: file to read.
        kind: type of the record.
        hint: advice to show if the file is damaged.

    Raises:
        BenchError: the file cannot be read, is not JSON, or does not hold such a record.
    """
    return decode_json(_read_content(path), kind, path, hint)


def read_toml(path: Path, kind: type[T]) -> T:
    """Return the record of type ``kind`` in the TOML file ``path``.

    Raises:
        BenchError: the file cannot be read, is not TOML, or does not hold such a record.
    """
    return decode_toml(_read_content(path), kind, path)


def read_object(path: Path, hint: str = "") -> dict[str, Any]:
    """Return the JSON object in a file of another program, whatever its fields are.

    NaN and Infinity are accepted: they are not JSON, but Python programs write them.

    Args:
        path: file to read.
        hint: advice to show if the file is damaged.

    Raises:
        BenchError: the file cannot be read, is not JSON, or does not hold an object.
    """
    content = _read_content(path)
    value: Any = _decode(lambda _: json.loads(content), dict, path, "JSON", hint)
    if not isinstance(value, dict):
        raise BenchError(f"{path} is not a JSON object", hint)
    return value


def write_json(path: Path, record: msgspec.Struct | Mapping[str, Any]) -> None:
    """Write ``record`` to ``path`` as indented JSON, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with replace_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(record)))


def decode_json(content: bytes, kind: type[T], source: object, hint: str = "") -> T:
    """Decode a record from JSON.

    Args:
        content: encoded record.
        kind: type of the record.
        source: name of the content in messages.
        hint: advice to show if the content is damaged.

    Raises:
        BenchError: the content is not JSON, or not such a record.
    """
    return _decode(lambda to: msgspec.json.decode(content, type=to), kind, source, "JSON", hint)


def decode_toml(content: bytes, kind: type[T], source: object, hint: str = "") -> T:
    """Decode a record from TOML.

    Args:
        content: encoded record.
        kind: type of the record.
        source: name of the content in messages.
        hint: advice to show if the content is damaged.

    Raises:
        BenchError: the content is not TOML, or not such a record. The hint names the closest field.
    """
    return _decode(lambda to: msgspec.toml.decode(content, type=to), kind, source, "TOML", hint)


def convert_table(
    table: Mapping[str, Any],
    kind: type[T],
    source: object,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """Convert a decoded table into a record of type ``kind``.

    Args:
        table: keys and values.
        kind: type of the record.
        source: name of the table in messages.
        dec_hook: see `msgspec.convert`. A BenchError that it raises is not changed.

    Raises:
        BenchError: the table is not such a record. The hint names the closest field.
    """
    plain = dict(table)
    decode = partial(msgspec.convert, plain, dec_hook=dec_hook)
    return _decode(decode, kind, source, "TOML", "")


def find_differing_keys(a: Mapping[str, Any], b: Mapping[str, Any], above: str = "") -> list[str]:
    """Return the dotted names of the fields in which tables ``a`` and ``b`` differ.

    A field that one of them lacks counts as None.

    Args:
        a: table.
        b: other table.
        above: prefix of the names, for nested tables.
    """
    names = []
    for name in dict.fromkeys([*a, *b]):
        mine, theirs = a.get(name), b.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            names += find_differing_keys(mine, theirs, f"{above}{name}.")
        elif mine != theirs:
            names.append(f"{above}{name}")
    return names


def _read_content(path: Readable) -> bytes:
    try:
        content = read_file(path)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}", "check that file") from error
    check_not_lfs_pointer(path, content)
    return content


def _decode(decode: Callable[[Any], Any], kind: type[T], source: object, form: str, hint: str) -> T:
    """Call ``decode`` with the type ``kind``. If it fails, decode as ``Any`` to name the value."""
    _inspect_once(kind)
    try:
        decoded: T = decode(kind)
        return decoded
    except msgspec.ValidationError as error:
        message, suggestion = describe_problem(str(error), kind, _decode_any(decode))
        raise BenchError(f"{source}: {message}", hint or suggestion) from error
    except RecursionError as error:
        raise BenchError(f"{source} is nested too deeply", hint) from error
    # ValueError: a number of more digits than Python converts, or text that is not UTF-8
    except (msgspec.DecodeError, ValueError) as error:
        raise BenchError(f"{source} is not {form}: {error}", hint) from error


def _decode_any(decode: Callable[[Any], Any]) -> Any:
    """Decode content of any type for an error message, or return None if that is impossible."""
    try:
        return decode(Any)
    except (RecursionError, ValueError, msgspec.DecodeError):
        return None


def _inspect_once(kind: type[Any]) -> None:
    """Let msgspec inspect a type in one thread, since two at once can crash the process."""
    with _INSPECTION_LOCK:
        if kind not in _INSPECTED:
            msgspec.json.Decoder(kind)
            _INSPECTED.add(kind)


@dataclass(frozen=True)
class TomlFiles(Generic[R]):
    """The shipped TOML files of one kind, and changes to their records by dotted names.

    Attributes:
        kind: name of the kind in messages, such as ``preset for pre-training``.
        folder: folder of the shipped files.
        record: strict msgspec Struct that each file is decoded into.
        dec_hook: see `msgspec.convert`.
        choice: dotted name of the field that decides which other fields its table has.
        instead_of: by dotted name, sibling fields that are dropped when the field is set.
        renamed: names of shipped files by their names in earlier versions, which are accepted.
    """

    kind: str
    folder: Path
    record: type[R]
    dec_hook: Callable[[type, Any], Any] | None = None
    choice: str = ""
    instead_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return the names of the shipped files, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob(f"*{SUFFIX}")))

    def load(self, name_or_path: str | Path) -> R:
        """Return the record of a shipped file or of a file of the user.

        Args:
            name_or_path: shipped name, with or without ``.toml``, or a path.

        Raises:
            BenchError: an unknown name, a file that is not TOML, an unknown field, or a wrong
                value.
        """
        path = self._find(str(name_or_path))
        return self.parse(_read_content(path), str(path))

    def parse(self, content: bytes, source: str) -> R:
        """Return a record from the TOML in ``content``, called ``source`` in messages.

        Raises:
            BenchError: not TOML, an unknown field, or a wrong value.
        """
        return self.convert(decode_toml(content, dict[str, Any], source), source)

    def convert(self, table: Mapping[str, Any], source: str) -> R:
        """Return a record from a decoded ``table``, called ``source`` in messages.

        Raises:
            BenchError: an unknown field, or a wrong value.
        """
        return convert_table(table, self.record, source, self.dec_hook)

    def changed(self, record: R, changes: Mapping[str, Any], source: str) -> R:
        """Return a copy of a record with some fields changed, validated again.

        Args:
            record: record to copy.
            changes: values by dotted name: ``seed``, ``optimizer.lr``, ``rounds.0.depth``. Another
                `choice` drops the fields of the old one, whatever the order.
            source: origin of the changes, for messages.

        Raises:
            BenchError: an unknown name, or a wrong value.
        """
        table = msgspec.to_builtins(record)
        for name in sorted(changes, key=lambda name: name != self.choice):
            *path, last = name.split(".")
            inner = table
            for key in path:
                inner = self._inner_table(inner, key, f"{source}: a {self.kind} has no {name}")
            if not isinstance(inner, dict):
                raise BenchError(f"{source}: {name} is a table", "set one of its fields")
            if name == self.choice and inner["name"] != changes[name]:
                inner.clear()
            for other in self.instead_of.get(name, ()):
                inner.pop(other, None)
            inner[last] = changes[name]
        return self.convert(table, source)

    def _find(self, name: str) -> Path:
        """Return the path of a shipped name or of a file. A name with suffix prefers the file."""
        path, stem = Path(name), name.removesuffix(SUFFIX)
        if stem in self.names() and (stem == name or not path.is_file()):
            return self.folder / f"{stem}{SUFFIX}"
        if path.is_file():
            return path
        if stem in self.renamed:
            return self._find(self.renamed[stem])
        known = f"use one of {', '.join(self.names())}, or a {SUFFIX} file"
        raise BenchError(
            f"there is no {self.kind} or file {name!r}",
            did_you_mean(path.stem, self.names(), known),
        )

    def _inner_table(self, table: Any, key: str, problem: str) -> Any:
        """Return the inner table with this name, or at this position of a list."""
        if isinstance(table, list | tuple) and key.isdecimal() and int(key) < len(table):
            return table[int(key)]
        if isinstance(table, dict) and isinstance(table.get(key), dict | list | tuple):
            return table[key]
        known = list_fields(self.record)
        if key in known:
            raise BenchError(problem, f"this {self.kind} has no table {key}: set all of it")
        raise BenchError(problem, did_you_mean(key, known))
