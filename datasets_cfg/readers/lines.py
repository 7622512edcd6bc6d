"""Lines of plain and gzip files, with errors that name the file and the line."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from foundation.errors import BenchError, MissingFileError, file_error

_BLOCK_BYTES = 1 << 20
_LINE_BYTES = 1 << 28  # a packed file of zeros is one line, a thousand times as long as the file
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def find_file(folder: Path, names: Sequence[str]) -> Path:
    """Return the first of ``names`` that ``folder`` holds, plain or with ``.gz``.

    Raises:
        MissingFileError: it holds none of them.
    """
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise MissingFileError(
        f"{folder} has no {' or '.join(names)}",
        hint="put the file there, plain or gzip-compressed (.gz)",
    )


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield ``(line number from 1, line)`` without line end and byte order mark.

    Only ``\n`` ends a line: other separators that Unicode knows occur inside passages.

    Raises:
        BenchError: the file cannot be read, its gzip data are cut or corrupt, a line is longer
            than any document, or a packed file of its name lies beside it and holds something else.
    """
    _refuse_two_versions(path)
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LINE_BYTES), b""), start=1):
                if len(line) == _LINE_BYTES:
                    raise bad_line(path, number, f"the line has {_LINE_BYTES:,} bytes or more")
                start = 3 if number == 1 and line.startswith(_BYTE_ORDER_MARK) else 0
                yield number, line[start:].rstrip(b"\r\n")
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:  # it could not be opened
            raise file_error(error) from error
        raise bad_line(path, number + 1, str(error), "copy or download the file again") from error


def packed_twin(path: Path) -> Path | None:
    """The gzip file that lies beside a plain one, under the same name; `find_file` passes it over.

    It may be newer, so that its owner thinks that it is what is read.
    """
    twin = path.with_name(f"{path.name}.gz")
    return twin if path.suffix != ".gz" and twin.is_file() else None


def _refuse_two_versions(path: Path) -> None:
    twin = packed_twin(path)
    if twin is not None and not _same_content(path, twin):
        raise BenchError(
            f"{path} and {twin.name} are both there, and do not hold the same",
            hint="remove the one that is not wanted: a plain file is read before a packed one",
        )


def _same_content(plain: Path, packed: Path) -> bool:
    try:
        with plain.open("rb") as unpacked, gzip.open(packed) as other:
            while block := unpacked.read(_BLOCK_BYTES):
                if other.read(_BLOCK_BYTES) != block:
                    return False
            return not other.read(1)
    except (EOFError, zlib.error, OSError):
        return False


def read_rows(path: Path, columns: int, separator: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line number, fields)`` of each line that is not blank.

    ``separator`` None splits at any white space.

    Raises:
        BenchError: a line has another number of columns, or is not UTF-8.
    """
    for number, line in read_lines(path):
        text = decoded(path, number, line)
        if not text.strip():
            continue
        fields = text.split(separator)
        if len(fields) != columns:
            raise bad_line(path, number, f"{len(fields)} columns where {columns} belong")
        yield number, fields


def decoded(path: Path, number: int, line: bytes) -> str:
    """Decode one line as UTF-8, or raise a `BenchError` that names it."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise bad_line(path, number, f"not UTF-8: {error}", "convert the file to UTF-8") from error


def checked_id(path: Path, number: int, id_: str) -> str:
    """An id as it stands in a line, or a `BenchError` where it cannot be one."""
    if not id_:
        raise bad_line(path, number, "the id is empty", "give it one: an id has a character")
    if "\0" in id_:
        raise bad_line(
            path, number, f"the id {id_!r} holds a NUL", "remove it: is the file in UTF-8?"
        )
    return id_


def bad_line(path: Path, number: int, message: str, hint: str = "") -> BenchError:
    """Error about line ``number`` (from 1) of ``path``."""
    return BenchError(f"{path}:{number}: {message}", hint=hint)
