"""Strict records: the base class, and the one way to decode them from JSON and TOML."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar, dataclass_transform

import msgspec

from foundation.atomic import replacing
from foundation.errors import BenchError
from foundation.suggestions import did_you_mean

_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_INVALID_CHOICE = re.compile(r"Invalid enum value '([^']*)'")

_FIRST_LOOK = Lock()
_KNOWN: set[type[Any]] = set()  # types that msgspec has looked at


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Frozen, and strict when decoded: an unknown field or a wrong type is refused."""


T = TypeVar("T")


class Readable(Protocol):
    """A local path, or an object of a store."""

    def read_bytes(self) -> bytes:
        """The whole content."""


def read_json(path: Readable, kind: type[T], hint: str = "") -> T:
    """The record in a JSON file.

    Args:
        hint: what to do where the file is damaged.

    Raises:
        BenchError: it cannot be read, is not JSON, or is not such a record.
    """
    return decode_json(_content(path), kind, path, hint)


def read_toml(path: Path, kind: type[T]) -> T:
    """The record in a TOML file.

    Raises:
        BenchError: it cannot be read, is not TOML, or is not such a record.
    """
    return decode_toml(_content(path), kind, path)


def read_object(path: Path, hint: str = "") -> dict[str, Any]:
    """The JSON object in a file of another program, whatever fields it has.

    NaN and Infinity are read: they are not JSON, and Python programs write them.

    Raises:
        BenchError: it cannot be read, is not JSON, or is not an object.
    """
    content = _content(path)
    value: Any = _decode(lambda: json.loads(content), dict, path, "JSON", hint)
    if not isinstance(value, dict):
        raise BenchError(f"{path} is not a JSON object", hint)
    return value


def write_json(path: Path, record: msgspec.Struct | Mapping[str, Any]) -> None:
    """Write a record or an object as indented JSON; the file is whole or as it was.

    Raises:
        OSError: the file cannot be written.
    """
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(record)))


def decode_json(content: bytes, kind: type[T], source: object, hint: str = "") -> T:
    """Decode a record from JSON; ``source`` names the content in messages.

    Raises:
        BenchError: not JSON, or not such a record.
    """
    return _decode(lambda: msgspec.json.decode(content, type=kind), kind, source, "JSON", hint)


def decode_toml(content: bytes, kind: type[T], source: object, hint: str = "") -> T:
    """Decode a record from TOML; ``source`` names the content in messages.

    Raises:
        BenchError: not TOML, or not such a record; the hint names the field that was meant.
    """
    return _decode(lambda: msgspec.toml.decode(content, type=kind), kind, source, "TOML", hint)


def convert_table(
    table: Mapping[str, Any],
    kind: type[T],
    source: object,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """Make a record of a decoded table; ``source`` names the table in messages.

    Args:
        dec_hook: see `msgspec.convert`; a BenchError that it raises passes as it is.

    Raises:
        BenchError: not such a record; the hint names the field that was meant.
    """
    plain = dict(table)
    return _decode(
        lambda: msgspec.convert(plain, type=kind, dec_hook=dec_hook), kind, source, "TOML", ""
    )


def differing_fields(a: Mapping[str, Any], b: Mapping[str, Any], above: str = "") -> list[str]:
    """Dotted names of the fields in which two tables differ; one that is missing is None."""
    names = []
    for name in dict.fromkeys([*a, *b]):
        mine, theirs = a.get(name), b.get(name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            names += differing_fields(mine, theirs, f"{above}{name}.")
        elif mine != theirs:
            names.append(f"{above}{name}")
    return names


def fields_of(kind: type[Any]) -> set[str]:
    """Names of the fields of a record and of all records that it consists of."""
    records = _records(msgspec.inspect.type_info(kind))
    return {field.encode_name for record in records for field in record.fields}


def _content(path: Readable) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from error


def _decode(decode: Callable[[], T], kind: type[T], source: object, form: str, hint: str) -> T:
    _prepare(kind)
    try:
        return decode()
    except msgspec.ValidationError as error:
        raise BenchError(f"{source}: {error}", hint or _meant(str(error), kind)) from error
    except RecursionError as error:
        raise BenchError(f"{source} is nested too deeply to be {form} of ours", hint) from error
    # ValueError: a number of more digits than Python converts, or text that is not UTF-8
    except (msgspec.DecodeError, ValueError) as error:
        raise BenchError(f"{source} is not {form}: {error}", hint) from error


def _prepare(kind: type[Any]) -> None:
    """Let msgspec look at a type in one thread: two that do so at once can end the process."""
    with _FIRST_LOOK:
        if kind not in _KNOWN:
            msgspec.json.Decoder(kind)
            _KNOWN.add(kind)


def _meant(problem: str, kind: type[Any]) -> str:
    """The field or choice that a misspelt one was meant to be, from msgspec's message."""
    if match := _UNKNOWN_FIELD.search(problem):
        fields = fields_of(kind)
        return did_you_mean(match[1], fields, f"known fields: {', '.join(sorted(fields))}")
    if match := _INVALID_CHOICE.search(problem):
        records = _records(msgspec.inspect.type_info(kind))
        choices = {str(choice) for record in records for choice in _choices(record)}
        return did_you_mean(match[1], choices)
    return ""


def _records(
    info: Any, seen: frozenset[type] = frozenset()
) -> Iterator[msgspec.inspect.StructType]:
    """Struct types that a type consists of, itself among them."""
    if isinstance(info, msgspec.inspect.StructType):
        if info.cls in seen:
            return
        yield info
        for field in info.fields:
            yield from _records(field.type, seen | {info.cls})
        return
    for name in ("item_type", "key_type", "value_type", "types", "item_types"):
        inner = getattr(info, name, ())
        for part in inner if isinstance(inner, tuple) else (inner,):
            yield from _records(part, seen)


def _choices(record: msgspec.inspect.StructType) -> Iterator[Any]:
    """Values of the fields of a record that are one of a few."""
    for field in record.fields:
        kinds = getattr(field.type, "types", (field.type,))
        for kind in (*kinds, *(getattr(member, "key_type", None) for member in kinds)):
            if isinstance(kind, msgspec.inspect.LiteralType):
                yield from kind.values
