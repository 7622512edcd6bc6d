"""Messages about tables and records that do not validate, made of the messages of msgspec."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from foundation.errors import did_you_mean

_PATH = re.compile(r" - at `(?:key in )?\$(?P<path>.*)`$")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING_FIELD = re.compile(r"Object missing required field `([^`]*)`")
_INVALID_CHOICE = re.compile(r"Invalid (?:enum )?value (.*)")
_EXPECTED = re.compile(r"Expected `([^`]*)`(.*?)(?:, got `([^`]*)`)?")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "null",
}
_BOUNDS = (
    (re.compile(r"of length >= (\d+)"), r"with \1 or more entries"),
    (re.compile(r"of length <= (\d+)"), r"with \1 entries or fewer"),
    (re.compile(r">= (\S+)"), r"of \1 or more"),
    (re.compile(r"<= (\S+)"), r"of \1 or less"),
    (re.compile(r"> (\S+)"), r"above \1"),
    (re.compile(r"< (\S+)"), r"below \1"),
)
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_LONGEST_VALUE = 60  # characters that a message repeats


def describe_problem(problem: str, kind: type[Any], content: Any) -> tuple[str, str]:
    """Describe in words why a record does not validate.

    Args:
        problem: message of msgspec, such as "Expected `int`, got `str` - at `$.batch_size`".
        kind: type of the record.
        content: decoded JSON or TOML that does not validate.

    Returns:
        The message, "batch_size is 'x', and must be a whole number", and a hint, which may be "".
    """
    match = _PATH.search(problem)
    path = _split_path(match["path"], content) if match else []
    reason = problem[: match.start()] if match else problem
    field, inside = ".".join(path), f" in {'.'.join(path)}" if path else ""
    if unknown := _UNKNOWN_FIELD.fullmatch(reason):
        return f"unknown field {unknown[1]!r}{inside}", suggest_field(
            unknown[1], _types_at(kind, path)
        )
    if missing := _MISSING_FIELD.fullmatch(reason):
        return f"the field {missing[1]!r} is missing{inside}", ""
    if invalid := _INVALID_CHOICE.fullmatch(reason):
        return f"{field} is {invalid[1]}", _suggest_choice(invalid[1].strip("'"), kind, path)
    if expected := _EXPECTED.fullmatch(reason):
        found = _describe_value(content, path)
        wanted = f"{_describe_types(expected[1])}{_describe_bound(expected[2])}"
        is_one_table = expected[1].startswith("array") and expected[3] == "object"
        hint = f"write [[{field}]] instead of [{field}]" if is_one_table and field else ""
        is_found = f" is {found}, and" if found else ""
        return f"{field or 'the content'}{is_found} must be {wanted}", hint
    return f"{field}: {reason}" if field else reason, ""


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


def _suggest_choice(wrong: str, kind: type[Any], path: Sequence[str]) -> str:
    """Suggest a value of a field, or a tag that decides which record a table is."""
    literals = [each for info in _types_at(kind, path) for each in _literals(info)]
    records = [each for info in _types_at(kind, path[:-1]) for each in _members(info)]
    tags = [
        each.tag
        for each in records
        if isinstance(each, msgspec.inspect.StructType) and each.tag_field == path[-1]
    ]
    choices = sorted({str(each) for each in (*literals, *tags)})
    return did_you_mean(wrong, choices, f"use one of {', '.join(map(repr, choices))}")


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


def _describe_types(names: str) -> str:
    """Describe types, such as ``int | null``, in words. Omit null unless it is the only type."""
    kinds = names.split(" | ")
    named = [_TYPES.get(kind, kind) for kind in kinds if kind != "null" or len(kinds) == 1]
    return " or ".join(filter(None, named))


def _describe_bound(bound: str) -> str:
    for pattern, words in _BOUNDS:
        bound = pattern.sub(words, bound)
    if bound.endswith(repr(NAME_PATTERN)):
        return " of letters, digits, '.', '_' and '-'"
    return bound.replace("matching regex", "that matches")


def _value_at(content: Any, step: str) -> Any:
    try:
        return content[int(step) if isinstance(content, list | tuple) else step]
    except (LookupError, ValueError, TypeError):
        return None


def _describe_value(content: Any, path: Sequence[str]) -> str:
    """Describe the value at a path, or return "" if the path is unknown."""
    for step in path:
        content = _value_at(content, step)
    if content is None:
        return ""
    if isinstance(content, bool):
        return str(content).lower()
    if isinstance(content, str | int | float) or content == []:
        text = repr(content)
        return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
    return "a table" if isinstance(content, dict) else "a list"
