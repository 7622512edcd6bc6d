"""Lines, queries and judgements of plain and gzip files; errors name the file and the line."""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from datasets_cfg.readers import Judgements, Qrels, Queries
from foundation.errors import BenchError, MissingFileError, file_error
from foundation.files import check_not_lfs_pointer
from foundation.printable import format_count, format_names

BEIR_HEADER = ["query-id", "corpus-id", "score"]
_GRADE = re.compile(r"-?[0-9]{1,9}")
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
        BenchError: the file cannot be read, its gzip data are cut or corrupt, or a line is longer
            than any document.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LINE_BYTES), b""), start=1):
                if len(line) == _LINE_BYTES:
                    raise line_error(path, number, f"the line has {_LINE_BYTES:,} bytes or more")
                if number == 1:
                    check_not_lfs_pointer(path, line)
                start = 3 if number == 1 and line.startswith(_BYTE_ORDER_MARK) else 0
                yield number, line[start:].rstrip(b"\r\n")
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:  # it could not be opened
            raise file_error(error) from error
        raise line_error(path, number + 1, str(error), "copy or download the file again") from error


def read_rows(path: Path, columns: int, separator: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line number, fields)`` of each line that is not blank.

    ``separator`` None splits at any white space.

    Raises:
        BenchError: a line has another number of columns, or is not UTF-8.
    """
    for number, line in read_lines(path):
        text = decode_line(path, number, line)
        if not text.strip():
            continue
        fields = text.split(separator)
        if len(fields) != columns:
            raise line_error(path, number, f"{len(fields)} columns where {columns} belong")
        yield number, fields


def decode_line(path: Path, number: int, line: bytes) -> str:
    """Decode one line as UTF-8, or raise a `BenchError` that names it."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, number, error) from error


def not_utf8(path: Path, number: int, error: UnicodeDecodeError) -> BenchError:
    """Error about a line that is not UTF-8, with its first wrong byte."""
    wrong = f"not UTF-8 (byte 0x{error.object[error.start]:02x} at column {error.start + 1})"
    return line_error(path, number, wrong, "convert the file to UTF-8")


def check_id(path: Path, number: int, id_: str) -> str:
    """An id as it stands in a line, or a `BenchError` where it cannot be one."""
    if not id_:
        raise line_error(path, number, "the id is empty", "give it one: an id has a character")
    if "\0" in id_:
        raise line_error(
            path, number, f"the id {id_!r} holds a NUL", "remove it: is the file in UTF-8?"
        )
    return id_


def line_error(path: Path, number: int, message: str, hint: str = "") -> BenchError:
    """Error about line ``number`` (from 1) of ``path``."""
    return BenchError(f"{path}:{number}: {message}", hint=hint)


def keep_judged_queries(queries: Queries, qrels: Qrels, source: Path) -> Judgements:
    """Keep the queries that ``qrels`` (read from ``source``) judges.

    Raises:
        BenchError: no document of the qrels is relevant, or a judged query has no text.
    """
    if not (qrels.grades > 0).any():
        raise BenchError(
            f"{source}: none of the {len(qrels)} judgements has a grade above 0",
            hint="every measure would be 0: is this the right file?",
        )
    wanted = set(qrels.query_ids)
    kept = [row for row, id_ in enumerate(queries.ids) if id_ in wanted]
    if len(kept) < len(wanted):
        missing = sorted(wanted.difference(queries.ids))
        count = format_count(len(missing), "judged query is", "judged queries are")
        raise BenchError(
            f"{source}: {count} not in the queries file: {format_names(missing)}",
            hint="queries and qrels must belong together: are both of the same split?",
        )
    ids, texts = queries.ids, queries.texts
    selected = Queries(tuple(ids[row] for row in kept), tuple(texts[row] for row in kept))
    return Judgements(selected, qrels)


def collect_queries(rows: Iterable[tuple[int, str, str]], path: Path) -> Queries:
    """Queries from ``(line number, id, text)``; a repeated id raises a `BenchError`."""
    texts: dict[str, str] = {}
    for number, id_, text in rows:
        if check_id(path, number, id_) in texts:
            raise line_error(path, number, f"query id {id_!r} occurs twice")
        texts[id_] = text
    return Queries(tuple(texts), tuple(texts.values()))


def read_tsv_queries(path: Path) -> Queries:
    """Read ``id <tab> text`` lines."""
    rows = ((number, id_, text) for number, (id_, text) in read_rows(path, 2, "\t"))
    return collect_queries(rows, path)


def read_beir_qrels(path: Path) -> Qrels:
    """Read qrels with a header and three columns: query, document, grade.

    Raises:
        BenchError: another header, such as none, a wrong number of
            columns, a grade that is no integer, or one pair judged in two ways.
    """
    _check_header(path)
    rows = read_rows(path, 3, "\t")
    next(rows)
    return _collect_qrels(((number, f[0], f[1], f[2]) for number, f in rows), path)


def read_trec_qrels(path: Path) -> Qrels:
    """Read TREC qrels: query, iteration (ignored), document, grade, with white space between.

    Raises:
        BenchError: a wrong number of columns, a grade that is no integer, or one pair judged
            in two ways.
    """
    rows = read_rows(path, 4, None)
    return _collect_qrels(((number, f[0], f[2], f[3]) for number, f in rows), path)


def _check_header(path: Path) -> None:
    number, line = next(read_lines(path), (1, b""))
    header = decode_line(path, number, line)
    if header.split("\t") != BEIR_HEADER:
        raise line_error(
            path,
            number,
            f"the header is {header!r}, where the BEIR qrels format belongs",
            hint="write the header query-id<tab>corpus-id<tab>score, then those three columns",
        )


def _collect_qrels(rows: Iterable[tuple[int, str, str, str]], path: Path) -> Qrels:
    """Qrels from ``(line number, query, document, grade)``; a line said twice counts once."""
    grades: dict[tuple[str, str], int] = {}
    for number, query, document, grade in rows:
        check_id(path, number, query)
        check_id(path, number, document)
        if not _GRADE.fullmatch(grade):
            raise line_error(path, number, f"the grade {grade!r} is not an integer")
        known = grades.setdefault((query, document), int(grade))
        if known != int(grade):
            message = f"document {document!r} of query {query!r} has grades {known} and {grade}"
            raise line_error(path, number, message)
    return Qrels(
        query_ids=tuple(query for query, _ in grades),
        doc_ids=tuple(document for _, document in grades),
        grades=np.fromiter(grades.values(), dtype=np.int32, count=len(grades)),
    )
