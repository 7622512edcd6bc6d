"""Runs in the sense of information retrieval, and their two file formats.

A run has the ranked documents of each query. A TREC run file is text with six columns, plain or
compressed with gzip, which all programs read. The columnar format is an Arrow IPC file (Feather)
with the columns ``query``, ``document`` and ``score``. It stores each id once, in a dictionary,
and the numbers compressed with zstd. Its ids may have any characters, and queries may have no
documents.
"""

import gzip
import hashlib
import io
import itertools
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from datasets_cfg.dataset import WHITE_SPACE
from foundation.arrays import Float32Array, Int32Array, Int64Array
from foundation.errors import BenchError
from foundation.files import Location, read_file
from retrievers.index.hits import Hits, canonical_order, order_keys

Strings: TypeAlias = pa.Array | pa.ChunkedArray

_COLUMNS = ["query", "Q0", "document", "rank", "score", "tag"]
_HINT = "each line of a TREC run has 6 columns: query Q0 document rank score tag"
_BLOCK_BYTES = 1 << 26
_BLOCK_ROWS = 1 << 20  # lines written at a time
_GZIP = b"\x1f\x8b"
_ARROW = b"ARROW1"
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 1  # a sixth of the time of level 6, for files a tenth larger
_SPACES = bytes.maketrans(b"\t\v\f\r", b"    ")
_SPARE_SPACES = re.compile(rb"^ +| +$| +(?= )", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """Documents of each query in canonical order: score, then document id by bytes, both falling.

    Query i has the rows ``offsets[i]`` to ``offsets[i + 1]``. Each id is stored once, so that a run
    of millions of rows is sorted, joined and written as numbers.

    Attributes:
        query_ids: q distinct ids.
        offsets: int64 ``(q + 1,)``, from 0 to n.
        ids: ``large_string`` ``(m,)``, distinct ids of all documents, in byte order.
        documents: int32 ``(n,)``, position in ``ids`` of each row, distinct within a query.
        scores: float32 ``(n,)``, finite.
    """

    query_ids: tuple[str, ...]
    offsets: Int64Array
    ids: pa.LargeStringArray
    documents: Int32Array
    scores: Float32Array

    def __post_init__(self) -> None:
        if len(set(self.query_ids)) != len(self.query_ids):
            raise BenchError("a query id occurs twice, and a run has one ranking for each query")
        if len(self.offsets) != len(self.query_ids) + 1:
            raise ValueError(f"{len(self.offsets) - 1} rankings for {len(self.query_ids)} queries")

    @classmethod
    def from_hits(
        cls, hits: Hits, query_ids: Sequence[str], corpus_ids: Strings, tie_rank: Int64Array
    ) -> "Run":
        """Make a run of hits in canonical order. Unfilled ranks (row -1) are left out.

        Args:
            hits: corpus rows and scores, ``(q, k)`` each.
            query_ids: q ids.
            corpus_ids: ``large_string`` ``(N,)``, ids of all documents of the corpus.
            tie_rank: int64 ``(N,)``, rank of each id in byte order.

        Raises:
            BenchError: a score is NaN or infinite.
        """
        filled = hits.rows >= 0
        offsets = np.concatenate([[0], np.cumsum(filled.sum(axis=1))]).astype(np.int64)
        scores = round_scores(hits.scores[filled])
        ranks = tie_rank[hits.rows[filled]]
        retrieved = np.zeros(len(tie_rank), dtype=bool)
        retrieved[ranks] = True
        position = np.cumsum(retrieved, dtype=np.int32) - np.int32(1)
        row_of_rank = np.empty(len(tie_rank), dtype=np.int64)
        row_of_rank[tie_rank] = np.arange(len(tie_rank))
        ids = _one_array(corpus_ids.take(pa.array(row_of_rank[retrieved])))
        return cls(tuple(query_ids), offsets, ids, position[ranks], scores)

    @classmethod
    def from_rows(
        cls, query_ids: Sequence[str], doc_ids: Sequence[str], scores: npt.ArrayLike
    ) -> "Run":
        """Make a run of rows in any order.

        Args:
            query_ids: query id of each row.
            doc_ids: document id of each row.
            scores: ``(n,)``, score of each row.

        Raises:
            BenchError: a score is not finite as float32, or a document repeats within a query.
        """
        queries, documents = (pa.array(ids, pa.large_string()) for ids in (query_ids, doc_ids))
        scores = round_scores(np.asarray(scores, dtype=np.float64))
        return cls.from_columns(queries, documents, scores)

    @classmethod
    def from_columns(cls, queries: Strings, documents: Strings, scores: Float32Array) -> "Run":
        """Make a run of Arrow columns in any order of rows.

        Queries keep the order of their first rows, or of their dictionary. Ids are ``large_string``
        or dictionary-encoded, scores float32.

        Raises:
            BenchError: a document repeats within a query, or a dictionary has a query id twice.
        """
        query_codes, query_ids = _encode_strings(queries)
        codes, ids = _encode_strings(documents)
        if len(ids) > 1 and not pc.all(pc.less(ids[:-1], ids[1:])).as_py():
            codes, ids = _sort_by_bytes(codes, ids)
        _check_distinct(query_codes, query_ids, codes, ids)
        counts = np.bincount(query_codes, minlength=len(query_ids))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if not _is_canonical(query_codes, codes, scores):
            rows = np.argsort(query_codes, kind="stable")
            for start, end in itertools.pairwise(offsets):
                query_rows = rows[start:end]
                rows[start:end] = query_rows[canonical_order(scores[query_rows], codes[query_rows])]
            codes, scores = codes[rows], scores[rows]
        return cls(tuple(query_ids.to_pylist()), offsets, ids, codes.astype(np.int32), scores)

    def __len__(self) -> int:
        return len(self.documents)

    @cached_property
    def doc_ids(self) -> pa.LargeStringArray:
        """Document id of each row, ``large_string`` ``(n,)``."""
        return self.ids.take(pa.array(self.documents))

    def positions_of(self, ids: Strings) -> Int64Array:
        """Return the position in ``self.ids`` of each of the given ``ids``, int64, or -1.

        It is a binary search, whose time depends on the number of given ids.
        """
        if not len(self.ids):
            return np.full(len(ids), -1, dtype=np.int64)
        low = np.zeros(len(ids), dtype=np.int64)
        high = np.full(len(ids), len(self.ids) - 1, dtype=np.int64)
        while (low < high).any():
            middle = (low + high) // 2
            less = _as_numpy(pc.less(self.ids.take(pa.array(middle)), ids))
            low = np.where(less & (low < high), middle + 1, low)
            high = np.where(less, high, middle)
        return np.where(_as_numpy(pc.equal(self.ids.take(pa.array(low)), ids)), low, -1)

    def rankings(self) -> Iterator[tuple[str, list[str], Float32Array]]:
        """Yield query id, document ids and scores (best first) of each query."""
        for query_id, (start, end) in zip(
            self.query_ids, itertools.pairwise(self.offsets.tolist()), strict=True
        ):
            yield query_id, self.doc_ids[start:end].to_pylist(), self.scores[start:end]


def round_scores(scores: npt.ArrayLike) -> Float32Array:
    """Convert ``scores`` to float32, or raise a `BenchError` if one is not finite as float32."""
    with np.errstate(over="ignore"):
        narrow = np.asarray(scores).astype(np.float32)
    if not np.isfinite(narrow).all():
        raise BenchError("a score is NaN, infinite or beyond the range of float32")
    return narrow


def _encode_strings(strings: Strings) -> tuple[Int64Array, pa.LargeStringArray]:
    """Return codes, int64 ``(n,)``, and the distinct strings that they index."""
    encoded = _one_array(strings)
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _sort_by_bytes(
    codes: Int64Array, ids: pa.LargeStringArray
) -> tuple[Int64Array, pa.LargeStringArray]:
    """Recode strings so that the distinct ones are in the order of their UTF-8 bytes."""
    rising = pc.sort_indices(ids)
    in_order = ids.take(rising)
    is_new = np.ones(len(ids), dtype=bool)
    is_new[1:] = _as_numpy(pc.not_equal(in_order[:-1], in_order[1:]))
    rank = np.empty(len(ids), dtype=np.int64)
    rank[rising.to_numpy()] = np.cumsum(is_new) - 1
    return rank[codes], in_order.filter(pa.array(is_new))


def _is_canonical(queries: Int64Array, documents: Int64Array, scores: Float32Array) -> bool:
    """Return True if rows are ordered by query, and canonically within each query."""
    keys = order_keys(scores, documents)
    same = queries[1:] == queries[:-1]
    falls = (queries[1:] > queries[:-1]) | (same & (keys[1:] < keys[:-1]))
    return bool(falls.all())


def _check_distinct(
    query_codes: Int64Array, query_ids: pa.Array, doc_codes: Int64Array, doc_ids: pa.Array
) -> None:
    """Raise if a document repeats within a query."""
    pairs = np.sort(query_codes * max(len(doc_ids), 1) + doc_codes)
    repeats = pairs[1:][pairs[1:] == pairs[:-1]]
    if len(repeats):
        query, document = divmod(int(repeats[0]), len(doc_ids))
        query_id, doc_id = query_ids[query].as_py(), doc_ids[document].as_py()
        raise BenchError(f"document {doc_id!r} occurs twice for query {query_id!r}")


def _one_array(strings: Strings) -> pa.Array:
    return strings.combine_chunks() if isinstance(strings, pa.ChunkedArray) else strings


def _as_numpy(mask: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)


@dataclass(frozen=True)
class RunFile:
    """A run with the hash of its file."""

    run: Run
    sha256: str


def read_run_file(path: Location, allow_pipe: bool = True) -> RunFile:
    """Read a TREC run file, plain or compressed with gzip, or a columnar file.

    Columns of text are separated by white space. Like in trec_eval, documents are ranked by score
    as float32, and the rank column is ignored. Queries keep the order of their first lines.

    Raises:
        BenchError: the file does not exist or is empty, or a line is wrong: it does not have 6
            columns, its score is not a finite float32, or its document repeats within the query.
            The message has the line number.
    """
    try:
        content = read_file(path, None, allow_pipe)
    except OSError as error:
        reason = f"cannot read run {path}: {error.strerror or error}"
        raise BenchError(reason, "check the path") from error
    is_columnar = content.startswith(_ARROW)
    run = _decode_columnar(path, content) if is_columnar else _parse_text(_RunText(path, content))
    return RunFile(run, hashlib.sha256(content).hexdigest())


def encode_columnar(run: Run) -> pa.Buffer:
    """Return the content of the columnar file of ``run``. Equal runs give equal files."""
    queries = np.repeat(np.arange(len(run.query_ids), dtype=np.int32), np.diff(run.offsets))
    query_ids = pa.array(run.query_ids, pa.large_string())
    batch = pa.record_batch(
        {
            "query": pa.DictionaryArray.from_arrays(pa.array(queries), query_ids),
            "document": pa.DictionaryArray.from_arrays(pa.array(run.documents), run.ids),
            "score": pa.array(run.scores, pa.float32()),
        }
    )
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", _ZSTD_LEVEL))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _decode_columnar(path: Location, content: bytes) -> Run:
    try:
        file = pa.ipc.open_file(pa.BufferReader(content))
        if file.num_record_batches != 1:
            raise TypeError(f"it has {file.num_record_batches} batches, where rankings have one")
        batch = file.get_batch(0)
        batch.validate(full=True)
        scores = round_scores(batch.column("score").to_numpy())
        return Run.from_columns(_id_column(batch, "query"), _id_column(batch, "document"), scores)
    except (pa.ArrowException, OSError, KeyError, TypeError, BenchError) as error:
        reason = f"{path} is damaged, or no file of rankings: {error}"
        raise BenchError(reason, "evaluate again, or name a TREC run file") from error


def _id_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of ids, and raise if it is not one."""
    column = batch.column(name)
    encoded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if encoded else column.type
    missing = column.null_count + (column.dictionary.null_count if encoded else 0)
    if kind != pa.large_string() or missing:
        raise TypeError(f"its column {name} is {column.type}, {missing} of them missing")
    return column


def _parse_text(source: "_RunText") -> Run:
    """Return the run in a file of lines, or raise an error that has the number of a wrong one."""
    _, columns = next(_numbered_lines(source), (1, []))
    if columns[1:2] == [b"percent-encoded"]:
        raise BenchError(
            f"run {source.path} was exported by version 0.2, which percent-encoded ids",
            "export it again, after replacing white space in ids, or compare the stored results",
        )
    try:
        with source.open() as file:
            blocks = [_parse(block) for block in _blocks(file)]
        if blocks:
            table = pa.concat_tables(blocks)
            scores = round_scores(table["score"])
            return Run.from_columns(table["query"], table["document"], scores)
    except (pa.ArrowInvalid, BenchError) as error:
        raise _first_bad_line(source, error) from error
    raise BenchError(f"run {source.path} is empty", _HINT)


def write_lines(run: Run, file: BinaryIO, tag: str, compress: bool) -> None:
    """Write the lines of a TREC run file to a binary file, optionally compressed with gzip.

    Scores have enough digits to read back the same float32. Queries without documents have no line.

    Raises:
        BenchError: the tag or an id is empty or contains white space.
    """
    check_writable(pa.array([tag], pa.large_string()), "tag")
    query_ids = pa.array(run.query_ids, pa.large_string())
    check_writable(query_ids, "query id")
    check_writable(run.ids, "document id")
    queries = np.repeat(np.arange(len(run.query_ids)), np.diff(run.offsets))
    ranks = np.arange(len(run)) - run.offsets[queries] + 1
    texts = ("Q0", f"{tag}\n", " ")
    second, last, space = (pa.scalar(text, pa.large_string()) for text in texts)
    # Without name and time, so that equal runs give equal files.
    zipped = gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) if compress else nullcontext(file)
    with cast(AbstractContextManager[BinaryIO], zipped) as out:
        for start in range(0, len(run), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            lines = pc.binary_join_element_wise(
                query_ids.take(pa.array(queries[rows])),
                second,
                run.ids.take(pa.array(run.documents[rows])),
                pa.array(ranks[rows]).cast(pa.large_string()),
                pa.array(run.scores[rows]).cast(pa.large_string()),
                last,
                space,
            )
            out.write(lines.buffers()[-1])  # the strings of an array lie end to end


def check_writable(ids: Strings, kind_of_name: str) -> None:
    """Raise a `BenchError` if an id is empty or has white space, so cannot be a column of text."""
    bad = ids.filter(pc.match_substring_regex(ids, rf"^$|{WHITE_SPACE}"))
    if len(bad):
        raise BenchError(
            f"{kind_of_name} {bad[0].as_py()!r} cannot be written to a TREC run file",
            "use ids and tags of at least one character, without white space",
        )


@dataclass(frozen=True)
class _RunText:
    """Content of a TREC run file, possibly compressed, with its path for messages."""

    path: Location
    content: bytes

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the uncompressed content."""
        file = io.BytesIO(self.content)
        is_compressed = self.path.suffix == ".gz" or self.content.startswith(_GZIP)
        try:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if is_compressed else file
        except (OSError, EOFError, zlib.error) as error:
            raise BenchError(f"cannot read run {self.path}: {error}") from error


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield blocks of complete lines, with columns separated by single spaces."""
    rest = b""
    while block := file.read(_BLOCK_BYTES):
        lines, newline, rest = (rest + block).rpartition(b"\n")
        yield from _normalize_spaces(lines + newline)
    yield from _normalize_spaces(rest)


def _normalize_spaces(lines: bytes) -> Iterator[bytes]:
    """Yield the block without tabs, carriage returns and extra spaces, unless it is blank."""
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


def _numbered_lines(source: _RunText) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number, from 1, and the columns of each line that is not blank."""
    with source.open() as file:
        for number, line in enumerate(file, start=1):
            if columns := line.removeprefix(BOM_UTF8 if number == 1 else b"").split():
                yield number, columns


def _first_bad_line(source: _RunText, error: Exception) -> BenchError:
    """Return the error of the first wrong line, by reading line by line."""
    pairs: set[tuple[bytes, bytes]] = set()
    for number, columns in _numbered_lines(source):
        line = f"run {source.path}, line {number}"
        if problem := _describe_problem(columns):
            return BenchError(f"{line}: {problem}", _HINT)
        query, document = columns[0], columns[2]
        if (query, document) in pairs:
            repeat = f"document {document.decode()!r} occurs twice for query {query.decode()!r}"
            return BenchError(f"{line}: {repeat}")
        pairs.add((query, document))
    return BenchError(f"cannot read run {source.path}: {error}", _HINT)


def _describe_problem(columns: list[bytes]) -> str:
    """Describe the error in the columns of a line, or return ""."""
    if len(columns) != len(_COLUMNS):
        return f"{len(columns)} columns instead of {len(_COLUMNS)}"
    try:
        score = [column.decode() for column in columns][_COLUMNS.index("score")]
    except UnicodeDecodeError:
        return "not UTF-8"
    try:
        if "_" in score or not score.isascii():  # Python reads 1_0.5 and other scripts' digits
            raise ValueError
        round_scores(float(score))
    except ValueError:
        return f"score {score!r} is not a number"
    except BenchError:
        return f"score {score!r} is not a finite float32"
    return ""
