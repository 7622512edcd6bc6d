"""Records of evaluations: scores, protocol, recipe and conditions.

There is one folder per evaluation: ``result.json`` (schema below), ``per_query.parquet`` (a row per
query, a column per measure, unrounded) and ``run.arrow``, the ranking. Results are comparable only
under the same `Protocol`. Recipes may differ, and are shown.

`load` returns only consistent results. A record states means, counts and the hash of the table of
scores per query. All of these are recomputed from the table, so that neither can be changed without
the other. A record that contradicts itself raises an error that names it.

History of the schema: 4 adds ``run_sha256``, ``recall_queries`` and ``conditions.program``. Records
of older schemas are refused, with the command that makes them again.
"""

import hashlib
import io
import math
import os
import re
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.evaluation.runs import Run, check_writable, encode_columnar, read_run_file
from bench.evaluation.scoring import Scores
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.files import read_file
from foundation.locations import Location, RemotePath, write_locations
from foundation.records import Record, decode_json
from retrievers.models.checkpoint import Parameters
from retrievers.models.recipe import Recipe

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 4
RESULT_FILE, SCORES_FILE, RUN_FILE = "result.json", "per_query.parquet", "run.arrow"
QUERY_ID = "query_id"  # column of SCORES_FILE, next to the measures
LONGEST_NAME = 255  # bytes of a file's name
SAME_MEAN = 1e-9  # sums of the same numbers differ by less between machines
CLOCK_SKEW = timedelta(days=1)
_STRINGS = (pa.string(), pa.large_string())
_KEYED = re.compile(r"[0-9a-f]{12}(-.*)?")  # a folder that `save` made

PAUSES_S = (0.01, 0.1)  # before a record that contradicts itself is read again
READERS = 16  # files that are read at once, near or far

Ids = dict[tuple[str, ...], tuple[str, ...]]  # equal ids once, by themselves


class Protocol(Record, kw_only=True):
    """The rules of an evaluation, which must be equal to compare two scores.

    Attributes:
        collection: name of the collection.
        version: declared release of the data.
        split: split of the judgements.
        title_track: how titles and texts are joined.
        corpus_sha256: hash of the corpus; "" if a run file was scored without it.
        queries_sha256: hash of the queries.
        qrels_sha256: hash of the judgements.
        exclude_self: whether the document whose id equals the query id is dropped.
        depth: documents retrieved per query.
        official: False if the user allowed a collection that differs from the published one.
    """

    collection: str
    version: str
    split: str
    title_track: str
    corpus_sha256: str
    queries_sha256: str
    qrels_sha256: str
    exclude_self: bool
    depth: int
    official: bool


class Timings(Record):
    """Wall-clock seconds of each stage. Stored vectors are not encoded again.

    Attributes:
        encode_queries_s: encoding of the queries.
        encode_documents_s: encoding of the documents.
        encoded_documents: number of distinct texts that this process encoded, without stored ones
            and those of other processes.
        search_s: search.
        score_s: scoring.
        encoded_tokens: tokens of encoded documents and queries, after truncation; 0 without a
            tokenizer.
        busy_s: seconds by kind of work (load, tokenise, forward, copy, write, search, rescore).
            Kinds that run in parallel overlap, so their sum may exceed the stages'.
    """

    encode_queries_s: float = 0.0
    encode_documents_s: float = 0.0
    encoded_documents: int = 0
    search_s: float = 0.0
    score_s: float = 0.0
    encoded_tokens: int = 0
    busy_s: dict[str, float] = {}


class Conditions(Record):
    """The machine and libraries of an evaluation.

    Attributes:
        time: ISO 8601 in UTC, to the second, so that it sorts as text.
        bench: version of this program.
        commit: git commit of the code; "" outside a checkout.
        dirty: whether tracked files differed from the commit.
        python: version of Python.
        machine: operating system and architecture.
        device: requested device of the encoder; ``auto`` is a GPU if there is one.
        search_device: device of exact search.
        threads: CPU threads available to this process.
        libraries: versions by name.
        program: hash of the source code that encodes, ranks and scores; "" if it was not recorded.
    """

    time: str
    bench: str
    commit: str
    dirty: bool
    python: str
    machine: str
    device: str
    search_device: str
    threads: int
    libraries: dict[str, str]
    program: str = ""

    def __post_init__(self) -> None:
        if not _is_time(self.time):
            raise ValueError(f"time is {self.time!r}, and must be like 2026-01-31T23:59:59+00:00")


class Result(Record, kw_only=True):
    """One model on one collection.

    Attributes:
        schema: version of the record.
        model: name of the model.
        main_measure: main measure of the collection.
        measures: means over all queries of the qrels.
        judged_at_10: share of the first ten documents that have a judgement; None if answer strings
            decide, which judge all documents.
        tie_low, tie_high: range of the main measure over all orders of tied documents; None if it
            is not known for this measure.
        queries: number of queries.
        documents: number of documents; None if a run file was scored.
        unanswered: number of queries without any document; they score 0.
        ignored: number of queries of a run file without judgements; they do not count.
        index: index as `IndexSpec` writes it; ``flat`` is exact, ``bm25`` a product with BM25's
            scores.
        index_recall: share of the exact top k that the index found, by ``recall@k``; empty for
            exact search.
        in_domain: whether the model was trained on the collection.
        protocol: rules of the evaluation.
        recipe: settings that determine the vectors; None if a run file was scored.
        fingerprint: hash of the recipe, or of the run file.
        preflight: results of the checks before encoding.
        timings: seconds of each stage.
        conditions: machine and libraries.
        parameters: parameters of the model; None if unknown.
        per_query_sha256: hash of the file of scores per query; "" before saving.
        run_sha256: hash of the file of the ranking; "" before saving.
        recall_queries: number of queries behind ``index_recall``; None for all.
    """

    schema: int = SCHEMA
    model: str
    main_measure: str
    measures: dict[str, float]
    judged_at_10: float | None
    tie_low: float | None
    tie_high: float | None
    queries: int
    documents: int | None
    unanswered: int
    ignored: int
    index: str
    index_recall: dict[str, float]
    in_domain: bool
    protocol: Protocol
    recipe: Recipe | None
    fingerprint: str
    preflight: dict[str, Any]
    timings: Timings
    conditions: Conditions
    parameters: Parameters | None = None
    per_query_sha256: str = ""
    run_sha256: str = ""
    recall_queries: int | None = None

    def __post_init__(self) -> None:
        if self.main_measure not in self.measures:
            raise ValueError(f"the main measure {self.main_measure} has no value")

    @property
    def key(self) -> str:
        """Hash of model, protocol and index, 12 hexadecimal digits."""
        content = msgspec.json.encode((self.fingerprint, self.protocol, self.index))
        return hashlib.sha256(content).hexdigest()[:12]


@dataclass(frozen=True)
class Evaluation:
    """One model on one collection: the result, the scores of each query, and the ranking.

    Attributes:
        result: means, protocol, recipe, timings and conditions.
        folder: folder of the stored result; None if it is in memory only.
    """

    result: Result
    _scores: Scores | None = field(default=None, repr=False)
    _run: Run | None = field(default=None, repr=False)
    folder: Location | None = None

    def __repr__(self) -> str:
        """Return model, collection and main score, in one line."""
        main = self.result.main_measure
        score = f"{main} {self.result.measures[main]:.4f}"
        return f"<Evaluation {self.model} on {self.collection}: {score}>"

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.result.model

    @property
    def collection(self) -> str:
        """Name of the collection."""
        return self.result.protocol.collection

    @property
    def dataset(self) -> str:
        """Name of the collection, for the Python API."""
        return self.collection

    @property
    def record(self) -> Result:
        """The result, for the Python API."""
        return self.result

    @property
    def measures(self) -> dict[str, float]:
        """Mean of each measure over all queries of the qrels, unrounded, the main measure first."""
        main, means = self.result.main_measure, self.result.measures
        return {main: means[main], **means}

    @property
    def scores(self) -> Scores:
        """Unrounded scores per query."""
        if self._scores is None:
            raise ValueError("an evaluation without scores has none per query")
        return self._scores

    @property
    def per_query(self) -> "pd.DataFrame":
        """Scores per query: a row for each query id, a float64 column for each measure."""
        import pandas as pd

        index = pd.Index(self.scores.query_ids, name=QUERY_ID)
        return pd.DataFrame({name: self.scores.values[name] for name in self.measures}, index=index)

    @property
    def run_file(self) -> Location:
        """File of the ranking."""
        if self.folder is None:
            raise ValueError("an evaluation in memory has no files")
        return self.folder / RUN_FILE

    @property
    def has_ranking(self) -> bool:
        """True if the file of the ranking exists and is the one written with the record."""
        try:
            content = read_file(self.run_file, max_bytes=None)
        except (OSError, BenchError):
            return False
        return self.result.run_sha256 == hashlib.sha256(content).hexdigest()

    @property
    def run(self) -> Run:
        """Ranking of each query. A stored ranking is read on each access.

        Raises:
            BenchError: the file is missing, damaged, or not the one written with the record.
        """
        if self._run is not None:
            return self._run
        file = read_run_file(self.run_file, allow_pipe=False)
        if self.result.run_sha256 != file.sha256:
            raise BenchError(
                f"{self.run_file} is not the file that was written with its result",
                f"evaluate {self.model} on {self.collection} again",
            )
        return file.run


def save(evaluation: Evaluation, out: Location) -> Evaluation:
    """Save an evaluation below a folder.

    On a local disk it replaces an earlier result with the same key, all files at once. In an object
    store, where several machines may write at the same time, it gets a folder of its own, and
    readers choose the newest.

    Args:
        evaluation: result, scores and ranking.
        out: folder of all results.

    Raises:
        BenchError: a name leads out of ``out``, or a run file cannot have the model's name.
    """
    scores = evaluation.scores
    columns = {QUERY_ID: pa.array(scores.query_ids, pa.large_string()), **scores.values}
    values = io.BytesIO()
    pq.write_table(pa.table(columns), values)
    ranking = encode_columnar(evaluation.run)
    result = msgspec.structs.replace(
        evaluation.result,
        per_query_sha256=hashlib.sha256(values.getbuffer()).hexdigest(),
        run_sha256=hashlib.sha256(ranking).hexdigest(),
    )
    content = msgspec.json.format(msgspec.json.encode(result), indent=1)
    folder = result_folder(out, result.protocol.collection, result.model) / result.key
    if isinstance(folder, RemotePath):
        folder = folder.parent / f"{folder.name}-{hashlib.sha256(content).hexdigest()[:8]}"
    files = [folder / name for name in (RUN_FILE, SCORES_FILE, RESULT_FILE)]
    with write_locations(files) as (run_file, scores_file, result_file):
        run_file.write(ranking)
        scores_file.write(values.getbuffer())
        result_file.write(content)
    return Evaluation(result, scores, folder=folder)


def check_name(name: str) -> None:
    """Raise if the ``name`` of a model or collection cannot be the path of a folder.

    Raises:
        BenchError: the name leads out of its folder, is too long, or has invisible characters.
    """
    parts = name.split("/")
    if not (name.isprintable() and {"", ".", ".."}.isdisjoint(parts)):
        raise BenchError(
            f"{name!r} cannot name a folder of results",
            "use a name like scifact or beir/scifact, without '..' and invisible characters",
        )
    if max(len(os.fsencode(part)) for part in parts) > LONGEST_NAME:
        raise BenchError(
            f"{name!r} is too long to name a folder of results",
            f"use at most {LONGEST_NAME} bytes between two '/'",
        )


def _is_time(text: str) -> bool:
    """Return True for a UTC time in the format of `Conditions`."""
    try:
        stated = datetime.fromisoformat(text)
    except ValueError:
        return False
    return stated.utcoffset() == timedelta(0) and stated.isoformat(timespec="seconds") == text


def result_folder(out: Location, collection: str, model: str) -> Location:
    """Return the folder of the results of one model on one collection.

    Args:
        out: folder of all results.
        collection: name of the collection.
        model: name of the model.

    Raises:
        BenchError: a name leads out of ``out``, or the model cannot be the tag of a run file.
    """
    for name in (collection, model):
        check_name(name)
    check_writable(pa.array([model], pa.large_string()), "model name")
    return out / collection / model


class _Head(msgspec.Struct):
    """The fields that records of every schema have."""

    schema: Any = None
    model: Any = None
    protocol: Any = None


def load(where: Location) -> Evaluation:
    """Load an evaluation from its folder, or from its ``result.json``, given as ``where``.

    Raises:
        BenchError: the record is missing, damaged, of another schema, or contradicts itself.
    """
    return load_all([where / RESULT_FILE if where.is_dir() else where])[0]


def load_all(files: Sequence[Location]) -> list[Evaluation]:
    """Load several ``result.json`` ``files`` with the scores of their queries, as `load` does."""
    ids: Ids = {}
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(lambda file: _load(file, ids), files))


def _load(path: Location, ids: Ids) -> Evaluation:
    """Load a result, and try again if another process may be replacing its files."""
    for pause_s in PAUSES_S:
        # Another process may be replacing the two files, which takes it a moment.
        with suppress(BenchError):
            return _read_checked(path, ids)
        time.sleep(pause_s)
    return _read_checked(path, ids)


def _read_checked(path: Location, ids: Ids) -> Evaluation:
    """Read a result with its scores, and raise if they contradict each other."""
    result = _read_record(path)
    values = path.parent / SCORES_FILE
    try:
        content = read_file(values, max_bytes=None)
    except FileNotFoundError:
        raise _contradiction_error(path, f"{SCORES_FILE} is missing") from None
    except OSError as error:
        raise BenchError(f"cannot read {values}: {error.strerror}") from error
    if result.per_query_sha256 != hashlib.sha256(content).hexdigest():
        raise _contradiction_error(path, f"{SCORES_FILE} is not the file that was written with it")
    try:
        scores = _parse_scores(content, result, ids)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _contradiction_error(path, f"in {SCORES_FILE}, {error}") from error
    return Evaluation(result, scores, folder=path.parent)


def _read_record(path: Location) -> Result:
    """Read a record and check everything that can be checked without other files."""
    try:
        content = read_file(path)
    except OSError as error:
        raise BenchError(f"cannot read the result {path}: {error.strerror}") from error
    head = decode_json(content, _Head, path, _recovery_hint(path))
    if type(head.schema) is not int or head.schema != SCHEMA:
        raise _schema_error(path, head)
    result = decode_json(content, Result, path, _recovery_hint(path))
    if datetime.fromisoformat(result.conditions.time) > datetime.now(UTC) + CLOCK_SKEW:
        raise _contradiction_error(path, f"its time {result.conditions.time} is in the future")
    try:
        check_name(result.protocol.collection)
        check_name(result.model)
    except BenchError as error:
        raise _contradiction_error(path, str(error)) from error
    if result.recipe is not None and result.fingerprint != result.recipe.fingerprint:
        raise _contradiction_error(path, "its fingerprint differs from its recipe's")
    if _KEYED.fullmatch(path.parent.name) and not path.parent.name.startswith(result.key):
        raise _contradiction_error(path, f"its key is {result.key}, unlike its folder's")
    return result


def _schema_error(path: Location, head: _Head) -> BenchError:
    """Return the error for a record of another schema, with the command that makes it again."""
    collection = head.protocol.get("collection") if isinstance(head.protocol, dict) else None
    names = [name if isinstance(name, str) else "" for name in (collection, head.model)]
    words = ["python", "-m", "bench", "run", names[0] or "COLLECTION", "--model"]
    command = shlex.join([*words, names[1] or "MODEL"])
    return BenchError(
        f"{path} has schema {head.schema}, and this version reads {SCHEMA}",
        f"evaluate again: {command}; or move {path.parent} out of the folder of results",
    )


def _contradiction_error(path: Location, why: str) -> BenchError:
    return BenchError(f"{path} contradicts itself: {why}", _recovery_hint(path))


def _recovery_hint(path: Location) -> str:
    return f"evaluate again, or move {path.parent} out of the folder of results"


def _parse_scores(content: bytes, result: Result, ids: Ids) -> Scores:
    """Return the scores of a record from the content of its Parquet file.

    Raises:
        ValueError, OSError, pa.ArrowException: the file is damaged, or belongs to another record.
    """
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    names = table.column_names
    if sorted(names) != sorted([QUERY_ID, *result.measures]):
        raise ValueError(f"the columns are {', '.join(names)}")
    if table.num_rows != result.queries:
        raise ValueError(f"there are {table.num_rows:,} queries instead of {result.queries:,}")
    query_ids = _query_ids(table[QUERY_ID], ids)
    values = {name: _column_values(name, table[name]) for name in names if name != QUERY_ID}
    for name, of_queries in values.items():
        mean, stated = float(np.mean(of_queries)), result.measures[name]
        if not math.isclose(mean, stated, rel_tol=SAME_MEAN, abs_tol=SAME_MEAN):
            raise ValueError(f"the mean of {name} is {mean:.6f}, and {stated:.6f} in the record")
    return Scores(query_ids, values, result.unanswered, result.ignored)


def _query_ids(column: pa.ChunkedArray, ids: Ids) -> tuple[str, ...]:
    """Return the query ids of a column, shared between results with equal ids."""
    if column.type not in _STRINGS or column.null_count:
        raise ValueError("query ids are not text")
    query_ids = tuple(column.to_pylist())
    if query_ids not in ids and len(set(query_ids)) != len(query_ids):
        raise ValueError("a query id occurs twice")
    return ids.setdefault(query_ids, query_ids)


def _column_values(name: str, column: pa.ChunkedArray) -> Float64Array:
    """Return the values of a measure, float64 ``(queries,)``."""
    if column.type != pa.float64() or column.null_count:
        raise ValueError(f"values of {name} are not numbers")
    values: Float64Array = column.to_numpy()
    if not np.isfinite(values).all():
        raise ValueError(f"a value of {name} is not finite")
    return values
