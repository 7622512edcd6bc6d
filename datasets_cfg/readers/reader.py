"""Documents, queries and judgements, and the lines and tables that hold them.

Text files may be gzip-compressed. Errors name the file and the line. What can mean only one thing
is read, and counted within `collect_assumptions`.
"""

import csv
import gzip
import itertools
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from foundation import errors
from foundation.arrays import Int32Array
from foundation.errors import BenchError, MissingFileError, errors_were_counted
from foundation.files import check_not_lfs_pointer
from foundation.records import convert_table, decode_json

Line = TypeVar("Line")
Fields = TypeVar("Fields", bound=msgspec.Struct)

READER_VERSION = 1  # increase it if a reader yields different documents from the same files
TABLES = (".parquet", ".arrow")
TEXT_FORMS = (".jsonl", *TABLES)  # of documents and queries; the first one is read
_SUFFIXES = ("jsonl", "tsv", "csv", "txt", "xml", "trec", "qrels")  # of text files
OTHER_FORMS = ("csv", "tsv", "txt", "json")  # of files named like a part, but not read as one
OTHER_TABLES = (".csv", ".tsv")  # in the folder of a part
TABLE_ROWS = 1_024  # read at a time
_SHARD = re.compile("(.+)-[0-9]{5}-of-([0-9]{5})")
_LENIENT = re.compile(rb"\\u[dD][89a-fA-F]|NaN")  # in JSON that Python programs write
_SURROGATE = re.compile("[\ud800-\udfff]")
_ARROW_FILE = b"ARROW1"  # how Arrow files begin, but streams do not
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_assumptions: ContextVar[Counter[str] | None] = ContextVar("assumptions", default=None)


@contextmanager
def collect_assumptions() -> Iterator[Counter[str]]:
    """Count what is assumed about files of another form, by kind."""
    counts = Counter[str]()
    token = _assumptions.set(counts)
    try:
        yield counts
    finally:
        _assumptions.reset(token)


def assume(what: str, count: int | None = 1) -> None:
    """Add to the count of an assumption within `collect_assumptions`. None is for a whole file."""
    counts = _assumptions.get()
    if counts is not None:
        counts[what] = 1 if count is None else counts[what] + count


class RepeatedError(BenchError):
    """Different contents with the same id, of which the first one is kept."""


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

    @property
    def by_id(self) -> dict[str, str]:
        """Text of each query by its id."""
        return dict(zip(self.ids, self.texts, strict=True))

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

    @classmethod
    def of(cls, grades: Mapping[tuple[str, str], int]) -> "Qrels":
        """Return qrels from the grade of each pair of query and document."""
        queries = tuple(query for query, _ in grades)
        documents = tuple(document for _, document in grades)
        return cls(queries, documents, np.fromiter(grades.values(), np.int32, len(grades)))

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return zip(self.query_ids, self.doc_ids, self.grades.tolist(), strict=True)

    def queries(self) -> tuple[str, ...]:
        """Return distinct query ids by first appearance, the denominator of every mean."""
        return tuple(dict.fromkeys(self.query_ids))

    @property
    def by_query(self) -> dict[str, dict[str, int]]:
        """Grade of each judged document, by query and document, as in the qrels."""
        grades: dict[str, dict[str, int]] = {}
        for query, document, grade in self:
            grades.setdefault(query, {})[document] = grade
        return grades


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
        excluded: ids of documents that are removed from the ranking of a query, by its id.
        unjudged: number of other queries, which have no judgements.
    """

    queries: Queries
    qrels: Qrels
    answers: Mapping[str, tuple[str, ...]] | None = None
    excluded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unjudged: int = 0


NO_JUDGEMENTS = Judgements(Queries((), ()), Qrels.of({}))


@dataclass(frozen=True)
class Reader(ABC):
    """A reader of one split of a collection. Text files may be gzip-compressed.

    Attributes:
        corpus_names: files that hold only documents. The first one identifies the layout of a
            folder.
        expected: files that belong into a folder, for people. ``{split}`` is replaced by the split.
        answers_decide: relevance is decided by the texts of documents, not by their ids.
        patterns: files to download from the Hugging Face Hub, which have no code.
        folder: folder that holds the files.
        split: queries and judgements to read.
        with_titles: join the documents with titles from a separate file.
    """

    corpus_names: ClassVar[tuple[str, ...]]
    expected: ClassVar[str]
    answers_decide: ClassVar[bool] = False
    patterns: ClassVar[tuple[str, ...]] = (
        *(f"*.{suffix}{packed}" for suffix in _SUFFIXES for packed in ("", ".gz")),
        *("*.parquet", "*.arrow", "topics*", "qrels*", "dataset.toml"),
    )

    folder: Path
    split: str
    with_titles: bool = False

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Return whether ``folder`` has this layout."""
        name = cls.corpus_names[0]
        return (folder / name).is_file() or (folder / f"{name}.gz").is_file()

    def splits(self) -> Collection[str]:
        """Return the splits that the folder has judgements for, () if that is unknown."""
        return ()

    def defaults(self) -> dict[str, Any]:
        """Return metadata of an undeclared folder that differs from the defaults of `Metadata`."""
        return {}

    def has_documents(self) -> bool:
        """Return whether there are documents, rather than only ids of relevant ones."""
        return True

    @abstractmethod
    def corpus_files(self) -> tuple[Path, ...]:
        """Return the files of the documents."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield the documents in file order."""

    def judgement_files(self) -> tuple[Path, ...]:
        """Return the files of queries and judgements."""
        return ()

    def judgements(self) -> Judgements:
        """Return queries with their judgements."""
        return NO_JUDGEMENTS

    def query_fields(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the id of each query with its further fields, nothing if the layout has none."""
        return iter(())

    def query_values(self, field: str, computed: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
        """Return the values of a further field of the queries, by query id.

        The files are read when values are asked for, and no hash depends on them. A list has
        several values. Queries without a value are left out. A hint for an unknown field also has
        the names of ``computed`` values, which the caller knows.

        Raises:
            BenchError: no query has the field.
        """
        values, known = dict[str, tuple[str, ...]](), dict[str, None]()
        for query, fields in self.query_fields():
            present = {name: value for name, value in fields.items() if value is not None}
            known |= dict.fromkeys(present)
            if field in present:
                several = present[field] if isinstance(present[field], list) else [present[field]]
                values[query] = tuple(dict.fromkeys(map(str, several)))
        if not values:
            listed = f"The fields are {', '.join(sorted(known))}." if known else ""
            listed = listed or "The queries have no further fields."
            if computed:
                listed += f" Computed: {', '.join(computed)}."
            hint = errors.did_you_mean(field, [*known, *computed], listed)
            raise BenchError(f"no query of {self.folder} has the field {field}", hint)
        return values

    def examples(self) -> Iterator[TrainingExample]:
        """Yield the hard negatives that come with the queries, by the ids of the collection."""
        return iter(())


def find_file(folder: Path, names: Sequence[str], splits: Collection[str] = ()) -> Path:
    """Return the only file of ``names`` in ``folder``, plain or with ``.gz``, see `choose_only`."""
    paths = [folder / f"{name}{packed}" for name in names for packed in ("", ".gz")]
    if found := [(path,) for path in paths if path.is_file()]:
        return choose_only(found)[0]
    raise _missing_file(f"{folder} has no {' or '.join(names)}", splits)


def choose_only(candidates: Sequence[tuple[Path, ...]]) -> tuple[Path, ...]:
    """Return the only one of several sets of files that could each be the same part.

    Sets with the same lines or rows are one.

    Raises:
        BenchError: two sets differ.
    """
    first, *others = candidates
    for other in others:
        if not _same_content(first, other):
            problem = f"{first[0]} and {other[0]} differ, and each could be meant"
            raise BenchError(problem, "Keep one of them in the folder.")
        assume(f"{other[0].name} has the same content as {first[0].name}", None)
    return first


def _same_content(one: tuple[Path, ...], other: tuple[Path, ...]) -> bool:
    """Return True if two sets of files have the same lines, or the same rows of tables."""
    pair = [itertools.chain.from_iterable(map(_content, paths)) for paths in (one, other)]
    return all(a == b for a, b in itertools.zip_longest(*pair, fillvalue=None))


def _content(path: Path) -> Iterator[Any]:
    """Yield the rows of a table or of JSON lines, and the lines of other files."""
    if path.suffix in TABLES or ".jsonl" in path.suffixes:
        return (row for _, row in read_objects(path))
    return (line for _, line in read_lines(path))


def _missing_file(problem: str, splits: Collection[str]) -> MissingFileError:
    known = f"Choose one of its splits with --split: {', '.join(sorted(splits))}."
    return MissingFileError(problem, known if splits else "Put the file there, plain or .gz")


def list_splits(
    folder: Path, names: Sequence[str], forms: Sequence[str] = TEXT_FORMS
) -> dict[str, tuple[Path, ...]]:
    """Return the files of one part of a collection by split.

    ``corpus.jsonl`` has the split "". ``corpus/test.jsonl``, ``corpus/test-00000-of-00001.parquet``
    and ``corpus/test/0000.parquet`` are of the split test. All may also lie below ``data``. Files
    of one split by several ``names``, in several folders or in several ``forms`` must have the
    same content.
    """
    found: dict[str, list[tuple[Path, ...]]] = {}
    for name, base in itertools.product(names, (folder, folder / "data")):
        for split, by_form in _files_by_split(name, base, forms).items():
            found.setdefault(split, []).extend(_check_shards(each) for each in by_form)
    return {split: choose_only(candidates) for split, candidates in found.items()}


def _files_by_split(
    name: str, base: Path, forms: Sequence[str]
) -> dict[str, list[dict[str, Path]]]:
    """Return the files of one name below ``base``: by split, a set for each form, by stem."""
    found: dict[str, dict[tuple[int, bool], dict[str, Path]]] = {}
    patterns = (f"{name}[.-]*", f"{name}/*", f"{name}/*/*")
    for path in sorted(path for pattern in patterns for path in base.glob(pattern)):
        plain, parts = path.name.removesuffix(".gz"), path.relative_to(base).parts
        others = OTHER_TABLES if len(parts) > 1 else [f"{name}.{other}" for other in OTHER_FORMS]
        if plain.endswith(tuple(others)) and not plain.endswith(tuple(forms)):
            assume(f"{'/'.join(parts)} is not read", None)
        form = next((form for form in forms if plain.endswith(form)), "")
        stem = plain.removesuffix(form)
        split = shard[1] if (shard := _SHARD.fullmatch(stem)) else stem
        cached = form == ".arrow" and stem.startswith("cache-")  # by `datasets`
        if form and not cached and path.is_file() and (len(parts) > 1 or split == name):
            split = ("", split, *parts[1:-1])[len(parts) - 1]
            form_of_file = forms.index(form), path.suffix == ".gz"
            found.setdefault(split, {}).setdefault(form_of_file, {})[stem] = path
    return {split: [by_form[each] for each in sorted(by_form)] for split, by_form in found.items()}


def _check_shards(found: Mapping[str, Path]) -> tuple[Path, ...]:
    """Return the files of one split and form, which are all shards of one export, or not shards."""
    paths = tuple(found.values())
    shards = [_SHARD.fullmatch(stem) for stem in found]
    shard, parent = shards[0], paths[0].parent
    for path, other in zip(paths, shards, strict=True):
        if (other and other.groups()) != (shard and shard.groups()):
            problem = f"{parent} mixes {paths[0].name} with {path.name}"
            raise BenchError(problem, "Keep the files of one export.")
    if shard and len(paths) != int(shard[2]):
        count = f"{errors.format_count(len(paths), 'shard', 'shards')} of {shard[1]}"
        problem = f"{parent} has {count}, but {paths[0].name} announces {int(shard[2])}"
        raise MissingFileError(problem, "Download the folder again.")
    return paths


def choose_split(
    found: Mapping[str, tuple[Path, ...]], split: str, missing: str, only: bool = True
) -> tuple[Path, ...]:
    """Return the files of ``split``, or those without a split.

    With ``only``, those without a split come first, and those of the only split will do.
    """
    first, second = ("", split) if only else (split, "")
    if first in found:
        both = dict.fromkeys((first, second))
        return choose_only([found[each] for each in both if each in found])
    if second in found:
        if not only and split != "test":
            assume(f"{found[second][0].name} is read as the split {split}", None)
        return found[second]
    if only and len(found) == 1:
        return next(iter(found.values()))
    if only and found and (shards := _join_numbered(found)):
        return shards
    raise _missing_file(missing, found)


def _join_numbered(found: Mapping[str, tuple[Path, ...]]) -> tuple[Path, ...]:
    """Return files named ``0``, ``1`` or ``part-00000``, ``part-00001`` in order, else none."""
    numbered = {split: re.split("([0-9]+)", split, maxsplit=1) for split in found}
    if len({(first, *rest[1:]) for first, *rest in numbered.values()}) > 1:
        return ()
    numbers = {int(parts[1]): split for split, parts in numbered.items() if len(parts) > 1}
    if sorted(numbers) not in (list(range(len(found))), list(range(1, len(found) + 1))):
        return ()
    paths = [path for number in sorted(numbers) for path in found[numbers[number]]]
    assume(f"{paths[0].name} to {paths[-1].name} are read as parts of one file", None)
    return tuple(paths)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield ``(line number from 1, line)`` of ``path`` without line end and byte order mark.

    Only ``\n`` ends a line, since other Unicode line separators occur inside passages.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    check_not_lfs_pointer(path, line)
                start = 3 if number == 1 and line.startswith(_BYTE_ORDER_MARK) else 0
                yield number, line[start:].rstrip(b"\r\n")
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:  # it cannot be opened
            raise errors.file_error(error) from error
        raise line_error(
            path, number + 1, str(error), "Copy or download the file again."
        ) from error


def read_rows(path: Path, columns: int, separator: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line number, fields)`` of each line that is not blank. None separates by white
    space.
    """
    for number, line in read_lines(path):
        try:
            text = decode_line(path, number, line)
        except BenchError as error:
            errors.report_error(error)
            continue
        if not text.strip():
            continue
        fields = text.split(separator)
        if len(fields) == columns:
            yield number, fields
        else:
            message = f"{len(fields)} columns instead of {columns}"
            errors.report_error(line_error(path, number, message))


def read_json_lines(path: Path, kind: type[Line], hint: str) -> Iterator[tuple[int, Line]]:
    """Yield ``(line number, record)`` of each line that is not blank, one JSON object a line."""
    decode = msgspec.json.Decoder(kind).decode
    for number, line in read_lines(path):
        if line.strip():
            try:
                yield number, decode(line)
            except (UnicodeDecodeError, RecursionError, msgspec.MsgspecError):
                try:
                    text = decode_line(path, number, line)  # or an error with the first wrong byte
                    with suppress(ValueError, RecursionError, msgspec.MsgspecError):
                        if _LENIENT.search(line):
                            yield number, msgspec.convert(repair_text(json.loads(text)), kind)
                            continue
                    decode_json(line, kind, f"{path}:{number}", hint)
                except BenchError as error:
                    errors.report_error(error)


def repair_text(value: Any) -> Any:
    """Return ``value`` with U+FFFD instead of lone surrogates, in its own strings or fields."""
    if isinstance(value, dict):
        return {key: repair_text(each) for key, each in value.items()}
    if isinstance(value, str) and (repaired := _SURROGATE.sub("\ufffd", value)) != value:
        assume("lone surrogates are read as U+FFFD")
        return repaired
    return value


def read_records(path: Path, kind: type[Fields], hint: str = "") -> Iterator[tuple[int, Fields]]:
    """Yield ``(number, record)`` of each line or row of a file in a form of `TEXT_FORMS`."""
    if path.suffix not in TABLES:
        yield from read_json_lines(path, kind, hint)
        return
    fields = {field.encode_name for field in msgspec.structs.fields(kind)}
    for number, row in read_table(path, fields):
        try:
            yield number, convert_table(row, kind, f"{path}:{number}")
        except BenchError as error:
            errors.report_error(error)


def read_objects(
    path: Path, hint: str = "Write one JSON object per line."
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(number, fields)`` of each line or row of a file in a form of `TEXT_FORMS`."""
    if path.suffix in TABLES:
        return read_table(path)
    return read_json_lines(path, dict[str, Any], hint)


def read_table(path: Path, columns: Collection[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(row number, record)`` of each row of a Parquet or Arrow file.

    Only those of ``columns`` are read that the file has; all if it has none of them.
    """
    from pyarrow import parquet  # late: other commands do without it

    numbers = itertools.count(1)
    try:
        with path.open("rb") as opened:
            batches: Iterable[pa.RecordBatch]
            if path.suffix == ".parquet":
                table = parquet.ParquetFile(opened)
                names = [name for name in table.schema_arrow.names if name in columns]
                batches = table.iter_batches(TABLE_ROWS, columns=names or None)
            elif opened.read(len(_ARROW_FILE)) == _ARROW_FILE:
                file = pa.ipc.open_file(opened)
                batches = map(file.get_batch, range(file.num_record_batches))
            else:
                opened.seek(0)
                batches = pa.ipc.open_stream(opened)
            for batch in batches:
                kept = [at for at, name in enumerate(batch.schema.names) if name in columns]
                for row in (batch.select(kept) if kept else batch).to_pylist():
                    yield next(numbers), row
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error


def read_csv(path: Path, delimiter: str, columns: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yield ``(line number, fields)`` of each row of a file with CSV quoting.

    All rows have as many ``columns``; with 0, as many as the first row.
    """
    lines = (f"{decode_line(path, number, line)}\n" for number, line in read_lines(path))
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for fields in filter(None, rows):
            columns = columns or len(fields)
            if len(fields) != columns:
                problem = f"{len(fields)} columns instead of {columns}"
                raise line_error(path, rows.line_num, problem)
            yield rows.line_num, fields
    except csv.Error as error:
        raise line_error(path, rows.line_num, str(error)) from error


def decode_line(path: Path, number: int, line: bytes) -> str:
    """Decode ``line`` as UTF-8, or raise an error that names the first wrong byte."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        wrong = f"not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1})"
        raise line_error(path, number, wrong, "Convert the file to UTF-8.") from error


def read_id(path: Path, number: int, value: Any) -> str:
    """Return an id as text, an integer in decimal digits, or raise if it is neither or empty.

    An invalid id is "" within `collect_errors`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        assume("ids that are integers are read as text")
        return str(value)
    if isinstance(value, float) and value.is_integer():
        assume("ids such as 1.0 are read as integers")
        return str(int(value))
    if not isinstance(value, str):
        errors.report_error(line_error(path, number, f"the id is {value!r}: expected text"))
    elif not value:
        errors.report_error(line_error(path, number, "the id is empty", "Give it an id."))
    elif "\0" in value:
        problem = f"the id {value!r} contains NUL"
        errors.report_error(line_error(path, number, problem, "Check that the file is UTF-8."))
    else:
        return value
    return ""


def line_error(path: Path, number: int, message: str, hint: str = "") -> BenchError:
    """Return an error about a line, by its number from 1."""
    return BenchError(f"{path}:{number}: {message}", hint=hint)


def keep_judged_queries(queries: Queries, qrels: Qrels, source: Path) -> Judgements:
    """Keep the queries that have judgements in the file ``source``."""
    if not qrels and not errors_were_counted():  # wrong lines explain why there are none
        hint = "Write a line for each judged pair of query and document."
        errors.report_error(BenchError(f"{source} has no judgements", hint))
    if qrels and not (qrels.grades > 0).any():
        problem = f"{source}: none of the {len(qrels)} judgements has a grade above 0"
        hint = "Check that this is the right file: every measure would be 0."
        errors.report_error(BenchError(problem, hint))
    wanted = set(qrels.query_ids)
    kept = [row for row, id_ in enumerate(queries.ids) if id_ in wanted]
    if len(kept) < len(wanted):
        missing = sorted(wanted.difference(queries.ids))
        count = errors.format_count(len(missing), "judged query is", "judged queries are")
        problem = f"{source}: {count} not in the queries file: {errors.format_names(missing)}"
        hint = "Check that queries and qrels are of the same split."
        errors.report_error(BenchError(problem, hint))
    ids, texts = queries.ids, queries.texts
    selected = Queries(tuple(ids[row] for row in kept), tuple(texts[row] for row in kept))
    return Judgements(selected, qrels, unjudged=len(ids) - len(kept))


def collect_queries(rows: Iterable[tuple[int, str, str]], path: Path) -> Queries:
    """Collect queries from rows ``(line number, id, text)``, or raise if an id has two texts."""
    texts: dict[str, str] = {}
    read = 0
    for number, id_, text in rows:
        if not read_id(path, number, id_):
            continue
        if texts.setdefault(id_, text) != text:
            problem = f"{path}:{number}: query id {id_!r} occurs twice, with different texts"
            errors.report_error(RepeatedError(problem, "Remove or rename one of the two."))
            continue
        read += 1
    if repeated := read - len(texts):
        assume("queries that occur twice, with equal texts, are read once", repeated)
    return Queries(tuple(texts), tuple(texts.values()))


def read_tsv_queries(path: Path) -> Queries:
    """Return the queries in ``path``, with lines ``id <tab> text``."""
    rows = ((number, id_, text) for number, (id_, text) in read_rows(path, 2, "\t"))
    return collect_queries(rows, path)
