"""Stored results that answer for an evaluation which is asked for again.

A stale score is worse than an evaluation too many. `find_stored` is for what is shown as if it
were computed now: all that could change a score, or what is shown beside it, must be equal, and
the files must be whole; where anything is in doubt, there is no such result. `newest_of_same` is
for decisions, whose baselines come from other machines and versions too, so that a candidate's
results may: what defines the scores must be equal, and where they were computed need not.
"""

import logging
import sys
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from bench.evaluate.pipeline import Job, current_conditions, evaluate
from bench.evaluate.scoring import parse_measure, score
from bench.results.result import (
    RESULT_FILE,
    Conditions,
    Evaluation,
    Result,
    load,
    result_folder,
    save,
)
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from foundation.locations import Location, files_below

SAME_VALUE = 1e-9  # of a query on another machine

logger = logging.getLogger(__name__)


def find_stored(job: Job, out: Location) -> Evaluation | None:
    """The newest whole result of an evaluation below ``out``; None if any doubt is left.

    What is damaged is named in a warning.
    """
    here = _comparable_conditions(current_conditions(job.device))
    results = [
        stored for stored in _load_readable(job, out) if _is_result_of(job, here, stored.result)
    ]
    if len({tuple(stored.result.measures.values()) for stored in results}) != 1:
        return None  # none; or several that contradict each other
    newest = max(results, key=_evaluation_time)
    if not newest.has_ranking:
        logger.warning("%s is missing or damaged: evaluated again", newest.run_file)
        return None
    return newest


def find_equivalent(job: Job, results: Iterable[Evaluation]) -> Evaluation | None:
    """The newest of the results whose scores an evaluation defines, wherever they were computed.

    Where no measures were asked for, the main one is enough.
    """
    needed = job.measures if job.options.measures is not None else job.measures[:1]
    return max(
        (stored for stored in results if _has_same_scores(job, needed, stored.result)),
        key=_evaluation_time,
        default=None,
    )


def check_stored_values(stored: Evaluation, dataset: Dataset) -> None:
    """Refuse a stored result whose values are not those of the ranking beside it.

    Nothing is said if the ranking is not there, or if the judgements are others.

    Raises:
        BenchError: they are not, or the ranking is damaged or not the one that was written with it.
    """
    same = stored.result.protocol.qrels_sha256 == dataset.qrels_sha256
    if not (same and dataset.answers is None and stored.has_scores and stored.run_file.exists()):
        return
    stored_scores = stored.scores
    names = [name for name in stored_scores.values if parse_measure(name).native]
    found = score(stored.run, dataset.qrels, names)
    if stored_scores.query_ids != found.query_ids or not all(
        np.allclose(stored_scores.values[name], found.values[name], rtol=0, atol=SAME_VALUE)
        for name in names
    ):
        raise BenchError(
            f"{stored.folder} contradicts itself: its values are not those of its ranking",
            f"evaluate again, or move {stored.folder} out of the folder of results",
        )


def reuse_or_evaluate(job: Job, out: Location) -> Evaluation:
    """The stored result of a job; made, and kept below ``out``, if there is none.

    Raises:
        BenchError: as `evaluate`.
    """
    if job.stored:
        print(f"{job.dataset.name}: stored in {job.stored.folder}", file=sys.stderr)
        return job.stored
    return save(evaluate(job), out)


def _has_same_scores(job: Job, measures: tuple[str, ...], result: Result) -> bool:
    """True if the result has these measures of the same vectors, protocol and index."""
    return (
        not job.recipe.encoder  # a class of others may read files that nobody hashes
        and result.fingerprint == job.recipe.fingerprint
        and (result.protocol, result.index) == (job.protocol, job.retriever.index)
        and result.measures.keys() >= set(measures)
    )


def _is_result_of(job: Job, here: Conditions, result: Result) -> bool:
    """True if the result is of this evaluation, by this program and these libraries."""
    recall_queries = job.retriever.recall_queries(job.dataset)
    return (
        _has_same_scores(job, job.measures, result)
        and bool(result.conditions.program)
        and _comparable_conditions(result.conditions) == here
        and (result.model, result.in_domain) == (job.name, job.in_domain)
        and (result.recipe, result.recall_queries) == (job.recipe, recall_queries)
        and (result.main_measure, *result.measures) == (job.measures[0], *job.measures)
    )


def _comparable_conditions(conditions: Conditions) -> Conditions:
    """Conditions without what may differ: the time, and the version, which the digest tells."""
    time = "2000-01-01T00:00:00+00:00"
    return msgspec.structs.replace(conditions, time=time, bench="", commit="", dirty=False)


def _evaluation_time(stored: Evaluation) -> str:
    return stored.result.conditions.time


def _load_readable(job: Job, out: Location) -> Iterator[Evaluation]:
    folder = result_folder(out, job.protocol.collection, job.name)
    for file in files_below(folder, RESULT_FILE):
        if file.parent.parent == folder:  # and not of a model of a longer name
            try:
                yield load(file)
            except BenchError as damage:
                logger.warning("%s", damage)
