"""Records of evaluations: what was measured, under which protocol, with which recipe, on what.

One folder per evaluation: ``result.json`` (schema below), ``per_query.parquet`` (one row a query,
one column a measure, nothing rounded) and ``run.arrow``, the ranking; results before schema 4 have
it as ``run.trec.gz``. Results compare only under the same `Protocol`; recipes may differ and are
shown.

What `load` returns agrees with itself. A record states means, counts and the hash of the table of
its queries' values. All of that is recomputed from the table, so that neither can be changed
without the other. A record that contradicts itself is refused by name; it is never left out, shown
or compared.

History of the schema: 1, the first; 2 adds ``parameters``, which are unknown of older records; 3
adds ``per_query_sha256``; 4 adds ``run_sha256``, ``recall_queries``
and ``conditions.program``.
"""

import hashlib
import io
import math
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.evaluate.runs import Run, check_writable, encode_columnar, read_run_file
from bench.evaluate.scoring import Scores
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
TREC_FILE = "run.trec.gz"  # the only file of a ranking before schema 4; later where asked for
QUERY_ID = "query_id"  # column of SCORES_FILE beside the measures
LONGEST_NAME = 255  # bytes of a file's name
OLDEST = 1  # schema that is still read
HASHED_SINCE = 3  # schema that has the hash of the values
SAME_MEAN = 1e-9  # sums of the same numbers differ by less between machines
CLOCK_SKEW = timedelta(days=1)
_STRINGS = (pa.string(), pa.large_string())
_KEYED = re.compile(r"[0-9a-f]{12}(-.*)?")  # a folder that `save` made

PAUSES_S = (0.01, 0.1)  # before a record that contradicts itself is read again
READERS = 16  # files that are read at once, near or far

Ids = dict[tuple[str, ...], tuple[str, ...]]  # equal ids once, by themselves


class Protocol(Record, kw_only=True):
    """The rules of an evaluation, which must be equal for two scores to be compared.

    Attributes:
        collection: name of the collection.
        version: release of the data, as declared.
        corpus_sha256: content of the corpus; "" if a run file was scored without it.
        official: False if it is not the published collection, by the user's leave.
        exclude_self: whether the document whose id is the query's is dropped.
        depth: documents retrieved per query.
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
    """Wall-clock seconds of each stage. Vectors found in the store are not encoded again.

    Attributes:
        encoded_documents: distinct texts that this process encoded: not those that were stored,
            nor those that another process encoded meanwhile.
        encoded_tokens: documents and queries, cut as the recipe says; 0 without a tokenizer.
        busy_s: seconds by kind of work (load, tokenise, forward, copy, write, search, rescore);
            kinds that run beside each other overlap, so their sum may exceed the stages'.
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
        time: ISO 8601 to the second in UTC, so that texts sort as times do.
        commit: of the code; "" if it was not run from a git checkout.
        dirty: whether tracked files differed from the commit.
        device: where the encoder was asked to run; ``auto`` is a GPU if there is one.
        search_device: where exact search ran.
        threads: of the processor, as available to this process.
        program: digest of the source that encodes, ranks and scores; "" in records before schema 4.
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
            raise ValueError(f"time is {self.time!r}, and not like 2026-01-31T23:59:59+00:00")


class Result(Record, kw_only=True):
    """One model on one collection.

    Attributes:
        recipe: None if somebody else's run file was scored.
        index: as `IndexSpec` writes it; ``flat`` is exact, ``bm25`` a product with BM25's scores.
        index_recall: share of the exact top k that the index found, by ``recall@k``; empty for
            exact search.
        recall_queries: how many queries that was measured on; None for all.
        measures: means over all queries of the qrels.
        judged_at_10: share of the first ten documents that have a judgement; None if answer
            strings decide, which judge everything.
        tie_low, tie_high: range of the main measure over all orders of tied documents; None
            where it is not known for this measure.
        unanswered: queries without any document; they score 0.
        ignored: queries of a run file without judgements; they count nowhere.
        preflight: what the checks before encoding found.
        parameters: of the model; None if they are not known.
        per_query_sha256: of the file of the queries' values; "" in records before schema 3, and
            before it is saved.
        run_sha256: of the file of the ranking; "" in records before schema 4, and before it is
            saved.
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
            raise ValueError(f"there is no value of the main measure {self.main_measure}")

    @property
    def key(self) -> str:
        """12 hexadecimal digits: same key, same model, protocol and index."""
        content = msgspec.json.encode((self.fingerprint, self.protocol, self.index))
        return hashlib.sha256(content).hexdigest()[:12]


@dataclass(frozen=True)
class Evaluation:
    """One model on one collection: the result, the values of its queries, and its ranking.

    Attributes:
        result: means, protocol, recipe, timings and conditions.
        folder: where it is stored; None if it is in memory alone.
    """

    result: Result
    _scores: Scores | None = field(default=None, repr=False)
    _run: Run | None = field(default=None, repr=False)
    folder: Location | None = None

    def __repr__(self) -> str:
        """Return the names and the main score, in a line."""
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
        """Name of the collection, as the Python API has it."""
        return self.collection

    @property
    def record(self) -> Result:
        """The result, as the Python API has it."""
        return self.result

    @property
    def measures(self) -> dict[str, float]:
        """Mean of each measure over all queries of the qrels, unrounded; the main one first."""
        main, means = self.result.main_measure, self.result.measures
        return {main: means[main], **means}

    @property
    def has_scores(self) -> bool:
        """False for a record of an older version that came without values of queries."""
        return self._scores is not None

    @property
    def scores(self) -> Scores:
        """Values of the queries, as they were computed.

        Raises:
            BenchError: a record of an older version came without them.
        """
        if self._scores is None:
            raise BenchError(
                f"{self.folder} has no values of queries: there is no {SCORES_FILE}",
                f"evaluate {self.model} on {self.collection} again",
            )
        return self._scores

    @property
    def per_query(self) -> "pd.DataFrame":
        """Value of each measure for each query: float64, a row for each id of a query.

        Raises:
            BenchError: a record of an older version came without them.
        """
        import pandas as pd

        index = pd.Index(self.scores.query_ids, name=QUERY_ID)
        return pd.DataFrame({name: self.scores.values[name] for name in self.measures}, index=index)

    @property
    def run_file(self) -> Location:
        """The file that holds the ranking of each query of what is stored."""
        if self.folder is None:
            raise ValueError("an evaluation in memory has no files")
        return self.folder / (RUN_FILE if self.result.run_sha256 else TREC_FILE)

    @property
    def has_ranking(self) -> bool:
        """True if the file of the ranking is there, and the one written with the record."""
        try:
            content = read_file(self.run_file, max_bytes=None)
        except (OSError, BenchError):
            return False
        return self.result.run_sha256 in ("", hashlib.sha256(content).hexdigest())

    @property
    def run(self) -> Run:
        """The ranking of each query; of what is stored it is read each time.

        Raises:
            BenchError: its file is missing, damaged, or not the one written with the record.
        """
        if self._run is not None:
            return self._run
        file = read_run_file(self.run_file, allow_pipe=False)
        if self.result.run_sha256 not in ("", file.sha256):
            raise BenchError(
                f"{self.run_file} is not the file that was written with the result beside it",
                f"evaluate {self.model} on {self.collection} again",
            )
        return file.run


def save(evaluation: Evaluation, out: Location) -> Evaluation:
    """Write an evaluation below ``out``.

    On a local disk it takes the place of an earlier one of its key, all files together. In a
    store, where several machines may write at once, it gets a folder of its own: readers choose
    the newest.

    Raises:
        BenchError: a name that leads out of ``out``, or a model's that no run file can carry.
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
    if isinstance(folder, Path):
        (folder / TREC_FILE).unlink(missing_ok=True)  # of the evaluation that was replaced
    return Evaluation(result, scores, folder=folder)


def check_name(name: str) -> None:
    """Refuse a name of a model or collection that cannot be the path of a folder.

    Raises:
        BenchError: it leads elsewhere, is too long, or has characters that cannot be seen.
    """
    parts = name.split("/")
    if not (name.isprintable() and {"", ".", ".."}.isdisjoint(parts)):
        raise BenchError(
            f"{name!r} cannot name a folder of results",
            "use a name like scifact or beir/scifact: no '..', no '/' at either end, and "
            "nothing that cannot be seen",
        )
    if max(len(os.fsencode(part)) for part in parts) > LONGEST_NAME:
        raise BenchError(
            f"{name!r} is too long to name a folder of results",
            f"use at most {LONGEST_NAME} bytes between two '/'",
        )


def _is_time(text: str) -> bool:
    try:
        stated = datetime.fromisoformat(text)
    except ValueError:
        return False
    return stated.utcoffset() == timedelta(0) and stated.isoformat(timespec="seconds") == text


def result_folder(out: Location, collection: str, model: str) -> Location:
    """Folder of the results of one model on one collection.

    Raises:
        BenchError: a name, which may come from a user's TOML, leads out of ``out``, or the model
            cannot be the tag of a run file.
    """
    for name in (collection, model):
        check_name(name)
    check_writable(pa.array([model], pa.large_string()), "model name")
    return out / collection / model


class _SchemaOnly(msgspec.Struct):
    """The part of a record that every schema has."""

    schema: Any = None


def load(where: Location) -> Evaluation:
    """Read an evaluation from its folder, or from its ``result.json``.

    A record of an older schema is read as one of this schema.

    Raises:
        BenchError: no record, a damaged one, one of another schema, or one that contradicts
            itself.
    """
    return load_all([where / RESULT_FILE if where.is_dir() else where])[0]


def load_all(files: Sequence[Location]) -> list[Evaluation]:
    """Read several ``result.json`` with the values of their queries, as `load` does."""
    ids: Ids = {}
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(lambda file: _load(file, ids), files))


def _load(path: Location, ids: Ids) -> Evaluation:
    for pause_s in PAUSES_S:
        # Another process may be replacing the two files, which takes it a moment.
        with suppress(BenchError):
            return _read_checked(path, ids)
        time.sleep(pause_s)
    return _read_checked(path, ids)


def _read_checked(path: Location, ids: Ids) -> Evaluation:
    result = _read_record(path)
    values = path.parent / SCORES_FILE
    try:
        content = read_file(values, max_bytes=None)
    except FileNotFoundError:
        if result.per_query_sha256:
            raise _contradiction_error(path, f"there is no {SCORES_FILE} beside it") from None
        return Evaluation(result, folder=path.parent)
    except OSError as error:
        raise BenchError(f"cannot read {values}: {error.strerror}") from error
    if result.per_query_sha256 not in ("", hashlib.sha256(content).hexdigest()):
        raise _contradiction_error(path, f"{SCORES_FILE} is not the file that was written with it")
    try:
        scores = _parse_scores(content, result, ids)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _contradiction_error(path, f"in {SCORES_FILE}, {error}") from error
    return Evaluation(result, scores, folder=path.parent)


def _read_record(path: Location) -> Result:
    try:
        content = read_file(path)
    except OSError as error:
        raise BenchError(f"cannot read the result {path}: {error.strerror}") from error
    schema = decode_json(content, _SchemaOnly, path, _recovery_hint(path)).schema
    if type(schema) is not int or not OLDEST <= schema <= SCHEMA:
        raise BenchError(f"{path} has schema {schema}, this version reads {SCHEMA} and older")
    result = decode_json(content, Result, path, _recovery_hint(path))
    if datetime.fromisoformat(result.conditions.time) > datetime.now(UTC) + CLOCK_SKEW:
        raise _contradiction_error(path, f"its time {result.conditions.time} has not come yet")
    try:
        check_name(result.protocol.collection)
        check_name(result.model)
    except BenchError as error:
        raise _contradiction_error(path, str(error)) from error
    if (schema >= HASHED_SINCE) != bool(result.per_query_sha256):
        raise _contradiction_error(
            path, f"schema {schema} and the hash of {SCORES_FILE} do not fit"
        )
    if result.recipe is not None and result.fingerprint != result.recipe.fingerprint:
        raise _contradiction_error(path, "its fingerprint is not that of its recipe")
    if _KEYED.fullmatch(path.parent.name) and not path.parent.name.startswith(result.key):
        raise _contradiction_error(
            path, f"its folder has the key of another evaluation than {result.key}"
        )
    return result if schema == SCHEMA else msgspec.structs.replace(result, schema=SCHEMA)


def _contradiction_error(path: Location, why: str) -> BenchError:
    return BenchError(f"{path} contradicts itself: {why}", _recovery_hint(path))


def _recovery_hint(path: Location) -> str:
    return f"evaluate again, or move {path.parent} out of the folder of results"


def _parse_scores(content: bytes, result: Result, ids: Ids) -> Scores:
    """Values of the queries, when they are those of a record.

    Raises:
        ValueError, OSError, pa.ArrowException: they are damaged, or of another record.
    """
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    names = table.column_names
    if sorted(names) != sorted([QUERY_ID, *result.measures]):
        raise ValueError(f"there are columns {', '.join(names)}")
    if table.num_rows != result.queries:
        raise ValueError(f"there are {table.num_rows:,} queries, and not {result.queries:,}")
    query_ids = _query_ids(table[QUERY_ID], ids)
    values = {name: _column_values(name, table[name]) for name in names if name != QUERY_ID}
    for name, of_queries in values.items():
        mean, stated = float(np.mean(of_queries)), result.measures[name]
        if not math.isclose(mean, stated, rel_tol=SAME_MEAN, abs_tol=SAME_MEAN):
            raise ValueError(f"the mean of {name} is {mean:.6f}, and the record says {stated:.6f}")
    return Scores(query_ids, values, result.unanswered, result.ignored)


def _query_ids(column: pa.ChunkedArray, ids: Ids) -> tuple[str, ...]:
    if column.type not in _STRINGS or column.null_count:
        raise ValueError("query ids are not text")
    query_ids = tuple(column.to_pylist())
    if query_ids not in ids and len(set(query_ids)) != len(query_ids):
        raise ValueError("a query id occurs twice")
    return ids.setdefault(query_ids, query_ids)


def _column_values(name: str, column: pa.ChunkedArray) -> Float64Array:
    if column.type != pa.float64() or column.null_count:
        raise ValueError(f"values of {name} are not numbers")
    values: Float64Array = column.to_numpy()
    if not np.isfinite(values).all():
        raise ValueError(f"a value of {name} is not finite")
    return values
