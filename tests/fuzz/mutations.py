"""Changes of files that people, disks and attackers make: each a pure function of its randomness.

A mutation of bytes damages any file. Those that know a format keep the file readable and change
what it says, which is where a reader that does not validate goes wrong in silence.
"""

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DEEP = 100_000  # brackets: beyond what any reader recurses into
DIGITS = "9" * 400
WORDS: tuple[bytes, ...] = (
    *(b"", b" ", b"\n", b"\t", b"\0", b"\r\n", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80"),
    *(b"nan", b"NaN", b"inf", b"-Infinity", b"1e999", b"-1", b"0", b"1.5", b"true", b"null"),
    *(b"\xc2\x85", b"\xe2\x80\xa8", b"\x1b[2J", b"..", b"/", b"'", b'"', b"[[", b"{", b"#"),
    *(b"\\ud800", b"99999999999999999999", DIGITS.encode(), b"x" * 5_000),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**63, 2**64, -(2**63) - 1, 0.5, -0.0),
    *(1e308, 1e-320, float("nan"), float("inf"), -float("inf")),
    *("", " ", "0", "nan", "x", "a\0b", "..", "../x", "/", "\x1b[31m", "é", "x" * 300, "\ud800"),
    *([], {}, [None], [[]], {"": None}, ["x"], {"x": 1}, [1, 2, 3]),
)

TOML_VALUES = (
    *("nan", "inf", "-1", "0", "1", "2", "1e400", "true", '""', '" "', '"x"', "[]", "{}", "x"),
    *('"a\\u0000b"', '"../x"', '"\\u001b[31m"', "1979-05-27", "0x10", DIGITS, f'"{"x" * 300}"'),
)


def mutate_file(rng: Random, path: Path) -> str:
    """Change one file in place; says what was done."""
    if rng.random() < 0.06:
        return _replace_kind(rng, path)
    if path.suffix == ".gz":
        if rng.random() < 0.3:
            return _bytes(rng, path)
        path.write_bytes(gzip.compress(_damaged(rng, gzip.decompress(path.read_bytes()))[0]))
        return "bytes inside gzip"
    changes = _BY_SUFFIX.get(path.suffix, ())
    if changes and rng.random() < 0.7:
        return rng.choice(changes)(rng, path)
    return _bytes(rng, path)


def _replace_kind(rng: Random, path: Path) -> str:
    """A folder where a file should be, a link to nothing, an empty file."""
    kind = rng.choice(("folder", "loop", "dangling link", "empty", "absent", "endless zeros"))
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "dangling link":
        path.symlink_to(path.with_name("gone"))
    elif kind == "empty":
        path.touch()
    elif kind == "endless zeros":
        path.touch()
        os.truncate(path, 1 << 20)
    return f"{kind} instead of the file"


def _bytes(rng: Random, path: Path) -> str:
    content, what = _damaged(rng, path.read_bytes())
    path.write_bytes(content)
    return what


def _damaged(rng: Random, content: bytes) -> tuple[bytes, str]:
    """One to three damages of bytes."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content, what = rng.choice(_DAMAGES)(rng, content)
        done.append(what)
    return content, ", ".join(done)


def _flip(rng: Random, content: bytes) -> tuple[bytes, str]:
    if not content:
        return b"\x01", "a byte where none was"
    at = rng.randrange(len(content))
    bit = 1 << rng.randrange(8)
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :], f"bit of byte {at}"


def _cut(rng: Random, content: bytes) -> tuple[bytes, str]:
    at = rng.randrange(len(content) + 1)
    return content[:at], f"cut at {at} of {len(content)}"


def _remove(rng: Random, content: bytes) -> tuple[bytes, str]:
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + content[end:], f"bytes {start} to {end} gone"


def _repeat(rng: Random, content: bytes) -> tuple[bytes, str]:
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[start:], f"bytes {start} to {end} twice"


def _insert(rng: Random, content: bytes) -> tuple[bytes, str]:
    at, word = rng.randrange(len(content) + 1), rng.choice(WORDS)
    return content[:at] + word + content[at:], f"{word[:20]!r} at {at}"


def _over(rng: Random, content: bytes) -> tuple[bytes, str]:
    at, word = rng.randrange(len(content) + 1), rng.choice(WORDS)
    return content[:at] + word + content[at + len(word) :], f"{word[:20]!r} over {at}"


def _field(rng: Random, content: bytes) -> tuple[bytes, str]:
    """A word between white space, quotes or commas becomes another."""
    starts = [i for i in range(len(content)) if content[i : i + 1] in b' \t\n",:=']
    if not starts:
        return _insert(rng, content)
    start = rng.choice(starts) + 1
    end = start
    while end < len(content) and content[end : end + 1] not in b' \t\n",:=':
        end += 1
    word = rng.choice(WORDS)
    return content[:start] + word + content[end:], f"{word[:20]!r} for bytes {start} to {end}"


def _lines(rng: Random, content: bytes) -> tuple[bytes, str]:
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return _flip(rng, content)
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.choice(("swapped", "twice", "gone", "joined"))
    if what == "swapped":
        lines[first], lines[second] = lines[second], lines[first]
    elif what == "twice":
        lines.insert(second, lines[first])
    elif what == "gone":
        del lines[first]
    else:
        lines[first] = lines[first].rstrip(b"\n")
    return b"".join(lines), f"line {first + 1} {what}"


def _deep(rng: Random, content: bytes) -> tuple[bytes, str]:
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}"), (b"- ", b"")))
    nested = opening * DEEP + b"1" + closing * DEEP
    if rng.random() < 0.5:
        return nested, f"{DEEP} times {opening!r}"
    at = rng.randrange(len(content) + 1)
    return content[:at] + nested + content[at:], f"{DEEP} times {opening!r} at {at}"


Damage = Callable[[Random, bytes], tuple[bytes, str]]
_DAMAGES: tuple[Damage, ...] = (
    *(_flip, _flip, _cut, _remove, _repeat, _insert, _over, _field, _field, _field, _lines),
    *(_lines, _deep),
)


def _json(rng: Random, path: Path) -> str:
    """A node of a JSON document becomes something else."""
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return _bytes(rng, path)
    document, what = _changed(rng, document)
    path.write_text(json.dumps(document), encoding="utf-8", errors="surrogatepass")
    return what


def _json_line(rng: Random, path: Path) -> str:
    lines = path.read_bytes().splitlines()
    at = rng.randrange(len(lines)) if lines else 0
    try:
        document, what = _changed(rng, json.loads(lines[at]))
    except (ValueError, IndexError, RecursionError):
        return _bytes(rng, path)
    lines[at] = json.dumps(document).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return f"line {at + 1}: {what}"


def _changed(rng: Random, document: Any) -> tuple[Any, str]:
    places = list(_places(document))
    if not places:
        return rng.choice(VALUES), "the document"
    parent, key = rng.choice(places)
    what = rng.choice(("value", "value", "value", "gone", "renamed", "near"))
    if what == "gone":
        del parent[key]
    elif what == "renamed" and isinstance(parent, dict):
        parent[rng.choice(("", "x", f"{key}s", str(key).upper()))] = parent.pop(key)
    elif what == "near" and isinstance(parent[key], int | float):
        parent[key] += rng.choice((-1, 1, 0.5, 1e-9, parent[key]))
    else:
        what, parent[key] = "value", rng.choice(VALUES)
    return document, f"{key!r}: {what}"


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys."""
    items = (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    )
    for key, value in items:
        yield node, key
        yield from _places(value)


def _toml_line(rng: Random, path: Path) -> str:
    """The value of a key becomes another."""
    lines = path.read_text(encoding="utf-8").splitlines()
    keyed = [row for row, line in enumerate(lines) if "=" in line]
    if not keyed:
        return _bytes(rng, path)
    row = rng.choice(keyed)
    key = lines[row].partition("=")[0]
    value = rng.choice(TOML_VALUES)
    what = rng.choice(("value", "value", "gone", "twice", "renamed"))
    if what == "value":
        lines[row] = f"{key}= {value}"
    elif what == "gone":
        del lines[row]
    elif what == "twice":
        lines.insert(row, lines[row])
    else:
        lines[row] = f"x{lines[row]}"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{key.strip()}: {what} {value[:20]}" if what == "value" else f"{key.strip()}: {what}"


def _parquet(rng: Random, path: Path) -> str:
    """A column is gone, of another type, or of other values; rows are gone, or twice."""
    table = pq.read_table(path)
    name = rng.choice(table.column_names)
    column, at = table[name], table.column_names.index(name)
    rows = list(range(len(table)))
    what = rng.choice(("gone", "renamed", "type", "value", "value", "rows", "order", "null"))
    if what == "gone":
        table = table.drop_columns([name])
    elif what == "renamed":
        names = [f"{one}x" if one == name else one for one in table.column_names]
        table = table.rename_columns(names)
    elif what == "type":
        kind = rng.choice((pa.string(), pa.int64(), pa.float32(), pa.binary(), pa.list_(pa.int8())))
        try:
            table = table.set_column(at, name, column.cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            table = table.set_column(at, name, pa.array([[1]] * len(table)))
    elif what == "rows":
        table = table.take(sorted(rng.choices(rows, k=len(rows))))
    elif what == "order":
        rng.shuffle(rows)
        table = table.take(rows)
    else:
        values = column.to_pylist()
        numbers = (0.0, 1.0, 0.3, -1.0, 7.0, 1e300, float("nan"), float("inf"))
        wanted = numbers if pa.types.is_floating(column.type) else ("", "x", "a b", "\x1b", "é")
        values[rng.choice(rows)] = None if what == "null" else rng.choice(wanted)
        table = table.set_column(at, name, pa.array(values, column.type))
    pq.write_table(table, path)
    return f"column {name}: {what}"


def _safetensors(rng: Random, path: Path) -> str:
    """The header of a safetensors file says something else."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, what = _changed(rng, json.loads(content[8 : 8 + size]))
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[8 + size :])
    return f"header: {what}"


_BY_SUFFIX: dict[str, tuple[Callable[[Random, Path], str], ...]] = {
    ".json": (_json, _json, _bytes),
    ".jsonl": (_json_line, _json_line, _bytes),
    ".toml": (_toml_line, _toml_line, _bytes),
    ".parquet": (_parquet, _parquet, _bytes),
    ".safetensors": (_safetensors, _bytes),
}


def mutate_tree(rng: Random, folder: Path, pattern: str = "*") -> str:
    """Change one of the files below a folder, or exchange two of them."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    path = rng.choice(files)
    name = path.relative_to(folder).as_posix()
    if len(files) > 1 and rng.random() < 0.03:
        other = rng.choice([file for file in files if file != path])
        shutil.copyfile(other, path)
        return f"{name}: content of {other.relative_to(folder).as_posix()}"
    return f"{name}: {mutate_file(rng, path)}"
