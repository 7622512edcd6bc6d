"""Files of an evaluation: saved all at once, and loaded only if they agree.

There is one folder per evaluation: ``result.json`` (a `bench.evaluation.result_record.Result`),
``per_query.parquet`` (a row per query, a column per measure, unrounded) and ``run.arrow``, the
ranking.

`load` returns only consistent results. A record states means, counts and the hash of the table of
scores per query. All of these are recomputed from the table, so that neither can be changed without
the other. A record that contradicts itself raises an error that names it.

Records of schemas before the present one are refused, with the command that makes them again.
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
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.evaluation.result_record import (
    QUERY_ID,
    RUN_FILE,
    SCHEMA,
    SCORES_FILE,
    Evaluation,
    Result,
)
from bench.evaluation.runs import check_writable, encode_columnar
from bench.evaluation.scoring import Scores
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.files import read_file
from foundation.locations import Location, RemotePath, write_locations
from foundation.records import decode_json

RESULT_FILE = "result.json"
LONGEST_NAME = 255  # bytes of a file's name
SAME_MEAN = 1e-9  # sums of the same numbers differ by less between machines
CLOCK_SKEW = timedelta(days=1)
_STRINGS = (pa.string(), pa.large_string())
_KEYED = re.compile(r"[0-9a-f]{12}(-.*)?")  # a folder that `save` made

PAUSES_S = (0.01, 0.1)  # before a record that contradicts itself is read again
READERS = 16  # files that are read at once, near or far

Ids = dict[tuple[str, ...], tuple[str, ...]]  # equal ids once, by themselves


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
        evaluation.record,
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
