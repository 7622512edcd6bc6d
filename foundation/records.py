"""Strict records, decoded from JSON and TOML, and collections of named TOML files."""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from pathlib import Path
from reprlib import repr as short_repr
from threading import Lock
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import msgspec

from foundation.errors import BenchError, did_you_mean
from foundation.files import check_not_lfs_pointer, replace_file

logger = logging.getLogger(__name__)

SUFFIX = ".toml"
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Hook = Callable[[type, Any], Any] | None
R = TypeVar("R", bound=msgspec.Struct)

# Names of types for readers, and the words for the types in messages of msgspec.
PLAIN_TYPES = {bool: "true or false", str: "text", int: "whole number", float: "number"}
_WORDS = {kind.__name__: name for kind, name in PLAIN_TYPES.items()}
_WORDS |= {"int": "a whole number", "float": "a number", "array": "a list", "object": "a table"}
_INSPECTION_LOCK = Lock()
_INSPECTED: set[type[Any]] = set()  # types that msgspec has inspected


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frozen record that refuses unknown fields and wrong types when it is decoded."""


T = TypeVar("T")


def read_json(path: Path, kind: type[T], hint: str = "") -> T:
    """Return the record of type ``kind`` in a JSON file. A damaged file has the ``hint``."""
    return decode_json(read_content(path), kind, path, hint)


def read_toml(path: Path, kind: type[T]) -> T:
    """Return the record of type ``kind`` in the TOML file ``path``."""
    return decode_toml(read_content(path), kind, path)


def read_object(path: Path, hint: str = "") -> dict[str, Any]:
    """Return the JSON object in a file of another program, whatever its fields are.

    NaN and Infinity are accepted: they are not JSON, but Python programs write them.
    """
    return decode_object(read_content(path), path, hint)


def decode_object(content: bytes, source: object, hint: str = "") -> dict[str, Any]:
    """Decode a JSON object, called ``source`` in messages, as `read_object` does."""
    value: Any = _decode(lambda _: json.loads(content), dict, source, "JSON", hint)
    if not isinstance(value, dict):
        raise BenchError(f"{source} is not a JSON object", hint)
    return value


def write_json(path: Path, record: msgspec.Struct | Mapping[str, Any]) -> None:
    """Write ``record`` to ``path`` as indented JSON, atomically."""
    with replace_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(record)))


def decode_json(content: bytes, kind: type[T], source: object, hint: str = "") -> T:
    """Decode a record of type ``kind`` from JSON, called ``source`` in messages."""
    return _decode(lambda to: msgspec.json.decode(content, type=to), kind, source, "JSON", hint)


def decode_toml(content: bytes, kind: type[T], source: object) -> T:
    """Decode a record of type ``kind`` from TOML, called ``source`` in messages."""
    return _decode(lambda to: msgspec.toml.decode(content, type=to), kind, source, "TOML", "")


def convert_table(
    table: Mapping[str, Any], kind: type[T], source: object, dec_hook: Hook = None
) -> T:
    """Convert a decoded ``table``, called ``source`` in messages, into a record."""
    plain = dict(table)

    def convert(kind: Any) -> Any:
        return msgspec.convert(plain, kind, dec_hook=dec_hook)

    return _decode(convert, kind, source, "TOML", "", dec_hook)


def find_differing_keys(a: Mapping[str, Any], b: Mapping[str, Any], above: str = "") -> list[str]:
    """Return the dotted names, after ``above``, of the fields in which tables ``a`` and ``b``
    differ.

    A field that one of them lacks counts as None.
    """
    names = []
    for name in dict.fromkeys([*a, *b]):
        mine, theirs = a.get(name), b.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            names += find_differing_keys(mine, theirs, f"{above}{name}.")
        elif mine != theirs:
            names.append(f"{above}{name}")
    return names


def read_content(path: Path) -> bytes:
    """Return the bytes of a file, which is not a Git LFS pointer."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}", "Check that file.") from error
    check_not_lfs_pointer(path, content)
    return content


def _decode(
    decode: Callable[[Any], Any],
    kind: type[T],
    source: object,
    form: str,
    hint: str,
    dec_hook: Hook = None,
) -> T:
    """Call ``decode`` with the type ``kind``. If it fails, decode as ``Any`` to find the field."""
    _inspect_once(kind)
    try:
        try:
            decoded: T = decode(kind)
            return decoded
        except msgspec.ValidationError as error:
            message, suggestion = _describe_problem(decode(Any), kind, error, dec_hook)
            raise BenchError(f"{source}: {message}", hint or suggestion) from error
    except RecursionError as error:
        raise BenchError(f"{source} is nested too deeply", hint) from error
    # ValueError: a number of more digits than Python converts, or text that is not UTF-8
    except (msgspec.DecodeError, ValueError) as error:
        raise BenchError(f"{source} is not {form}: {error}", hint) from error


def _inspect_once(kind: type[Any]) -> None:
    """Let msgspec inspect a type in one thread, since two at once can crash the process."""
    with _INSPECTION_LOCK:
        if kind not in _INSPECTED:
            msgspec.json.Decoder(kind)
            _INSPECTED.add(kind)


@cache  # note only once
def _note_file(kind: str, name: str) -> None:
    file = f"{name}{SUFFIX}"
    logger.warning("%s is the shipped %s: for the file of that name, type %s", name, kind, file)


@dataclass(frozen=True)
class TomlFiles(Generic[R]):
    """The shipped TOML files of one kind, and changes to their records by dotted names.

    Attributes:
        kind: name of the kind in messages, such as ``preset for pre-training``.
        folder: folder of the shipped files.
        record: strict msgspec Struct that each file is decoded into.
        dec_hook: see `msgspec.convert`.
        instead_of: by dotted name, sibling fields that are dropped when the field is set.
    """

    kind: str
    folder: Path
    record: type[R]
    dec_hook: Hook = None
    instead_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return the names of the shipped files, sorted."""
        return tuple(sorted(path.stem for path in self.folder.glob(f"*{SUFFIX}")))

    def load(self, name_or_path: str | Path) -> R:
        """Return the record of a shipped file (with or without ``.toml``) or of the user."""
        path = self.find(str(name_or_path))
        return self.parse(read_content(path), str(path))

    def parse(self, content: bytes, source: str) -> R:
        """Return a record from the TOML in ``content``, called ``source`` in messages."""
        return self.convert(decode_toml(content, dict[str, Any], source), source)

    def convert(self, table: Mapping[str, Any], source: str) -> R:
        """Return a record from a decoded ``table``, called ``source`` in messages."""
        return convert_table(table, self.record, source, self.dec_hook)

    def changed(self, record: R, changes: Mapping[str, Any], source: str) -> R:
        """Return a copy of ``record`` with some fields changed, validated again.

        Args:
            record: record to copy.
            changes: values by dotted name: ``seed``, ``optimizer.lr``, ``rounds.0.depth``; see
                `merge`.
            source: origin of the changes, for messages.
        """
        nested: dict[str, Any] = {}
        for name, value in changes.items():
            if inside := [each for each in changes if each.startswith(f"{name}.")]:
                problem = f"{source}: both {name} and {inside[0]}, a field of it, are set"
                raise BenchError(problem, "Set one of them.")
            *path, last = name.split(".")
            inner = nested
            for key in path:
                inner = inner.setdefault(key, {})
            inner[last] = value
        return self.convert(self.merge(msgspec.to_builtins(record), nested), source)

    def merge(self, old: Any, changes: Mapping[str, Any], above: str = "") -> Any:
        """Return the table ``old`` with ``changes`` merged field by field.

        A table with another ``name`` replaces the old one. Items of a list are named by their
        positions. ``above`` is the path of the table, and "" for the record itself.
        """
        if isinstance(old, list | tuple):
            items = dict(zip(map(str, range(len(old))), old, strict=True))
            is_known = changes.keys() <= items.keys()
            return [*self.merge(items, changes, above).values()] if is_known else changes
        if not isinstance(old, Mapping):
            return changes
        if above and changes.get("name", old.get("name")) != old.get("name"):
            return changes
        dropped = {other for key in changes for other in self.instead_of.get(f"{above}{key}", ())}
        table = {name: old[name] for name in old if name in changes or name not in dropped}
        for key, value in changes.items():
            is_table = isinstance(value, Mapping)
            table[key] = self.merge(old.get(key), value, f"{above}{key}.") if is_table else value
        return table

    def find(self, name: str) -> Path:
        """Return the path of a shipped name or of a file. A name with suffix prefers the file."""
        path, stem = Path(name), name.removesuffix(SUFFIX)
        if stem in self.names() and (stem == name or not path.is_file()):
            if Path(f"{stem}{SUFFIX}").is_file():
                _note_file(self.kind, stem)
            return self.folder / f"{stem}{SUFFIX}"
        if path.is_file() and path.suffix == SUFFIX:
            return path
        known = f"Use one of {', '.join(self.names())}, or a {SUFFIX} file."
        hint = did_you_mean(path.stem, self.names(), known)
        raise BenchError(f"there is no {self.kind} or file {name!r}", hint)


def suggest_field(wrong: str, *kinds: Any) -> str:
    """Suggest the field of records ``kinds``, or of records below, that a wrong name means."""
    names = sorted({name for kind in kinds for name in _dotted_fields(kind)})
    fields = [name for name in names if "." not in name]
    below = {name.rpartition(".")[2]: name for name in names if name not in fields}
    if wrong in below:
        return f"Did you mean {below[wrong]}?"
    known = f"Use one of the fields {', '.join(fields)}."
    return did_you_mean(wrong, fields) or did_you_mean(wrong, below.values(), known)


def _dotted_fields(kind: Any, above: str = "", outer: tuple[type, ...] = ()) -> Iterator[str]:
    """Yield the names of the fields of a record, and dotted names of those of records below."""
    if _is_record(kind):
        for each in msgspec.structs.fields(kind) if kind not in outer else ():
            yield f"{above}{each.encode_name}"
            yield from _dotted_fields(each.type, f"{above}{each.encode_name}.", (*outer, kind))
    for inner in get_args(kind):
        yield from _dotted_fields(inner, above, outer)


def _describe_problem(
    content: Any, kind: Any, error: msgspec.ValidationError, dec_hook: Hook
) -> tuple[str, str]:
    """Return a message about the innermost part of a table that does not validate, and a hint."""
    path: list[str] = []
    parts = _parts(content, kind)
    while part := next(parts, None):
        try:
            msgspec.convert(part[1], part[2], dec_hook=dec_hook)
        except msgspec.ValidationError as inner:
            name, content, kind = part
            path, error, parts = [*path, name], inner, _parts(content, kind)
    field = ".".join(filter(None, path))
    inside = f" in {field}" if path else ""
    if record := _record_of(content, kind):
        fields = msgspec.structs.fields(record)
        known = {record.__struct_config__.tag_field or "", *(each.encode_name for each in fields)}
        unknown = [name for name in content if name not in known]
        if unknown and record.__struct_config__.forbid_unknown_fields:
            return f"unknown field {unknown[0]!r}{inside}", suggest_field(unknown[0], record)
        names = [each.encode_name for each in fields if each.required]
        if missing := [name for name in names if name not in content]:
            return f"the field {missing[0]!r} is missing{inside}", ""
    literals = [each for each in _members(kind) if get_origin(each) is Literal]
    choices = sorted(str(each) for literal in literals for each in get_args(literal))
    hint = did_you_mean(str(content), choices, f"Use one of {', '.join(map(repr, choices))}.")
    if path and not path[-1]:
        field = f"a key of {field}" if field else "a key"
    if not record:
        field = f"{field or 'the content'} is {_describe_value(content)}"
    return ": ".join(filter(None, (field, _reason(error)))), hint if choices else ""


def _describe_value(value: Any) -> str:
    if isinstance(value, dict | list | tuple) and value:
        return "a table" if isinstance(value, dict) else "a list"
    return short_repr(value)


def _reason(error: msgspec.ValidationError) -> str:
    """Return the message of a failed check, with msgspec's own messages in plain English."""
    reason = str(error.__cause__ or error)
    if error.__cause__ is None and reason.startswith("Expected "):
        reason = f"e{reason.partition(', got ')[0][1:]}"
        return re.sub("`(.*?)`", _name_types, reason, count=1)
    if error.__cause__ is None and reason.startswith("Invalid enum value"):
        return "unknown value"
    return reason


def _name_types(found: re.Match[str]) -> str:
    """Return the words for types that msgspec separates by ``|``."""
    kinds = [kind for kind in found[1].split(" | ") if kind != "null"]
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds)


def _parts(content: Any, kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, value and type of each part of a table or list. A key has the name ""."""
    if record := _record_of(content, kind):
        for each in msgspec.structs.fields(record):
            if each.encode_name in content:
                yield each.encode_name, content[each.encode_name], each.type
        return
    tags = [each.__struct_config__ for each in _members(kind) if _is_record(each)]
    if tags and isinstance(content, dict) and (tag_field := tags[0].tag_field):
        yield tag_field, content.get(tag_field), Literal[tuple(each.tag for each in tags)]
    for member in _members(kind):
        inner = get_args(member)
        if isinstance(content, dict) and get_origin(member) is dict:
            yield from (("", name, inner[0]) for name in content)
            yield from ((name, value, inner[1]) for name, value in content.items())
        elif isinstance(content, list | tuple) and get_origin(member) in (list, tuple):
            kinds = repeat(inner[0]) if inner[1:] in ((), (...,)) else inner
            yield from zip(map(str, range(len(content))), content, kinds, strict=False)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _members(kind: Any) -> list[Any]:
    """Return the types of a union, or the type itself, without annotations."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [member for each in get_args(kind) for member in _members(each)]
    return [kind]


def _record_of(content: Any, kind: Any) -> type[msgspec.Struct] | None:
    """Return the record that a table should be: of several, the one that its tag names."""
    records = [each for each in _members(kind) if _is_record(each)]
    if not isinstance(content, dict) or len(records) < 2:
        return records[0] if records and isinstance(content, dict) else None
    config_of = {each: each.__struct_config__ for each in records}
    tagged = [each for each, by in config_of.items() if content.get(by.tag_field) == by.tag]
    return tagged[0] if tagged else None
