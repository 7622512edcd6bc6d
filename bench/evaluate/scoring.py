"""Scores of a run against relevance judgements.

The one denominator: every mean is over the queries of the qrels. A query that the run lacks
scores 0; a query of the run without judgements counts nowhere, and is reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from bench.evaluate.measures import (
    JudgedRun,
    Measure,
    parse_measure,
    position_in_group,
    providers,
    values,
)
from bench.evaluate.runs import Run
from datasets_cfg.records import Qrels
from foundation.arrays import Float64Array, Int64Array
from foundation.errors import BenchError


@dataclass(frozen=True)
class Scores:
    """Values of measures for each query of the qrels; nothing is rounded.

    Attributes:
        query_ids: q ids in the order of the qrels.
        values: canonical measure name -> float64 ``(q,)``.
        unanswered: how many of the queries have no document in the run; they score 0.
        ignored: how many queries of the run have no judgement; they count nowhere.
    """

    query_ids: tuple[str, ...]
    values: Mapping[str, Float64Array]
    unanswered: int
    ignored: int

    def by_query(self, measure: str) -> dict[str, float]:
        """Value of each query."""
        return dict(zip(self.query_ids, self.values[measure].tolist(), strict=True))

    def mean(self, measure: str) -> float:
        """Mean over all queries of the qrels."""
        return float(np.mean(self.values[parse_measure(measure).name]))


def score(
    run: Run, qrels: Qrels, measures: Sequence[str], queries: Sequence[str] | None = None
) -> Scores:
    """Score a run with each of the measures (ir_measures names).

    Documents rank as the run has them, so that no measure ever breaks a tie.

    Args:
        run: documents in canonical order.
        qrels: judgements.
        measures: names such as ``nDCG@10`` or ``AP(rel=2)``.
        queries: the denominator where it is larger than the queries of the qrels: questions
            whose passages are judged by answer strings may have no judgement at all.

    Raises:
        BenchError: an unknown measure, no query to score, judgements of a query that is not in
            ``queries``, or one pair judged twice with different grades.
    """
    parsed = [parse_measure(name) for name in measures]
    table = _match(run, qrels, queries)
    native = {measure.name: values(measure, table.judged) for measure in parsed if measure.native}
    others = [measure for measure in parsed if not measure.native]
    provided = _provided(run, qrels, table.query_ids, others) if others else {}
    by_name = {measure.name: {**native, **provided}[measure.name] for measure in parsed}
    unanswered = int(np.count_nonzero(table.judged.retrieved == 0))
    return Scores(table.query_ids, by_name, unanswered, table.ignored)


def tie_bounds(
    run: Run, qrels: Qrels, measure: str, queries: Sequence[str] | None = None
) -> tuple[float, float]:
    """Lowest and highest mean that reordering documents with equal scores could give.

    All native measures rise, or stay, when a document of a higher grade moves up: the bounds are
    the values with the grades of each tie in rising and in falling order.

    Raises:
        BenchError: as ``score``, or the measure is not native.
    """
    parsed = parse_measure(measure)
    if not parsed.native:
        raise BenchError(f"tie bounds of {parsed.name} are not known: ir_measures computes it")
    table = _match(run, qrels, queries)
    first, last = _tie_ends(run, table.hit_rows)
    worst = _tie_broken(table, last, -1)
    best = _tie_broken(table, first, 1)
    return float(np.mean(values(parsed, worst))), float(np.mean(values(parsed, best)))


@dataclass(frozen=True)
class _Match:
    """A run seen from the qrels; ``hit_rows`` are the rows of the run behind ``judged.hit_*``."""

    query_ids: tuple[str, ...]
    judged: JudgedRun
    hit_rows: Int64Array
    ignored: int


@dataclass(frozen=True)
class _Judgements:
    """Distinct judgements as numbers: ``keys`` = query number * len(doc_ids) + document number."""

    doc_ids: pa.LargeStringArray
    keys: Int64Array
    grades: Int64Array


def _match(run: Run, qrels: Qrels, queries: Sequence[str] | None) -> _Match:
    """Find the judged documents of a run, without a Python step per document."""
    query_ids = _denominator(qrels, queries)
    numbers = {query_id: number for number, query_id in enumerate(query_ids)}
    judgements = _judgements(qrels, numbers)
    run_numbers = np.array(
        [numbers.get(query_id, -1) for query_id in run.query_ids], dtype=np.int64
    )
    rows, grades = _hits(run, judgements, run_numbers)
    places = np.searchsorted(run.offsets, rows, side="right") - 1
    by_query = np.lexsort((rows, run_numbers[places]))
    rows, grades, places = rows[by_query], grades[by_query], places[by_query]
    retrieved = np.zeros(len(query_ids), dtype=np.int64)
    retrieved[run_numbers[run_numbers >= 0]] = np.diff(run.offsets)[run_numbers >= 0]
    judged_query = judgements.keys // len(judgements.doc_ids)
    by_grade = np.lexsort((-judgements.grades, judged_query))
    judged = JudgedRun(
        queries=len(query_ids),
        retrieved=retrieved,
        hit_query=run_numbers[places],
        hit_rank=rows - run.offsets[places],
        hit_grade=grades,
        judged_query=judged_query[by_grade],
        judged_grade=judgements.grades[by_grade],
    )
    return _Match(query_ids, judged, rows, int(np.count_nonzero(run_numbers < 0)))


def _denominator(qrels: Qrels, queries: Sequence[str] | None) -> tuple[str, ...]:
    judged = qrels.queries()
    query_ids = judged if queries is None else tuple(dict.fromkeys(queries))
    if not query_ids:
        raise BenchError("there is no query to score: the qrels are empty")
    if strays := set(judged) - set(query_ids):
        raise BenchError(f"query {min(strays)!r} has judgements but is not among the queries")
    return query_ids


def _judgements(qrels: Qrels, numbers: Mapping[str, int]) -> _Judgements:
    documents = pa.array(qrels.doc_ids, pa.large_string()).dictionary_encode()
    codes = documents.indices.to_numpy().astype(np.int64)
    queries = np.array([numbers[query_id] for query_id in qrels.query_ids], dtype=np.int64)
    keys = queries * len(documents.dictionary) + codes
    by_key = np.argsort(keys, kind="stable")
    keys, grades = keys[by_key], qrels.grades[by_key].astype(np.int64)
    repeated = keys[1:] == keys[:-1]
    disputed = np.flatnonzero(repeated & (grades[1:] != grades[:-1]))
    if len(disputed):
        row = int(by_key[disputed[0]])
        pair = f"document {qrels.doc_ids[row]!r} for query {qrels.query_ids[row]!r}"
        raise BenchError(f"{pair} is judged twice with different grades", "keep one of the lines")
    first = np.concatenate([[True], ~repeated])[: len(keys)]
    return _Judgements(documents.dictionary, keys[first], grades[first])


def _hits(
    run: Run, judgements: _Judgements, run_numbers: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Rows of the run that have a judgement, and its grade."""
    codes = np.full(len(run.ids), -1, dtype=np.int32)  # of judged documents, by place in the run
    places = run.places_of(judgements.doc_ids)
    codes[places[places >= 0]] = np.flatnonzero(places >= 0)
    rows = np.flatnonzero((codes >= 0)[run.documents])
    queries = run_numbers[np.searchsorted(run.offsets, rows, side="right") - 1]
    rows, queries = rows[queries >= 0], queries[queries >= 0]
    keys = queries * len(judgements.doc_ids) + codes[run.documents[rows]]
    positions = np.searchsorted(judgements.keys, keys)
    positions[positions == len(judgements.keys)] = 0
    judged = judgements.keys[positions] == keys
    return rows[judged], judgements.grades[positions[judged]]


def _provided(
    run: Run, qrels: Qrels, query_ids: Sequence[str], measures: Sequence[Measure]
) -> dict[str, Float64Array]:
    """Values from ir_measures, on scores that are the depth minus the rank: no ties are left."""
    import ir_measures

    parsed = [ir_measures.parse_measure(measure.name) for measure in measures]
    grades = _grades_by_query(qrels)
    ranked = {
        query_id: {doc_id: float(len(docs) - rank) for rank, doc_id in enumerate(docs)}
        for query_id, docs, _ in run.rankings()
        if query_id in grades
    }
    numbers = {query_id: number for number, query_id in enumerate(query_ids)}
    result = {measure.name: np.zeros(len(query_ids)) for measure in measures}
    try:
        for metric in providers().iter_calc(parsed, grades, ranked):
            result[str(metric.measure)][numbers[metric.query_id]] = metric.value
    except Exception as error:  # each provider fails in its own way
        names = ", ".join(result)
        raise BenchError(
            f"ir_measures cannot compute {names} of this run: {error!r}",
            "choose another measure with --measure",
        ) from error
    for name, scores in result.items():
        if not np.isfinite(scores).all():
            query_id = query_ids[int(np.argmin(np.isfinite(scores)))]
            raise BenchError(
                f"{name} is not a number for query {query_id!r}",
                "choose another measure with --measure",
            )
    return result


def _grades_by_query(qrels: Qrels) -> dict[str, dict[str, int]]:
    grades: dict[str, dict[str, int]] = {query_id: {} for query_id in qrels.queries()}
    for query_id, doc_id, grade in qrels:
        grades[query_id][doc_id] = grade
    for query_id, judged in grades.items():
        if max(judged.values()) < 0:
            # trec_eval reads outside its memory when all grades of a query are negative.
            grades[query_id] = dict.fromkeys(judged, 0)
    return grades


def _tie_ends(run: Run, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """First and last row of the tie that each of the rows is part of."""
    starts_tie = np.ones(len(run), dtype=bool)
    starts_tie[1:] = run.scores[1:] != run.scores[:-1]
    starts_tie[run.offsets[:-1][np.diff(run.offsets) > 0]] = True
    starts = np.append(np.flatnonzero(starts_tie), len(run))
    tie = np.searchsorted(starts, rows, side="right") - 1
    return starts[tie], starts[tie + 1] - 1


def _tie_broken(table: _Match, ends: Int64Array, step: int) -> JudgedRun:
    """The judged documents of each tie moved to its end, the highest grade outermost.

    ``ends`` is the first row of each hit's tie with ``step`` 1, or the last row with -1.
    """
    judged = table.judged
    by_grade = np.lexsort((-judged.hit_grade, ends))
    moved = ends[by_grade] + step * position_in_group(ends[by_grade])
    ranks = (judged.hit_rank - table.hit_rows)[by_grade] + moved
    queries, grades = judged.hit_query[by_grade], judged.hit_grade[by_grade]
    by_rank = np.lexsort((ranks, queries))
    return replace(
        judged,
        hit_query=queries[by_rank],
        hit_rank=ranks[by_rank],
        hit_grade=grades[by_rank],
    )
