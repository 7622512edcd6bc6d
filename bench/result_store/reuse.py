"""Reuse of stored results in place of a new evaluation.

An outdated score is worse than a repeated evaluation. `find_stored` returns a result to show as if
it were computed now: everything that influences scores, or is shown with them, must be equal, and
the files must be intact. `find_equivalent` is for decisions, whose baselines come from other
machines and versions: the vectors, protocol and index must be equal, but not the machine.
"""

import logging
import sys
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from bench.evaluation.judging import judge
from bench.evaluation.pipeline import Job, current_conditions, evaluate
from bench.evaluation.result_record import Conditions, Evaluation, Result
from bench.evaluation.scoring import score
from bench.result_store.result import RESULT_FILE, load, result_folder, save
from bench.store.versions import TOKENIZING
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError, MissingFileError, format_names
from foundation.locations import Location, files_below
from foundation.machine import library_version

SAME_VALUE = 1e-9  # tolerance for per-query values from another machine

logger = logging.getLogger(__name__)


def find_stored(job: Job, out: Location) -> Evaluation | None:
    """Return the newest intact result of ``job`` below ``out``, or None.

    Damaged results are named in a warning.
    """
    here = _comparable_conditions(current_conditions(job.device))
    results = [each for each in _load_readable(job, out) if _is_result_of(job, here, each)]
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
    needed = job.measures if job.options.measures is not None else job.measures[:1]
    same = (stored for stored in results if _has_same_scores(job, needed, stored))
    return max(same, key=_evaluation_time, default=None)


def check_stored_values(stored: Evaluation, dataset: Dataset) -> str:
    """Score a stored ranking again and compare the values.

    Args:
        stored: result with values of each query.
        dataset: collection with its judgements. Accepted answers are looked up in its corpus.

    Returns:
        The reason why the values cannot be computed again; "" if they agree.

    Raises:
        BenchError: the values differ, or the ranking is damaged or not the one that was stored.
    """
    protocol = stored.record.protocol
    if protocol.qrels_sha256 != dataset.qrels_sha256:
        return f"{stored.dataset} has different judgements on this machine"
    if not stored.run_file.exists():
        return f"{stored.run_file} is missing"
    values = stored.scores.values
    try:
        judgements = judge(dataset, stored.run, protocol.depth)
    except MissingFileError as missing:  # the documents, in which answers are looked up
        return str(missing)
    queries = None if dataset.answers is None else dataset.queries.ids
    found = score(stored.run, judgements, list(values), queries)
    if stored.scores.query_ids != found.query_ids or not all(
        np.allclose(values[name], found.values[name], rtol=0, atol=SAME_VALUE) for name in values
    ):
        raise BenchError(
            f"{stored.folder} contradicts itself: its scores differ from its ranking's",
            f"evaluate again, or move {stored.folder} out of the folder of results",
        )
    return ""


def warn_unchecked(reasons: Iterable[str]) -> None:
    """Warn that scores are not compared with their rankings, if there are ``reasons``.

    Args:
        reasons: reasons as of `check_stored_values`; "" is left out.
    """
    if unchecked := list(dict.fromkeys(filter(None, reasons))):
        shown = format_names(unchecked)
        logger.warning("some scores are not compared with their rankings: %s", shown)


def reuse_or_evaluate(job: Job, out: Location) -> Evaluation:
    """Return the stored result of ``job``, or evaluate it and save the result below ``out``.

    Raises:
        BenchError: as for `evaluate`.
    """
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
        and _has_same_tokens(job, result)
    )


def _has_same_tokens(job: Job, result: Result) -> bool:
    """Return True if the installed libraries give the token ids of a result.

    A record without a digest must be of the same versions.
    """
    if result.tokens_sha256 or not job.retriever.tokens_sha256:
        return result.tokens_sha256 == job.retriever.tokens_sha256
    libraries = result.conditions.libraries
    return all(libraries.get(name, "") == library_version(name) for name in TOKENIZING)


def _is_result_of(job: Job, here: Conditions, stored: Evaluation) -> bool:
    """Return True if a result is of this job, made by the same program and libraries."""
    result, recall_queries = stored.record, job.retriever.recall_queries(job.dataset)
    return (
        _has_same_scores(job, job.measures, stored)
        and bool(result.conditions.program)
        and _comparable_conditions(result.conditions) == here
        and (result.model, result.in_domain) == (job.name, job.in_domain)
        and (result.recipe, result.recall_queries) == (job.recipe, recall_queries)
        and (result.main_measure, *result.measures) == (job.measures[0], *job.measures)
    )


def _comparable_conditions(conditions: Conditions) -> Conditions:
    """Return conditions without time and version, which may differ."""
    time = "2000-01-01T00:00:00+00:00"
    return msgspec.structs.replace(conditions, time=time, bench="", commit="", dirty=False)


def _evaluation_time(stored: Evaluation) -> str:
    return stored.record.conditions.time


def _load_readable(job: Job, out: Location) -> Iterator[Evaluation]:
    """Yield the intact results of a job, and log a warning for each damaged one."""
    folder = result_folder(out, job.protocol.collection, job.name)
    for file in files_below(folder, RESULT_FILE):
        if file.parent.parent == folder:  # and not of a model of a longer name
            try:
                yield load(file)
            except BenchError as damage:
                logger.warning("%s", damage)
