"""The one reader of stored results: what it returns agrees with itself.

A record states means, counts and the hash of the table of its queries' values. All of that is
recomputed from the table, so that neither can be changed without the other. A record that
contradicts itself is refused by name; it is never left out, shown or compared.
"""

import hashlib
import math
import re
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

from bench.evaluate.scoring import Scores
from bench.results.location import Place
from bench.results.result import (
    QUERY_ID,
    RESULT_FILE,
    SCHEMA,
    SCORES_FILE,
    Evaluation,
    Result,
    check_name,
)
from foundation.arrays import Float64Array
from foundation.errors import BenchError
from foundation.records import decode_json

OLDEST = 1  # schema that is still read
HASHED_SINCE = 3  # schema that has the hash of the values
SAME_MEAN = 1e-9  # sums of the same numbers differ by less between machines
CLOCK_SKEW = timedelta(days=1)
_STRINGS = (pa.string(), pa.large_string())
_KEYED = re.compile(r"[0-9a-f]{12}(-.*)?")  # a folder that `save` made

PAUSES_S = (0.01, 0.1)  # before a record that contradicts itself is read again
READERS = 16  # files that are read at once, near or far

Ids = dict[tuple[str, ...], tuple[str, ...]]  # equal ids once, by themselves


class _Versioned(msgspec.Struct):
    """The part of a record that every schema has."""

    schema: Any = None


def load(where: Place) -> Evaluation:
    """Read an evaluation from its folder, or from its ``result.json``.

    A record of an older schema is read as one of this schema.

    Raises:
        BenchError: no record, a damaged one, one of another schema, or one that contradicts
            itself.
    """
    return load_all([where / RESULT_FILE if where.is_dir() else where])[0]


def load_all(files: Sequence[Place]) -> list[Evaluation]:
    """Read several ``result.json`` with the values of their queries, as `load` does."""
    ids: Ids = {}
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(lambda file: _load(file, ids), files))


def _load(path: Place, ids: Ids) -> Evaluation:
    for pause_s in PAUSES_S:
        # Another process may be replacing the two files, which takes it a moment.
        with suppress(BenchError):
            return _checked(path, ids)
        time.sleep(pause_s)
    return _checked(path, ids)


def _checked(path: Place, ids: Ids) -> Evaluation:
    result = _record(path)
    values = path.parent / SCORES_FILE
    try:
        content = values.read_bytes()
    except FileNotFoundError:
        if result.per_query_sha256:
            raise _contradiction(path, f"there is no {SCORES_FILE} beside it") from None
        return Evaluation(result, folder=path.parent)
    except OSError as error:
        raise BenchError(f"cannot read {values}: {error.strerror}") from error
    if result.per_query_sha256 not in ("", hashlib.sha256(content).hexdigest()):
        raise _contradiction(path, f"{SCORES_FILE} is not the file that was written with it")
    try:
        scores = _scores(content, result, ids)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _contradiction(path, f"in {SCORES_FILE}, {error}") from error
    return Evaluation(result, scores, folder=path.parent)


def _record(path: Place) -> Result:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BenchError(f"cannot read the result {path}: {error.strerror}") from error
    schema = decode_json(content, _Versioned, path, _again(path)).schema
    if type(schema) is not int or not OLDEST <= schema <= SCHEMA:
        raise BenchError(f"{path} has schema {schema}, this version reads {SCHEMA} and older")
    result = decode_json(content, Result, path, _again(path))
    if datetime.fromisoformat(result.conditions.time) > datetime.now(UTC) + CLOCK_SKEW:
        raise _contradiction(path, f"its time {result.conditions.time} has not come yet")
    try:
        check_name(result.protocol.collection)
        check_name(result.model)
    except BenchError as error:
        raise _contradiction(path, str(error)) from error
    if (schema >= HASHED_SINCE) != bool(result.per_query_sha256):
        raise _contradiction(path, f"schema {schema} and the hash of {SCORES_FILE} do not fit")
    if result.recipe is not None and result.fingerprint != result.recipe.fingerprint:
        raise _contradiction(path, "its fingerprint is not that of its recipe")
    if _KEYED.fullmatch(path.parent.name) and not path.parent.name.startswith(result.key):
        raise _contradiction(
            path, f"its folder has the key of another evaluation than {result.key}"
        )
    return result if schema == SCHEMA else msgspec.structs.replace(result, schema=SCHEMA)


def _contradiction(path: Place, why: str) -> BenchError:
    return BenchError(f"{path} contradicts itself: {why}", _again(path))


def _again(path: Place) -> str:
    return f"evaluate again, or move {path.parent} out of the folder of results"


def _scores(content: bytes, result: Result, ids: Ids) -> Scores:
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
    values = {name: _values(name, table[name]) for name in names if name != QUERY_ID}
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


def _values(name: str, column: pa.ChunkedArray) -> Float64Array:
    if column.type != pa.float64() or column.null_count:
        raise ValueError(f"values of {name} are not numbers")
    values: Float64Array = column.to_numpy()
    if not np.isfinite(values).all():
        raise ValueError(f"a value of {name} is not finite")
    return values
