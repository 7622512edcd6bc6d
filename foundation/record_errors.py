"""Messages about tables and records that do not validate: the field, what was found, its type."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from foundation.errors import did_you_mean

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_LONGEST_VALUE = 60  # characters that a message repeats
_WORDS = (("`", ""), (" | null", ""), ("array", "list"), ("object", "table"))
_LISTS = (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)


def describe_problem(problem: str, kind: type[Any], content: Any) -> tuple[str, str]:
    """Describe why a record does not validate.

    Args:
        problem: message of msgspec, such as "Expected `int`, got `str` - at `$.batch_size`".
        kind: type of the record.
        content: decoded JSON or TOML that does not validate.

    Returns:
        The message, "batch_size is 'x': expected int, got str", and a hint, which may be "".
    """
    reason, _, where = problem.removesuffix("`").replace("`key in $", "`$").partition(" - at `$")
    path = _split_path(where, content)
    field, inside = ".".join(path), f" in {'.'.join(path)}" if path else ""
    value, types = content, _types_at(kind, path)
    for step in path:
        value = _value_at(value, step)
    if isinstance(value, dict) and (record := _find_record(types, value)):
        names = {each.encode_name: each.required for each in record.fields}
        unknown = [key for key in value if key not in names and key != record.tag_field]
        if unknown and record.cls.__struct_config__.forbid_unknown_fields:
            return f"unknown field {unknown[0]!r}{inside}", suggest_field(unknown[0], [record])
        if missing := [name for name, required in names.items() if required and name not in value]:
            return f"the field {missing[0]!r} is missing{inside}", ""
        return f"{field}: {reason}" if field else reason, ""
    choices = _choices(kind, path)
    chosen = value if isinstance(value, dict) else [value] if isinstance(value, str) else []
    if wrong := [each for each in chosen if choices and each not in choices]:
        hint = did_you_mean(wrong[0], choices, f"use one of {', '.join(map(repr, choices))}")
        return f"{field} is {wrong[0]!r}", hint
    is_list = any(isinstance(info, _LISTS) for each in types for info in _members(each))
    hint = f"write [[{field}]] instead of [{field}]" if field and is_list else ""
    is_found = "" if value is None else f" is {_describe_value(value)}"
    if reason.startswith("Expected"):  # not the message of a check of ours
        reason = f"e{reason.partition(', got ')[0][1:]}"
        for old, new in _WORDS:
            reason = reason.replace(old, new)
    message = f"{field or 'the content'}{is_found}: {reason}"
    return message, hint if isinstance(value, dict) else ""


def list_fields(kind: type[Any]) -> set[str]:
    """Return the names of the fields of a record ``kind`` and of all records below it."""
    return {name.rpartition(".")[2] for name in _dotted_fields([_inspect(kind)])}


def _split_path(path: str, content: Any) -> list[str]:
    """Split ``.axes[0].values`` into its steps.

    A key that msgspec leaves out is the only key of the mapping, or else ``NAME``.
    """
    steps = []
    for step in path.replace("...", "NAME").replace("[", ".").replace("]", "").split("."):
        if not step:
            continue
        if step == "NAME" and isinstance(content, dict) and len(content) == 1:
            step = next(iter(content))
        steps.append(step)
        content = _value_at(content, step)
    return steps


def _inspect(kind: type[Any]) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


def suggest_field(wrong: str, records: Sequence[type[Any] | msgspec.inspect.Type]) -> str:
    """Suggest a field of some ``records``, or of the records below by its dotted name.

    Args:
        wrong: name that no field has.
        records: types whose fields a table may have.
    """
    infos = [_inspect(each) if isinstance(each, type) else each for each in records]
    names = list(_dotted_fields(infos))
    fields = [name for name in names if "." not in name]
    below = {name.rpartition(".")[2]: name for name in reversed(names) if name not in fields}
    if wrong in below:
        return f"did you mean {below[wrong]}?"
    known = f"known fields: {', '.join(sorted(fields))}"
    return did_you_mean(wrong, fields) or did_you_mean(wrong, below.values(), known)


def _find_record(
    types: Sequence[msgspec.inspect.Type], table: dict[str, Any]
) -> msgspec.inspect.StructType | None:
    """Return the record that a table should be: of several, the one that its tag names."""
    records = [
        each
        for info in types
        for each in _members(info)
        if isinstance(each, msgspec.inspect.StructType)
    ]
    tagged = [each for each in records if each.tag_field and table.get(each.tag_field) == each.tag]
    return next(iter(tagged or (records if len(records) == 1 else [])), None)


def _choices(kind: type[Any], path: Sequence[str]) -> list[str]:
    """Return the values that a field may have, or the tags that decide which record a table is."""
    literals = [each for info in _types_at(kind, path) for each in _literals(info)]
    records = [each for info in _types_at(kind, path[:-1]) for each in _members(info)]
    tags = [
        each.tag
        for each in records
        if isinstance(each, msgspec.inspect.StructType) and path and each.tag_field == path[-1]
    ]
    return sorted({str(each) for each in (*literals, *tags)})


def _literals(info: msgspec.inspect.Type) -> Iterator[Any]:
    for member in _members(info):
        if isinstance(member, msgspec.inspect.LiteralType):
            yield from member.values
        yield from _literals(key) if (key := getattr(member, "key_type", None)) else ()


def _types_at(kind: type[Any], path: Sequence[str]) -> list[msgspec.inspect.Type]:
    """Return the types that a record may have at a path."""
    types = [_inspect(kind)]
    for step in path:
        types = [inner for info in types for inner in _step_into(info, step)]
    return types


def _step_into(info: msgspec.inspect.Type, step: str) -> Iterator[msgspec.inspect.Type]:
    for member in _members(info):
        if isinstance(member, msgspec.inspect.StructType):
            yield from (field.type for field in member.fields if field.encode_name == step)
        else:
            inner = (getattr(member, name, None) for name in ("item_type", "value_type"))
            yield from filter(None, inner)
            yield from getattr(member, "item_types", ())


def _members(info: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Type]:
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)


def _dotted_fields(
    types: Sequence[msgspec.inspect.Type], above: str = "", outer: frozenset[type] = frozenset()
) -> Iterator[str]:
    """Yield the names of the fields of some records, then dotted names of the fields below."""
    records = [each for info in types for each in _members(info)]
    for record in records:
        if not isinstance(record, msgspec.inspect.StructType):
            items = list(_step_into(record, ""))
            yield from _dotted_fields(items, above, outer) if items else ()
        elif record.cls not in outer:
            yield from (above + field.encode_name for field in record.fields)
            for field in record.fields:
                inside = f"{above}{field.encode_name}."
                yield from _dotted_fields([field.type], inside, outer | {record.cls})


def _value_at(content: Any, step: str) -> Any:
    try:
        return content[int(step) if isinstance(content, list | tuple) else step]
    except (LookupError, ValueError, TypeError):
        return None


def _describe_value(value: Any) -> str:
    """Describe a value that was found."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple) and value:
        return "a table" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
