"""Runs in the sense of information retrieval, and the TREC files that carry them."""

import gzip
import hashlib
import io
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from bench.evaluate import percent_encoding
from bench.evaluate.search import order
from bench.results.location import Place, replacing
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from retrievers.index.faiss_index import Hits

_COLUMNS = ["query", "Q0", "document", "rank", "score", "tag"]
_HINT = "each line of a TREC run has 6 columns: query Q0 document rank score tag"
_BLOCK_BYTES = 1 << 26
_GZIP = b"\x1f\x8b"
_SPACES = bytes.maketrans(b"\t\v\f\r", b"    ")
_SPARE_SPACES = re.compile(rb"^ +| +$| +(?= )", re.MULTILINE)
# What str.isspace accepts, in the syntax of RE2.
_WHITE_SPACE = r"[\s\x0b\x1c-\x1f\x{85}\p{Z}]"


@dataclass(frozen=True)
class Run:
    """Documents of each query in canonical order: score, then document id by bytes, both falling.

    Query i owns the rows ``offsets[i]`` to ``offsets[i + 1]``.

    Attributes:
        query_ids: q distinct ids.
        offsets: int64 ``(q + 1,)``, from 0 to n.
        doc_ids: ``large_string`` ``(n,)``, distinct within a query.
        scores: float32 ``(n,)``, finite.
    """

    query_ids: tuple[str, ...]
    offsets: Int64Array
    doc_ids: pa.LargeStringArray
    scores: Float32Array

    def __post_init__(self) -> None:
        if len(set(self.query_ids)) != len(self.query_ids):
            raise BenchError("a query id occurs twice: a run has one ranking for each query")
        if len(self.offsets) != len(self.query_ids) + 1:
            raise ValueError(f"{len(self.offsets) - 1} rankings for {len(self.query_ids)} queries")

    @classmethod
    def from_hits(
        cls, hits: Hits, query_ids: Sequence[str], corpus_ids: pa.Array | pa.ChunkedArray
    ) -> "Run":
        """The run of hits that are in canonical order; unfilled places (row -1) are left out.

        Raises:
            BenchError: a score is NaN or infinite.
        """
        filled = hits.rows >= 0
        offsets = np.concatenate([[0], np.cumsum(filled.sum(axis=1))]).astype(np.int64)
        scores = _as_float32(hits.scores[filled])
        doc_ids = corpus_ids.take(pa.array(hits.rows[filled]))
        return cls(tuple(query_ids), offsets, _one_array(doc_ids), scores)

    @classmethod
    def from_rows(
        cls, query_ids: Sequence[str], doc_ids: Sequence[str], scores: npt.ArrayLike
    ) -> "Run":
        """The run of rows in any order: three columns of equal length.

        Raises:
            BenchError: a score is not finite as float32, or a document repeats within a query.
        """
        queries, documents = (pa.array(ids, pa.large_string()) for ids in (query_ids, doc_ids))
        return _sorted_run(queries, documents, _as_float32(np.asarray(scores, dtype=np.float64)))

    def __len__(self) -> int:
        return len(self.doc_ids)

    def rankings(self) -> Iterator[tuple[str, list[str], Float32Array]]:
        """Query id, document ids and scores (best first) of one query after the other."""
        for query_id, (start, end) in zip(
            self.query_ids, itertools.pairwise(self.offsets.tolist()), strict=True
        ):
            yield query_id, self.doc_ids[start:end].to_pylist(), self.scores[start:end]


class _NotFiniteError(BenchError):
    """A score is NaN, infinite, or so large that it is infinite as float32."""


class _RepeatedDocumentError(BenchError):
    """A document occurs twice for one query."""

    def __init__(self, query: str, document: str) -> None:
        super().__init__(f"document {document!r} occurs twice for query {query!r}")
        self.query = query
        self.document = document


@dataclass(frozen=True)
class RunFile:
    """A run with the hash of the file that it was parsed from, compressed as it was.

    Attributes:
        sha256: hexadecimal digits; they tell somebody's runs apart.
    """

    run: Run
    sha256: str


def read_run(path: Place) -> Run:
    """The run of a TREC run file; see `read_run_file`."""
    return read_run_file(path).run


def read_run_file(path: Place) -> RunFile:
    """Read a TREC run file, plain or compressed with gzip, once: it may be a pipe.

    Columns are separated by white space. The order comes from the scores, as float32: like
    trec_eval, the rank column is ignored. Queries keep the order of their first lines.

    Raises:
        BenchError: no such file, an empty file, a line without 6 columns, a score that is not a
            finite float32, or a document that repeats within a query; with the line's number.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BenchError(f"cannot read run {path}: {error.strerror or error}") from error
    source = _Source(path, content)
    return RunFile(_parsed(source), hashlib.sha256(content).hexdigest())


def _parsed(source: "_Source") -> Run:
    try:
        table = _read_columns(source)
        scores = _as_float32(table["score"])
    except (pa.ArrowInvalid, _NotFiniteError) as error:
        raise _first_problem(source, error) from error
    queries, documents = table["query"], table["document"]
    if source.has_encoded_ids:
        queries, documents = percent_encoding.decode(queries), percent_encoding.decode(documents)
    try:
        return _sorted_run(queries, documents, scores)
    except _RepeatedDocumentError as repeat:
        line = _second_line(source, repeat)
        raise BenchError(f"run {source.path}, line {line}: {repeat}") from repeat


def write_run(run: Run, path: Place, tag: str) -> None:
    """Write a TREC run file, atomically; compressed where the name ends in ``.gz``.

    Raises:
        BenchError: as `write_lines`, or the file cannot be written.
    """
    try:
        with replacing(path) as file:
            write_lines(run, file, tag, compress=path.suffix == ".gz")
    except OSError as error:
        raise BenchError(f"cannot write run {path}: {error.strerror or error}") from error


def write_lines(
    run: Run, file: BinaryIO, tag: str, compress: bool, encode_ids: bool = False
) -> None:
    """Write the lines of a TREC run file.

    Scores have 9 significant digits, so that reading them back gives the same float32. Queries
    without documents have no line.

    Args:
        encode_ids: write a run that holds ids with white space all the same, with all its ids
            percent-encoded; `read_run` knows such a file, and other programs do not.

    Raises:
        BenchError: the tag or an id is empty, or holds white space that is not to be encoded.
        OSError: as ``write`` does.
    """
    second = "Q0"
    if encode_ids and _holds_white_space(run):
        run, second = _with_encoded_ids(run), percent_encoding.MARK
    check_writable(pa.array([tag], pa.large_string()), "tag")
    check_writable(pa.array(run.query_ids, pa.large_string()), "query id")
    check_writable(run.doc_ids, "document id")
    with _compressing(file) if compress else nullcontext(file) as out:
        for query_id, documents, scores in run.rankings():
            rows = enumerate(zip(documents, scores.tolist(), strict=True), start=1)
            lines = [f"{query_id} {second} {doc} {rank} {s:.9g} {tag}\n" for rank, (doc, s) in rows]
            out.write("".join(lines).encode())


def check_writable(ids: pa.Array | pa.ChunkedArray, what: str) -> None:
    """Refuse what six columns of text cannot carry.

    Raises:
        BenchError: one of the ids is empty or holds white space; ``what`` names their kind.
    """
    bad = ids.filter(pc.match_substring_regex(ids, rf"^$|{_WHITE_SPACE}"))
    if len(bad):
        raise BenchError(
            f"{what} {bad[0].as_py()!r} cannot be written to a TREC run file",
            "ids and tags there have at least one character and no white space",
        )


def _holds_white_space(run: Run) -> bool:
    queries = pa.array(run.query_ids, pa.large_string())
    ids = (queries, run.doc_ids)
    return any(pc.any(pc.match_substring_regex(column, _WHITE_SPACE)).as_py() for column in ids)


def _with_encoded_ids(run: Run) -> Run:
    queries = tuple(percent_encoding.encode(id_) for id_ in run.query_ids)
    documents = [percent_encoding.encode(id_) for id_ in run.doc_ids.to_pylist()]
    return replace(run, query_ids=queries, doc_ids=pa.array(documents, pa.large_string()))


@contextmanager
def _compressing(file: BinaryIO) -> Iterator[BinaryIO]:
    # No name and no time inside: equal runs give equal files.
    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as compressed:
        yield cast(BinaryIO, compressed)


@dataclass(frozen=True)
class _Source:
    """Content of a run file, and the path that it is known by."""

    path: Place
    content: bytes

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file's bytes, uncompressed."""
        file = io.BytesIO(self.content)
        is_compressed = self.path.suffix == ".gz" or self.content.startswith(_GZIP)
        try:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if is_compressed else file
        except (OSError, EOFError, zlib.error) as error:
            raise BenchError(f"cannot read run {self.path}: {error}") from error

    @property
    def has_encoded_ids(self) -> bool:
        """Whether the first line says that ids are percent-encoded."""
        _, columns = next(_numbered_lines(self), (0, []))
        return columns[1:2] == [percent_encoding.MARK.encode()]


def _read_columns(source: _Source) -> pa.Table:
    """Columns query, document (``large_string``) and score (float64) of all lines."""
    with source.opened() as file:
        tables = [_parse(block) for block in _blocks(file)]
    if not tables:
        raise BenchError(f"run {source.path} is empty", _HINT)
    return pa.concat_tables(tables)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of whole lines, columns separated by one space."""
    rest = b""
    while block := file.read(_BLOCK_BYTES):
        lines, newline, rest = (rest + block).rpartition(b"\n")
        yield from _tidied(lines + newline)
    yield from _tidied(rest)


def _tidied(lines: bytes) -> Iterator[bytes]:
    """The block without tabs, carriage returns and spare spaces; nothing if it is blank."""
    lines = lines.translate(_SPACES)
    at_ends = lines.startswith(b" ") or lines.endswith(b" ")
    if at_ends or b"  " in lines or b" \n" in lines or b"\n " in lines:
        lines = _SPARE_SPACES.sub(b"", lines)
    if lines.strip():
        yield lines


def _parse(lines: bytes) -> pa.Table:
    types = {"query": pa.large_string(), "document": pa.large_string(), "score": pa.float64()}
    return pa_csv.read_csv(
        pa.BufferReader(lines),
        read_options=pa_csv.ReadOptions(column_names=_COLUMNS),
        parse_options=pa_csv.ParseOptions(delimiter=" ", quote_char=False),
        convert_options=pa_csv.ConvertOptions(
            column_types=types, include_columns=list(types), null_values=[]
        ),
    )


def _as_float32(scores: npt.ArrayLike) -> Float32Array:
    with np.errstate(over="ignore"):
        narrow = np.asarray(scores).astype(np.float32)
    if not np.isfinite(narrow).all():
        raise _NotFiniteError("a score is NaN, infinite or beyond the range of float32")
    return narrow


def _sorted_run(
    queries: pa.Array | pa.ChunkedArray, documents: pa.Array | pa.ChunkedArray, scores: Float32Array
) -> Run:
    query_codes, query_ids = _encoded(queries)
    doc_codes, doc_ids = _encoded(documents)
    _check_distinct(query_codes, query_ids, doc_codes, doc_ids)
    tie_rank = _byte_rank(doc_ids)[doc_codes]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(query_codes, minlength=len(query_ids)))])
    rows = np.argsort(query_codes, kind="stable")
    for start, end in itertools.pairwise(offsets):
        own = rows[start:end]
        rows[start:end] = own[order(scores[own], tie_rank[own])]
    doc_column = doc_ids.take(pa.array(doc_codes[rows]))
    return Run(tuple(query_ids.to_pylist()), offsets.astype(np.int64), doc_column, scores[rows])


def _encoded(strings: pa.Array | pa.ChunkedArray) -> tuple[Int64Array, pa.LargeStringArray]:
    """Codes int64 and the distinct strings that they number, in order of first appearance."""
    encoded = _one_array(strings.dictionary_encode())
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _byte_rank(ids: pa.LargeStringArray) -> Int64Array:
    """Rank of each of the distinct ids in the order of their UTF-8 bytes."""
    rank = np.empty(len(ids), dtype=np.int64)
    rank[pc.sort_indices(ids).to_numpy()] = np.arange(len(ids))
    return rank


def _check_distinct(
    query_codes: Int64Array, query_ids: pa.Array, doc_codes: Int64Array, doc_ids: pa.Array
) -> None:
    pairs = np.sort(query_codes * max(len(doc_ids), 1) + doc_codes)
    repeats = pairs[1:][pairs[1:] == pairs[:-1]]
    if len(repeats):
        query, document = divmod(int(repeats[0]), len(doc_ids))
        raise _RepeatedDocumentError(query_ids[query].as_py(), doc_ids[document].as_py())


def _one_array(strings: pa.Array | pa.ChunkedArray) -> pa.Array:
    return strings.combine_chunks() if isinstance(strings, pa.ChunkedArray) else strings


def _numbered_lines(source: _Source) -> Iterator[tuple[int, list[bytes]]]:
    """Number, from 1, and columns of each line that is not blank."""
    with source.opened() as file:
        for number, line in enumerate(file, start=1):
            if columns := line.split():
                yield number, columns


def _second_line(source: _Source, repeat: _RepeatedDocumentError) -> int:
    pair = [repeat.query, repeat.document]
    if source.has_encoded_ids:
        pair = [percent_encoding.encode(id_) for id_ in pair]
    encoded = [id_.encode() for id_ in pair]
    numbers = (number for number, columns in _numbered_lines(source) if columns[0:3:2] == encoded)
    return next(itertools.islice(numbers, 1, None))


def _first_problem(source: _Source, error: Exception) -> BenchError:
    """The first bad line of a file that could not be read. Slow, but names the line."""
    for number, columns in _numbered_lines(source):
        if problem := _problem(columns):
            return BenchError(f"run {source.path}, line {number}: {problem}", _HINT)
    return BenchError(f"cannot read run {source.path}: {error}", _HINT)


def _problem(columns: list[bytes]) -> str:
    """What is wrong with the columns of one line; empty if nothing is."""
    if len(columns) != len(_COLUMNS):
        return f"{len(columns)} columns instead of {len(_COLUMNS)}"
    try:
        score = [column.decode() for column in columns][_COLUMNS.index("score")]
    except UnicodeDecodeError:
        return "not UTF-8"
    try:
        _as_float32(float(score))
    except ValueError:
        return f"score {score!r} is not a number"
    except _NotFiniteError:
        return f"score {score!r} is not a finite float32"
    return ""
