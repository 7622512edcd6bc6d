"""Measures, and scores of a run against relevance judgements.

Measures have the names of ir_measures and the values of trec_eval. The common ones are computed
here with NumPy, from the ranks of judged documents alone. All others are computed by ir_measures.

There is one denominator: every mean is over the queries of the qrels. A query without results
scores 0. A query of the run without judgements does not count, and is reported.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from bench.evaluation.runs import Run, find_strings
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from foundation.errors import BenchError, closest_names

LISTING = "Run `python -m bench list measures`."
NO_CUTOFF = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Definition:
    """How a kind of measure adds up the documents of one query, for scores and for their bounds.

    A document adds its gain, divided by its discount, to a sum that is then normalised.

    Attributes:
        gain: gain of grades, float64 ``(n,)``, given grades and the lowest relevant grade.
        discount: divisor of documents at ranks from 1.
        normaliser: divisor of the sum: that of the ideal ranking, the number of relevant documents,
            or the cutoff. With "first" there is none, and only the first relevant document counts.
    """

    gain: Callable[[Int64Array, int], Float64Array]
    discount: Callable[[Int64Array], Float64Array]
    normaliser: Literal["ideal", "relevant", "cutoff", "first"]


@dataclass(frozen=True)
class Measure:
    """One measure of ir_measures.

    Attributes:
        name: canonical name (``RR@10`` also for ``MRR@10``), used as the key.
        kind: name without parameters.
        cutoff: number of documents per query that count.
        rel: lowest relevant grade, for measures with binary relevance.
        native: whether it is computed here, not by a provider of ir_measures.
    """

    name: str
    kind: str
    cutoff: int = NO_CUTOFF
    rel: int = 1
    native: bool = True

    @property
    def documents(self) -> int:
        """Number of documents per query that must be ranked, 0 without a cutoff."""
        return 0 if self.cutoff == NO_CUTOFF else self.cutoff

    @property
    def definition(self) -> Definition | None:
        """Definition of a measure that adds up documents; None for all others."""
        return DEFINITIONS.get(self.kind) if self.native else None


@dataclass(frozen=True)
class JudgedRun:
    """Ranks of a run's judged documents, from which all native measures are computed.

    Queries are numbered from 0 to q - 1. Ranks start at 0.

    Attributes:
        retrieved: int64 ``(q,)``, number of documents in the run.
        hit_query, hit_rank, hit_grade: int64 ``(m,)``, documents that are both retrieved and
            judged, by query, then rank.
        judged_query, judged_grade: int64 ``(j,)``, all judgements by query, then falling grade.
    """

    retrieved: Int64Array
    hit_query: Int64Array
    hit_rank: Int64Array
    hit_grade: Int64Array
    judged_query: Int64Array
    judged_grade: Int64Array


def parse_measure(name: str) -> Measure:
    """Parse the ``name`` of a measure as ir_measures or trec_eval call it.

    Raises:
        BenchError: an unknown measure, a wrong parameter, or a measure without an installed
            provider.
    """
    import ir_measures

    with suppress(ValueError):
        [known] = ir_measures.parse_trec_measure(name)  # such as ndcg_cut_10
        name = str(known)
    try:
        parsed = ir_measures.parse_measure(name)
        parsed.validate_params()
    except (ValueError, NameError, AssertionError) as error:
        raise BenchError(f"there is no measure {name!r}", _suggestion(name)) from error
    params = parsed.params
    if "cutoff" in params and (isinstance(params["cutoff"], bool) or params["cutoff"] < 1):
        raise BenchError(f"measure {name!r} has a cutoff below 1", LISTING)
    if parsed.NAME in _NATIVE and _is_plain(params):
        cutoff, rel = params.get("cutoff", NO_CUTOFF), params.get("rel", 1)
        return Measure(str(parsed), parsed.NAME, cutoff, rel)
    if not providers().supports(parsed):
        reason = f"measure {name!r} needs a provider of ir_measures that is not installed"
        raise BenchError(reason, LISTING)
    return Measure(str(parsed), parsed.NAME, params.get("cutoff", NO_CUTOFF), native=False)


def providers() -> Any:
    """Return the ir_measures providers that compute the other measures.

    gdeval is left out: its Perl scripts fail in an installed package, and they round.
    """
    import ir_measures

    usable = [
        provider for provider in ir_measures.DefaultPipeline.providers if provider.NAME != "gdeval"
    ]
    return ir_measures.providers.FallbackProvider(usable)


def list_measures() -> Mapping[str, str]:
    """Return name and title of every available measure, native ones first."""
    import ir_measures

    known = {
        registered.NAME: registered.PRETTY_NAME
        for registered in ir_measures.measures.registry.values()
    }
    native = {f"{kind}@k": known.pop(kind) for kind in _NATIVE}
    others = {name: title for name, title in sorted(known.items()) if _is_available(name)}
    return {**native, **others}


def _is_available(kind: str) -> bool:
    """Return True if a provider is installed for the measure with or without a cutoff."""
    for name in (f"{kind}@10", kind):
        with suppress(BenchError):
            parse_measure(name)
            return True
    return False


def _is_plain(params: Mapping[str, object]) -> bool:
    """Return True if the parameters are implemented here."""
    rel = params.get("rel", 1)
    settings = {key: value for key, value in params.items() if key not in ("cutoff", "rel")}
    defaults = {"judged_only": False, "dcg": "log2"}
    return isinstance(rel, int) and rel >= 1 and settings.items() <= defaults.items()


def _suggestion(name: str) -> str:
    """Suggest similar names with the same parameters."""
    import ir_measures

    kinds = {alias.lower(): kind.NAME for alias, kind in ir_measures.measures.registry.items()}
    stem = name.replace("(", "@").split("@")[0]
    close = [stem.lower()] if stem.lower() in kinds else closest_names(stem, kinds)[:2]
    rest = name[len(stem) :] or "@10"
    meant = [kinds[alias] + rest for alias in close if kinds[alias] + rest != name]
    return f"Did you mean {' or '.join(meant)}? {LISTING}" if meant else LISTING


def _binary(grades: Int64Array, rel: int) -> Float64Array:
    return (grades >= rel).astype(np.float64)


def _linear(grades: Int64Array, rel: int) -> Float64Array:
    return np.maximum(grades, 0).astype(np.float64)


def _no_discount(ranks: Int64Array) -> Float64Array:
    return np.ones(ranks.shape)


# As in trec_eval, gains are linear, grades below 1 gain nothing, and a query without relevant
# documents or without results scores 0. Recall counts all relevant documents, and precision divides
# by the cutoff, even with fewer documents. nDCG is that of Järvelin and Kekäläinen (2002), with the
# ideal over all judgements.
DEFINITIONS: Mapping[str, Definition] = {
    "nDCG": Definition(_linear, lambda ranks: np.log2(ranks + 1.0), "ideal"),
    "R": Definition(_binary, _no_discount, "relevant"),
    "P": Definition(_binary, _no_discount, "cutoff"),
    "RR": Definition(_binary, lambda ranks: np.asarray(ranks, dtype=np.float64), "first"),
    "Success": Definition(_binary, _no_discount, "first"),
}


def _sum_by_query(
    judged: JudgedRun, queries: Int64Array, weights: Float64Array | None = None
) -> Float64Array:
    """Sum the weights of rows, 1 by default, by the query of each row."""
    return np.bincount(queries, weights, len(judged.retrieved)).astype(np.float64)


def _relevant(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Count the relevant documents of each query, retrieved or not."""
    return _sum_by_query(judged, judged.judged_query[judged.judged_grade >= measure.rel])


def _ratio(numerator: Float64Array, denominator: Float64Array) -> Float64Array:
    """Divide two arrays, with 0 for a denominator of 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def position_in_group(groups: Int64Array) -> Int64Array:
    """Return the position of each row within its run of equal values in sorted ``groups``."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _add_up(
    definition: Definition,
    measure: Measure,
    queries: Int64Array,
    ranks: Int64Array,
    grades: Int64Array,
    judged: JudgedRun,
) -> Float64Array:
    """Return the sum of discounted gains of each query, or the largest if the first one counts."""
    gains = definition.gain(grades, measure.rel)
    gaining = (gains > 0) & (ranks < measure.cutoff)
    gains = gains[gaining] / definition.discount(ranks[gaining] + 1)
    if definition.normaliser != "first":
        return _sum_by_query(judged, queries[gaining], gains)
    largest = np.zeros(len(judged.retrieved))
    np.maximum.at(largest, queries[gaining], gains)
    return largest


def _score_by_definition(measure: Measure, judged: JudgedRun) -> Float64Array:
    definition = DEFINITIONS[measure.kind]
    hits = (judged.hit_query, judged.hit_rank, judged.hit_grade)
    total = _add_up(definition, measure, *hits, judged)
    if definition.normaliser == "ideal":
        ideal_ranks = position_in_group(judged.judged_query)
        best = (judged.judged_query, ideal_ranks, judged.judged_grade)
        return _ratio(total, _add_up(definition, measure, *best, judged))
    if definition.normaliser == "relevant":
        return _ratio(total, _relevant(measure, judged))
    return total / measure.cutoff if definition.normaliser == "cutoff" else total


def _relevant_hits(measure: Measure, judged: JudgedRun) -> BoolArray:
    return (judged.hit_grade >= measure.rel) & (judged.hit_rank < measure.cutoff)


def _average_precision(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Compute the sum of precisions at relevant documents over *all* relevant documents."""
    hits = _relevant_hits(measure, judged)
    queries, ranks = judged.hit_query[hits], judged.hit_rank[hits]
    precisions = (position_in_group(queries) + 1) / (ranks + 1)
    return _ratio(_sum_by_query(judged, queries, precisions), _relevant(measure, judged))


def _judged(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Compute the share of retrieved documents, up to the cutoff, that have a judgement."""
    counts = _sum_by_query(judged, judged.hit_query[judged.hit_rank < measure.cutoff])
    depth = np.minimum(judged.retrieved, measure.cutoff)
    return _ratio(counts, depth.astype(np.float64))


_NATIVE: Mapping[str, Callable[[Measure, JudgedRun], Float64Array]] = {
    "nDCG": _score_by_definition,
    "R": _score_by_definition,
    "P": _score_by_definition,
    "RR": _score_by_definition,
    "AP": _average_precision,
    "Success": _score_by_definition,
    "Judged": _judged,
}


@dataclass(frozen=True)
class Scores:
    """Unrounded values of measures for each query of the qrels.

    Attributes:
        query_ids: q ids in the order of the qrels.
        values: float64 ``(q,)`` by canonical name of the measure.
        unanswered: number of queries without any document in the run; they score 0.
        ignored: number of queries of the run without judgements; they do not count.
    """

    query_ids: tuple[str, ...]
    values: Mapping[str, Float64Array]
    unanswered: int
    ignored: int

    def by_query(self, measure: str) -> dict[str, float]:
        """Return the value of ``measure``, a canonical name, by query id."""
        return dict(zip(self.query_ids, self.values[measure].tolist(), strict=True))

    def mean(self, measure: str) -> float:
        """Return the mean of ``measure`` over all queries of the qrels."""
        return float(np.mean(self.values[parse_measure(measure).name]))


def score(
    run: Run, qrels: Qrels, measures: Sequence[str], queries: Sequence[str] | None = None
) -> Scores:
    """Score a run with several measures.

    Documents rank in the order of the run, so that measures never break ties.

    Args:
        run: documents in canonical order.
        qrels: judgements.
        measures: names such as ``nDCG@10`` or ``AP(rel=2)``.
        queries: ids of the queries in the denominator, if there are more than in the qrels.

    Raises:
        BenchError: an unknown measure, no queries, judgements of a query that is not in
            ``queries``, or one pair judged twice with different grades.
    """
    parsed = [parse_measure(name) for name in measures]
    table = _match_qrels(run, qrels, queries)
    native = {each.name: _NATIVE[each.kind](each, table.judged) for each in parsed if each.native}
    others = [measure for measure in parsed if not measure.native]
    provided = _score_with_providers(run, qrels, table.query_ids, others) if others else {}
    by_name = {measure.name: {**native, **provided}[measure.name] for measure in parsed}
    unanswered = int(np.count_nonzero(table.judged.retrieved == 0))
    return Scores(table.query_ids, by_name, unanswered, table.ignored)


def tie_bounds(
    run: Run, qrels: Qrels, measure: str, queries: Sequence[str] | None = None
) -> tuple[float, float]:
    """Return the lowest and highest mean over all orders of documents with equal scores.

    All native measures rise, or stay, when a document of a higher grade moves up, so the bounds are
    the values with the grades of each tie in rising and in falling order. Arguments are those of
    `score`, with one native ``measure``.
    """
    parsed = parse_measure(measure)
    table = _match_qrels(run, qrels, queries)
    first, last = _find_tie_ends(run, table.hit_rows)
    orders = _break_ties(table, last, -1), _break_ties(table, first, 1)
    low, high = (float(np.mean(_NATIVE[parsed.kind](parsed, order))) for order in orders)
    return low, high


def relevance_matrix(
    run: Run, qrels: Qrels, rel: int, queries: Sequence[str] | None = None
) -> tuple[Float32Array, BoolArray]:
    """Return the score of each ranked document, and whether its grade is at least ``rel``.

    Both are ``(queries, longest ranking)``, with the queries of `score`. Beyond the end of a
    ranking there are -inf and False.
    """
    table = _match_qrels(run, qrels, queries)
    number = {query_id: place for place, query_id in enumerate(table.query_ids)}
    relevant = np.zeros(len(run), dtype=bool)
    relevant[table.hit_rows[table.judged.hit_grade >= rel]] = True
    shape = len(table.query_ids), int(table.judged.retrieved.max())
    matrices = np.full(shape, -np.inf, dtype=np.float32), np.zeros(shape, dtype=bool)
    for query_id, (start, end) in zip(run.query_ids, pairwise(run.offsets.tolist()), strict=True):
        if query_id in number:
            for matrix, column in zip(matrices, (run.scores, relevant), strict=True):
                matrix[number[query_id], : end - start] = column[start:end]
    return matrices


class _MatchedRun(NamedTuple):
    """A run matched with qrels. ``hit_rows`` are the rows of the run behind ``judged.hit_*``."""

    query_ids: tuple[str, ...]
    judged: JudgedRun
    hit_rows: Int64Array
    ignored: int


class _EncodedJudgements(NamedTuple):
    """Distinct judgements as numbers: ``keys`` = query number * len(doc_ids) + document number."""

    doc_ids: pa.LargeStringArray
    keys: Int64Array
    grades: Int64Array


def _match_qrels(run: Run, qrels: Qrels, queries: Sequence[str] | None) -> _MatchedRun:
    """Find the judged documents of a run, without a Python loop over documents."""
    judged_ids = qrels.queries()
    query_ids = judged_ids if queries is None else tuple(dict.fromkeys(queries))
    if not query_ids:
        raise BenchError("there are no queries to score, because the qrels are empty")
    if strays := set(judged_ids) - set(query_ids):
        raise BenchError(f"query {min(strays)!r} has judgements, but is not among the queries")
    numbers = {query_id: number for number, query_id in enumerate(query_ids)}
    judgements = _encode_judgements(qrels, numbers)
    run_numbers = np.array(
        [numbers.get(query_id, -1) for query_id in run.query_ids], dtype=np.int64
    )
    rows, grades = _find_judged_rows(run, judgements, run_numbers)
    places = np.searchsorted(run.offsets, rows, side="right") - 1
    by_query = np.lexsort((rows, run_numbers[places]))
    rows, grades, places = rows[by_query], grades[by_query], places[by_query]
    retrieved = np.zeros(len(query_ids), dtype=np.int64)
    retrieved[run_numbers[run_numbers >= 0]] = np.diff(run.offsets)[run_numbers >= 0]
    judged_query = judgements.keys // len(judgements.doc_ids)
    by_grade = np.lexsort((-judgements.grades, judged_query))
    judged = JudgedRun(
        retrieved=retrieved,
        hit_query=run_numbers[places],
        hit_rank=rows - run.offsets[places],
        hit_grade=grades,
        judged_query=judged_query[by_grade],
        judged_grade=judgements.grades[by_grade],
    )
    return _MatchedRun(query_ids, judged, rows, int(np.count_nonzero(run_numbers < 0)))


def _encode_judgements(qrels: Qrels, numbers: Mapping[str, int]) -> _EncodedJudgements:
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
        raise BenchError(
            f"{pair} is judged twice with different grades", "Delete one of the lines."
        )
    first = np.concatenate([[True], ~repeated])[: len(keys)]
    return _EncodedJudgements(documents.dictionary, keys[first], grades[first])


def _find_judged_rows(
    run: Run, judgements: _EncodedJudgements, run_numbers: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the rows of the run that have a judgement, and their grades."""
    codes = find_strings(run.ids, judgements.doc_ids)
    rows = np.flatnonzero((codes >= 0)[run.documents])
    queries = run_numbers[np.searchsorted(run.offsets, rows, side="right") - 1]
    rows, queries = rows[queries >= 0], queries[queries >= 0]
    keys = queries * len(judgements.doc_ids) + codes[run.documents[rows]]
    positions = np.searchsorted(judgements.keys, keys)
    positions[positions == len(judgements.keys)] = 0
    judged = judgements.keys[positions] == keys
    return rows[judged], judgements.grades[positions[judged]]


def _score_with_providers(
    run: Run, qrels: Qrels, query_ids: Sequence[str], measures: Sequence[Measure]
) -> dict[str, Float64Array]:
    """Compute measures with ir_measures, on scores without ties: the depth minus the rank."""
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
        problem = f"ir_measures cannot compute {names} of this run: {error!r}"
        raise BenchError(problem, "Choose a different measure with --measure.") from error
    if failed := [name for name, scores in result.items() if not np.isfinite(scores).all()]:
        problem = f"{', '.join(failed)} of this run is not a number for some queries"
        raise BenchError(problem, "Choose a different measure with --measure.")
    return result


def _grades_by_query(qrels: Qrels) -> dict[str, dict[str, int]]:
    grades = qrels.by_query
    for query_id, judged in grades.items():
        if max(judged.values()) < 0:
            # trec_eval reads invalid memory when all grades of a query are negative.
            grades[query_id] = dict.fromkeys(judged, 0)
    return grades


def _find_tie_ends(run: Run, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the first and last row of the tie that each of the rows belongs to."""
    starts_tie = np.ones(len(run), dtype=bool)
    starts_tie[1:] = run.scores[1:] != run.scores[:-1]
    starts_tie[run.offsets[:-1][np.diff(run.offsets) > 0]] = True
    starts = np.append(np.flatnonzero(starts_tie), len(run))
    tie = np.searchsorted(starts, rows, side="right") - 1
    return starts[tie], starts[tie + 1] - 1


def _break_ties(table: _MatchedRun, ends: Int64Array, step: int) -> JudgedRun:
    """Move the judged documents of each tie to its end, the highest grade outermost.

    ``ends`` is the first row of each hit's tie with ``step`` 1, or the last row with -1.
    """
    judged = table.judged
    by_grade = np.lexsort((-judged.hit_grade, ends))
    moved = ends[by_grade] + step * position_in_group(ends[by_grade])
    ranks = (judged.hit_rank - table.hit_rows)[by_grade] + moved
    queries, grades = judged.hit_query[by_grade], judged.hit_grade[by_grade]
    by_rank = np.lexsort((ranks, queries))
    return replace(
        judged, hit_query=queries[by_rank], hit_rank=ranks[by_rank], hit_grade=grades[by_rank]
    )
