"""Files of an evaluation, and their reuse in place of a new evaluation.

There is one folder per evaluation: ``result.json`` (a `bench.evaluation.result_record.Result`),
``per_query.parquet`` (a row per query, a column per measure, unrounded) and ``run.arrow``, the
ranking. `load` returns only consistent results: the means and the hash that a record states are
recomputed from the table. Records of another schema are refused, with the command that makes them
again.

An outdated score is worse than a repeated evaluation. `find_stored` returns a result to show as if
it were computed now: everything that influences scores, or is shown with them, must be equal, and
the files must be intact. `find_equivalent` is for decisions, whose baselines come from other
machines and versions: the vectors, protocol and index must be equal, but not the machine.
"""

import hashlib
import io
import logging
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.evaluation.judging import judge
from bench.evaluation.pipeline import Job, current_conditions, evaluate
from bench.evaluation.result_record import (
    OVERLAY_FILE,
    QUERY_ID,
    RUN_FILE,
    SCHEMA,
    SCORES_FILE,
    Conditions,
    Evaluation,
    Result,
)
from bench.evaluation.run_files import check_writable, encode_columnar
from bench.evaluation.scoring import Scores, score
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, MissingFileError, UnavailableError, format_names
from foundation.files import LONGEST_NAME, replace_files
from foundation.records import read_json

RESULT_FILE = "result.json"
TOLERANCE = 1e-9  # the same computations differ by less between machines
CLOCK_SKEW = timedelta(days=1)
_KEYED = re.compile(r"[0-9a-f]{12}(-.*)?")  # a folder that `save` made

PAUSES_S = (0.01, 0.1)  # before a record that contradicts itself is read again
READERS = 16  # files that are read at once, near or far

logger = logging.getLogger(__name__)


def save(evaluation: Evaluation, out: Path, overlay: bytes = b"") -> Evaluation:
    """Save an evaluation below the folder of all results, and return it with its folder.

    ``overlay`` is the content of the file of imported judgements, if it was scored with any.

    It replaces an earlier result with the same key, all files at once.

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
    contents = {RUN_FILE: ranking, SCORES_FILE: values.getbuffer()}
    contents |= {OVERLAY_FILE: overlay} if overlay else {}
    contents[RESULT_FILE] = content  # last, since it states the hashes of the others
    with replace_files([folder / name for name in contents]) as files:
        for file, written in zip(files, contents.values(), strict=True):
            file.write(written)
    return Evaluation(result, scores, folder=folder)


def check_name(name: str) -> None:
    """Raise a `BenchError` if the ``name`` of a model or collection cannot name a folder."""
    parts = name.split("/")
    fits = max(len(os.fsencode(part)) for part in parts) <= LONGEST_NAME
    if not (fits and name.isprintable() and {"", ".", ".."}.isdisjoint(parts)):
        raise BenchError(
            f"{name!r} cannot name a folder of results",
            "Use a name like scifact or beir/scifact, without '..' and invisible characters, and "
            f"at most {LONGEST_NAME} bytes between two '/'",
        )


def result_folder(out: Path, collection: str, model: str) -> Path:
    """Return the folder below ``out`` of the results of one model on one collection."""
    for name in (collection, model):
        check_name(name)
    check_writable(pa.array([model], pa.large_string()), "model name")
    return out / collection / model


def load(where: Path) -> Evaluation:
    """Load an evaluation from its folder, or from its ``result.json``, given as ``where``.

    Raises:
        BenchError: the record is missing, damaged, of another schema, or contradicts itself.
    """
    return _load(where / RESULT_FILE if where.is_dir() else where)


def load_all(files: Sequence[Path]) -> list[Evaluation]:
    """Load several ``result.json`` ``files`` with the scores of their queries, as `load` does."""
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(_load, files))


def _load(path: Path) -> Evaluation:
    """Load a result, and try again if another process may be replacing its files."""
    for pause_s in PAUSES_S:
        with suppress(BenchError):
            return _read_checked(path)
        time.sleep(pause_s)
    return _read_checked(path)


def _read_checked(path: Path) -> Evaluation:
    """Read a result with its scores, and raise if they contradict each other."""
    result = _read_record(path)
    values = path.parent / SCORES_FILE
    try:
        content = values.read_bytes()
    except OSError as error:
        raise _contradiction_error(path, f"cannot read {values}: {error.strerror}") from error
    if result.per_query_sha256 != hashlib.sha256(content).hexdigest():
        raise _contradiction_error(path, f"{SCORES_FILE} is not the file that was written with it")
    return Evaluation(result, _parse_scores(path, content, result), folder=path.parent)


class _HeadProtocol(msgspec.Struct):
    collection: str = "COLLECTION"


class _Head(msgspec.Struct):
    """The fields of a record of any schema that are needed to make it again."""

    schema: int = 0
    model: str = "MODEL"
    protocol: _HeadProtocol = msgspec.field(default_factory=_HeadProtocol)


def _read_record(path: Path) -> Result:
    """Read a record and check everything that can be checked without other files."""
    hint = _recovery_hint(path.parent)
    head = read_json(path, _Head, hint)
    if head.schema != SCHEMA:
        words = ["python", "-m", "bench", "run", head.protocol.collection, "--model", head.model]
        problem = f"{path} has schema {head.schema}, and this version reads {SCHEMA}"
        raise BenchError(problem, _recovery_hint(path.parent, shlex.join(words)))
    result = read_json(path, Result, hint)
    if result.conditions.time > (datetime.now(UTC) + CLOCK_SKEW).isoformat():
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


def _contradiction_error(path: Path, why: str) -> BenchError:
    return BenchError(f"{path} contradicts itself: {why}", _recovery_hint(path.parent))


def _recovery_hint(folder: Path | None, command: str = "") -> str:
    again = f"Run `{command}`" if command else "Evaluate again"
    return f"{again}, or move {folder} out of the folder of results."


def _parse_scores(path: Path, content: bytes, result: Result) -> Scores:
    """Return the scores in a Parquet file, and raise if the means or counts of a record differ."""
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    query_ids = tuple(table.column(QUERY_ID).to_pylist())
    values = {name: table[name].to_numpy() for name in table.column_names if name != QUERY_ID}
    if values.keys() != result.measures.keys():
        raise _contradiction_error(path, f"{SCORES_FILE} has values of {', '.join(values)}")
    if len(query_ids) != result.queries:
        counts = f"{len(query_ids):,} queries instead of {result.queries:,}"
        raise _contradiction_error(path, f"{SCORES_FILE} has {counts}")
    for name, of_queries in values.items():
        mean, stated = float(np.mean(of_queries)), result.measures[name]
        if not math.isclose(mean, stated, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            why = f"the mean of {name} is {mean:.6f}, and {stated:.6f} in the record"
            raise _contradiction_error(path, why)
    return Scores(_share(query_ids), values, result.unanswered, result.ignored)


@cache
def _share(query_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first of equal tuples, so that the results of a collection share their ids."""
    return query_ids


def find_stored(job: Job, out: Path) -> Evaluation | None:
    """Return the newest intact result of ``job`` below ``out``, or None.

    Damaged results are named in a warning.
    """
    here = _comparable_conditions(current_conditions(job.model.resources.device))
    folder, results = result_folder(out, job.protocol.collection, job.name), []
    for file in sorted(folder.glob(f"*/{RESULT_FILE}")):
        try:
            stored = load(file)
        except BenchError as damage:
            logger.warning("%s", damage)
            continue
        if _is_result_of(job, here, stored):
            results.append(stored)
    if len({tuple(stored.record.measures.values()) for stored in results}) != 1:
        return None  # none; or several that contradict each other
    newest = max(results, key=_evaluation_time)
    if not newest.has_ranking:
        logger.warning("%s is missing or damaged: evaluating again", newest.run_file)
        return None
    return newest


def find_equivalent(job: Job, results: Iterable[Evaluation]) -> Evaluation | None:
    """Return the newest of ``results`` with the scores of ``job``, from any machine, or None.

    If the job asks for no particular measures, the main measure is enough.
    """
    needed = job.measures if job.model.options.measures is not None else job.measures[:1]
    same = (stored for stored in results if _has_same_scores(job, needed, stored))
    return max(same, key=_evaluation_time, default=None)


def check_stored_values(stored: Evaluation, dataset: Dataset) -> None:
    """Score a stored ranking again and compare the values of each query.

    Accepted answers are looked up in the corpus.

    Raises:
        UnavailableError: the values cannot be computed again.
        BenchError: the values differ, or the ranking is damaged or not the one that was stored.
    """
    protocol = stored.record.protocol
    if protocol.qrels_sha256 != dataset.qrels_sha256:
        raise UnavailableError(f"{stored.dataset} has different judgements on this machine")
    if not stored.run_file.exists():
        raise UnavailableError(f"{stored.run_file} is missing")
    values = stored.scores.values
    try:
        judgements = judge(dataset, stored.run)
    except MissingFileError as missing:  # the documents, in which answers are looked up
        raise UnavailableError(str(missing)) from None
    queries = None if dataset.answers is None else dataset.queries.ids
    found = score(stored.run, judgements, list(values), queries)
    if stored.scores.query_ids != found.query_ids or not all(
        np.allclose(values[name], found.values[name], rtol=0, atol=TOLERANCE) for name in values
    ):
        problem = f"{stored.folder} contradicts itself: its scores differ from its ranking's"
        raise BenchError(problem, _recovery_hint(stored.folder))


class UncheckedScores:
    """Reasons why stored scores are not compared with their rankings, for one warning."""

    def __init__(self) -> None:
        self.reasons: dict[str, None] = {}

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect the reason if data is not available."""
        try:
            yield
        except UnavailableError as error:
            self.reasons[str(error)] = None

    def warn(self) -> None:
        """Warn about the reasons, if there are any."""
        if self.reasons:
            shown = format_names(list(self.reasons))
            logger.warning("some scores are not compared with their rankings: %s", shown)


def reuse_or_evaluate(job: Job, out: Path) -> Evaluation:
    """Return the stored result of ``job``, or evaluate it and save the result below ``out``."""
    if job.stored:
        print(f"{job.dataset.name}: using the result in {job.stored.folder}", file=sys.stderr)
        return job.stored
    return save(evaluate(job), out)


def _has_same_scores(job: Job, measures: tuple[str, ...], stored: Evaluation) -> bool:
    """Return True if a result has these measures for equal vectors, protocol and index."""
    result = stored.record
    return (
        not job.recipe.encoder  # an external encoder may read files that are not hashed
        and result.fingerprint == job.recipe.fingerprint
        and (result.protocol, result.index) == (job.protocol, job.retriever.index)
        and result.measures.keys() >= set(measures)
        and result.tokens_sha256 == job.retriever.tokens_sha256
    )


def _is_result_of(job: Job, here: Conditions, stored: Evaluation) -> bool:
    """Return True if a result is of this job, made by the same program and libraries."""
    result, recall_queries = stored.record, job.retriever.recall_queries(job.dataset)
    concurrency = result.latency.concurrency if result.latency else 1
    return (
        _has_same_scores(job, job.measures, stored)
        and bool(result.conditions.program)
        and _comparable_conditions(result.conditions) == here
        and (result.model, result.in_domain) == (job.name, job.in_domain)
        and (result.recipe, result.recall_queries) == (job.recipe, recall_queries)
        and concurrency == (job.model.options.concurrency or 1)
        and (result.main_measure, *result.measures) == (job.measures[0], *job.measures)
    )


def _comparable_conditions(conditions: Conditions) -> Conditions:
    """Return conditions without time, version, threads, own code and request, which may differ."""
    return msgspec.structs.replace(
        conditions,
        time="2000-01-01T00:00:00+00:00",
        bench="",
        commit="",
        dirty=False,
        threads=0,
        own_code=(),
        command="",
        request={},
    )


def _evaluation_time(stored: Evaluation) -> str:
    return stored.record.conditions.time
