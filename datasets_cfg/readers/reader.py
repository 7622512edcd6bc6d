"""Documents, queries and judgements, and the lines, TSV and qrels files that hold them.

Every file may be gzip-compressed. Errors name the file and the line.
"""

import gzip
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import msgspec
import numpy as np

from foundation.arrays import Int32Array
from foundation.errors import (
    BenchError,
    MissingFileError,
    errors_were_counted,
    file_error,
    format_count,
    format_names,
    report_error,
)
from foundation.files import check_not_lfs_pointer
from foundation.records import decode_json

Line = TypeVar("Line")

READER_VERSION = 1  # increase it if a reader yields different documents from the same files
BEIR_HEADER = ["query-id", "corpus-id", "score"]
_GRADE = re.compile(r"-?[0-9]{1,9}")
_LINE_BYTES = 1 << 28  # a compressed file of zeros is one line, a thousand times its size
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """A document of a collection. ``title`` may be empty."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Queries:
    """Queries in file order. ``ids`` and ``texts`` have the same length."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Qrels:
    """Relevance judgements (TREC qrels), one row per judged pair of query and document.

    Attributes:
        query_ids: query of each row, length n.
        doc_ids: document of each row, length n.
        grades: int32 ``(n,)``. 0 is judged not relevant, and negative grades occur in practice.
    """

    query_ids: tuple[str, ...]
    doc_ids: tuple[str, ...]
    grades: Int32Array

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return zip(self.query_ids, self.doc_ids, self.grades.tolist(), strict=True)

    def queries(self) -> tuple[str, ...]:
        """Return distinct query ids by first appearance, the denominator of every mean."""
        return tuple(dict.fromkeys(self.query_ids))


class TrainingExample(NamedTuple):
    """A training query with its passages, whose unknown ids, titles and texts are "".

    Attributes:
        id: id of the query; "" if unknown.
        query: text of the query; "" if unknown.
        positives: relevant passages.
        negatives: hard negatives.
        scores: a teacher's scores of the positives, then of the negatives; () for none.
    """

    id: str
    query: str
    positives: tuple[Document, ...]
    negatives: tuple[Document, ...]
    scores: tuple[float, ...] = ()


@dataclass(frozen=True)
class Judgements:
    """The queries that have judgements, in file order, with the qrels or answers that score them.

    Attributes:
        qrels: relevance judgements; empty if answers decide.
        answers: accepted answers of each query id; None if qrels decide.
    """

    queries: Queries
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Reader(ABC):
    """A reader of one split of a collection. Every file may be gzip-compressed.

    Attributes:
        corpus_names: files that hold only documents. The first one identifies the layout of a
            folder.
        expected: files that belong into a folder, for people. ``{split}`` is replaced by the split.
        answers_decide: relevance is decided by the texts of documents, not by their ids.
        folder: folder that holds the files.
        split: queries and judgements to read.
        with_titles: join the documents with titles from a separate file.
    """

    corpus_names: ClassVar[tuple[str, ...]]
    expected: ClassVar[str]
    answers_decide: ClassVar[bool] = False

    folder: Path
    split: str
    with_titles: bool = False

    @abstractmethod
    def corpus_files(self) -> tuple[Path, ...]:
        """Return the files of the documents."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield the documents in file order."""

    @abstractmethod
    def judgement_files(self) -> tuple[Path, ...]:
        """Return the files of queries and judgements."""

    @abstractmethod
    def judgements(self) -> Judgements:
        """Return queries with their judgements."""

    def examples(self) -> Iterator[TrainingExample]:
        """Yield the hard negatives that come with the queries, by the ids of the collection."""
        return iter(())


def find_file(folder: Path, names: Sequence[str], splits: Collection[str] = ()) -> Path:
    """Return the first of ``names`` in ``folder``, plain or with ``.gz``.

    Raises:
        MissingFileError: the folder holds none of them. The hint names the ``splits`` it has.
    """
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise MissingFileError(
        f"{folder} has no {' or '.join(names)}",
        f"splits found: {', '.join(sorted(splits))}"
        if splits
        else "put the file there, plain or gzip-compressed (.gz)",
    )


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield ``(line number from 1, line)`` of ``path`` without line end and byte order mark.

    Only ``\n`` ends a line, since other Unicode line separators occur inside passages.

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
        if isinstance(error, OSError) and error.filename is not None:  # it cannot be opened
            raise file_error(error) from error
        raise line_error(path, number + 1, str(error), "copy or download the file again") from error


def read_rows(path: Path, columns: int, separator: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line number, fields)`` of each line that is not blank. None separates by white
    space.
    """
    for number, line in read_lines(path):
        try:
            text = decode_line(path, number, line)
        except BenchError as error:
            report_error(error)
            continue
        if not text.strip():
            continue
        fields = text.split(separator)
        if len(fields) == columns:
            yield number, fields
        else:
            message = f"{len(fields)} columns instead of {columns}"
            report_error(line_error(path, number, message))


def read_json_lines(path: Path, kind: type[Line], hint: str) -> Iterator[tuple[int, Line]]:
    """Yield ``(line number, record)`` of each line that is not blank, one JSON object a line.

    Raises:
        BenchError: a line that is not such a record, or not in UTF-8. It has the ``hint``.
    """
    decode = msgspec.json.Decoder(kind).decode
    for number, line in read_lines(path):
        if line.strip():
            try:
                yield number, decode(line)
            except (UnicodeDecodeError, RecursionError, msgspec.MsgspecError):
                try:
                    decode_line(path, number, line)  # raises an error with the first wrong byte
                    decode_json(line, kind, f"{path}:{number}", hint)
                except BenchError as error:
                    report_error(error)


def decode_line(path: Path, number: int, line: bytes) -> str:
    """Decode ``line`` as UTF-8, or raise an error that names the first wrong byte."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        wrong = f"not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1})"
        raise line_error(path, number, wrong, "convert the file to UTF-8") from error


def check_id(path: Path, number: int, id_: str) -> str:
    """Return an id, or raise if it is empty or contains NUL."""
    if not id_:
        report_error(line_error(path, number, "the id is empty", "give it an id"))
    if "\0" in id_:
        problem = f"the id {id_!r} contains NUL"
        report_error(line_error(path, number, problem, "check that the file is UTF-8"))
    return id_


def line_error(path: Path, number: int, message: str, hint: str = "") -> BenchError:
    """Return an error about a line, by its number from 1."""
    return BenchError(f"{path}:{number}: {message}", hint=hint)


def keep_judged_queries(queries: Queries, qrels: Qrels, source: Path) -> Judgements:
    """Keep the queries that have judgements in the file ``source``.

    Raises:
        BenchError: no judged document is relevant, or a judged query has no text.
    """
    if not qrels and not errors_were_counted():  # wrong lines explain why there are none
        hint = "write a line for each judged pair of query and document"
        report_error(BenchError(f"{source} has no judgements", hint))
    if qrels and not (qrels.grades > 0).any():
        problem = f"{source}: none of the {len(qrels)} judgements has a grade above 0"
        hint = "check that this is the right file: every measure would be 0"
        report_error(BenchError(problem, hint))
    wanted = set(qrels.query_ids)
    kept = [row for row, id_ in enumerate(queries.ids) if id_ in wanted]
    if len(kept) < len(wanted):
        missing = sorted(wanted.difference(queries.ids))
        count = format_count(len(missing), "judged query is", "judged queries are")
        problem = f"{source}: {count} not in the queries file: {format_names(missing)}"
        hint = "check that queries and qrels are of the same split"
        report_error(BenchError(problem, hint))
    ids, texts = queries.ids, queries.texts
    selected = Queries(tuple(ids[row] for row in kept), tuple(texts[row] for row in kept))
    return Judgements(selected, qrels)


def collect_queries(rows: Iterable[tuple[int, str, str]], path: Path) -> Queries:
    """Collect queries from rows ``(line number, id, text)``, or raise if an id occurs twice."""
    texts: dict[str, str] = {}
    for number, id_, text in rows:
        if check_id(path, number, id_) in texts:
            report_error(line_error(path, number, f"query id {id_!r} occurs twice"))
        texts[id_] = text
    return Queries(tuple(texts), tuple(texts.values()))


def read_tsv_queries(path: Path) -> Queries:
    """Return the queries in ``path``, with lines ``id <tab> text``."""
    rows = ((number, id_, text) for number, (id_, text) in read_rows(path, 2, "\t"))
    return collect_queries(rows, path)


def read_beir_qrels(path: Path) -> Qrels:
    """Return the qrels in ``path``, with a header and the columns query, document, grade.

    Raises:
        BenchError: a wrong header or number of columns, a grade that is not an integer, or a pair
            with two grades.
    """
    _check_header(path)
    rows = read_rows(path, 3, "\t")
    next(rows)
    return _collect_qrels(((number, f[0], f[1], f[2]) for number, f in rows), path)


def read_trec_qrels(path: Path) -> Qrels:
    """Return the TREC qrels in ``path``: query, iteration (ignored), document, grade."""
    rows = read_rows(path, 4, None)
    return _collect_qrels(((number, f[0], f[2], f[3]) for number, f in rows), path)


def _check_header(path: Path) -> None:
    number, line = next(read_lines(path), (1, b""))
    header = decode_line(path, number, line)
    if header.split("\t") != BEIR_HEADER:
        raise line_error(
            path,
            number,
            f"the header is {header!r}, not that of BEIR qrels",
            hint="write the header query-id<tab>corpus-id<tab>score, then these three columns",
        )


def _collect_qrels(rows: Iterable[tuple[int, str, str, str]], path: Path) -> Qrels:
    """Return qrels from ``(line number, query, document, grade)``, repeated lines counted once."""
    grades: dict[tuple[str, str], int] = {}
    for number, query, document, grade in rows:
        check_id(path, number, query)
        check_id(path, number, document)
        if not _GRADE.fullmatch(grade):
            report_error(line_error(path, number, f"the grade {grade!r} is not an integer"))
            continue
        known = grades.setdefault((query, document), int(grade))
        if known != int(grade):
            message = f"document {document!r} of query {query!r} has grades {known} and {grade}"
            report_error(line_error(path, number, message))
    return Qrels(
        query_ids=tuple(query for query, _ in grades),
        doc_ids=tuple(document for _, document in grades),
        grades=np.fromiter(grades.values(), dtype=np.int32, count=len(grades)),
    )
