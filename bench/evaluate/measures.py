"""Measures: names as in ir_measures, values as in trec_eval.

The measures that everybody reports are computed here with NumPy, from nothing but the ranks at
which judged documents were found. All other names that ir_measures knows are left to it.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foundation.arrays import BoolArray, Float64Array, Int64Array
from foundation.errors import BenchError

if TYPE_CHECKING:
    import ir_measures


LISTING = "python -m bench list measures"
NO_CUTOFF = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Measure:
    """One measure.

    Attributes:
        name: canonical ir_measures name (``RR@10`` also for ``MRR@10``); the key everywhere.
        kind: the name without parameters.
        cutoff: only the first ``cutoff`` documents of a query count.
        rel: lowest grade that counts as relevant, for measures with binary relevance.
        native: computed here; otherwise by a provider of ir_measures.
    """

    name: str
    kind: str
    cutoff: int = NO_CUTOFF
    rel: int = 1
    native: bool = True


@dataclass(frozen=True)
class JudgedRun:
    """The ranks of a run's judged documents, which is all that the measures read of it.

    Queries are numbered 0 to ``queries`` - 1. Ranks start at 0.

    Attributes:
        queries: number of queries, q.
        retrieved: int64 ``(q,)``, documents in the run.
        hit_query, hit_rank, hit_grade: int64 ``(m,)``, the documents that are both retrieved and
            judged, by query, then rank.
        judged_query, judged_grade: int64 ``(j,)``, all judgements by query, then falling grade.
    """

    queries: int
    retrieved: Int64Array
    hit_query: Int64Array
    hit_rank: Int64Array
    hit_grade: Int64Array
    judged_query: Int64Array
    judged_grade: Int64Array


def parse_measure(name: str) -> Measure:
    """The measure of that name.

    Raises:
        BenchError: no such measure, a bad parameter, or none of the installed providers has it.
    """
    import ir_measures

    try:
        parsed = ir_measures.parse_measure(name)
        parsed.validate_params()
    except (ValueError, NameError, AssertionError) as error:
        raise BenchError(f"there is no measure {name!r}", _suggestion(name)) from error
    params = parsed.params
    if "cutoff" in params and (isinstance(params["cutoff"], bool) or params["cutoff"] < 1):
        raise BenchError(f"measure {name!r} has a cutoff below 1", f"see `{LISTING}`")
    if parsed.NAME in _NATIVE and _is_plain(params):
        cutoff, rel = params.get("cutoff", NO_CUTOFF), params.get("rel", 1)
        return Measure(str(parsed), parsed.NAME, cutoff, rel)
    if not providers().supports(parsed):
        reason = f"measure {name!r} needs a provider of ir_measures that is not installed"
        raise BenchError(reason, f"see `{LISTING}`")
    return Measure(str(parsed), parsed.NAME, params.get("cutoff", NO_CUTOFF), native=False)


def providers() -> "ir_measures.providers.FallbackProvider":
    """The providers of ir_measures that score the measures which are not native.

    Without gdeval: its Perl scripts fail in an installed package, and they round.
    """
    import ir_measures

    usable = [
        provider for provider in ir_measures.DefaultPipeline.providers if provider.NAME != "gdeval"
    ]
    return ir_measures.providers.FallbackProvider(usable)


def values(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Value of a native measure for each query: float64 ``(q,)``.

    As trec_eval: gains are linear; grades below 1 gain nothing; a query without relevant
    documents, or without results, scores 0.
    """
    return _NATIVE[measure.kind](measure, judged)


def measure_names() -> Mapping[str, str]:
    """Name and title of every measure that can be used here, the native ones first."""
    import ir_measures

    known = {
        registered.NAME: registered.PRETTY_NAME
        for registered in ir_measures.measures.registry.values()
    }
    native = {f"{kind}@k": known.pop(kind) for kind in _NATIVE}
    others = {name: title for name, title in sorted(known.items()) if _is_available(name)}
    return {**native, **others}


def _is_available(kind: str) -> bool:
    """True where a provider is installed, tried with a cutoff where the measure needs one."""
    for name in (f"{kind}@10", kind):
        try:
            parse_measure(name)
        except BenchError:
            continue
        return True
    return False


def _is_plain(params: Mapping[str, object]) -> bool:
    """True where the parameters are among those implemented here."""
    rel = params.get("rel", 1)
    settings = {key: value for key, value in params.items() if key not in ("cutoff", "rel")}
    defaults = {"judged_only": False, "dcg": "log2"}
    return isinstance(rel, int) and rel >= 1 and settings.items() <= defaults.items()


def _suggestion(name: str) -> str:
    """Names that look like the one asked for, with the parameters that were asked for."""
    import ir_measures

    kinds = {alias.lower(): kind.NAME for alias, kind in ir_measures.measures.registry.items()}
    stem = name.replace("(", "@").split("@")[0]
    exact = [stem.lower()] if stem.lower() in kinds else []
    close = exact or difflib.get_close_matches(stem.lower(), kinds, n=2)
    rest = name[len(stem) :] or "@10"
    meant = [kinds[alias] + rest for alias in close if kinds[alias] + rest != name]
    listing = f"see `{LISTING}`"
    return f"did you mean {' or '.join(meant)}? Or {listing}" if meant else listing


def _within(ranks: Int64Array, measure: Measure) -> BoolArray:
    return ranks < measure.cutoff


def _relevant_hits(measure: Measure, judged: JudgedRun) -> BoolArray:
    return (judged.hit_grade >= measure.rel) & _within(judged.hit_rank, measure)


def _count(queries: Int64Array, judged: JudgedRun) -> Float64Array:
    return np.bincount(queries, minlength=judged.queries).astype(np.float64)


def _total(queries: Int64Array, weights: Float64Array, judged: JudgedRun) -> Float64Array:
    sums = np.bincount(queries, weights=weights, minlength=judged.queries)
    return sums.astype(np.float64)


def _relevant(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Relevant documents of each query, found or not."""
    return _count(judged.judged_query[judged.judged_grade >= measure.rel], judged)


def _ratio(numerator: Float64Array, denominator: Float64Array) -> Float64Array:
    """Quotient, 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def position_in_group(groups: Int64Array) -> Int64Array:
    """Position of each row within its run of equal values; ``groups`` is sorted."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _dcg(
    queries: Int64Array, ranks: Int64Array, grades: Int64Array, measure: Measure, judged: JudgedRun
) -> Float64Array:
    gaining = (grades > 0) & _within(ranks, measure)
    gains = grades[gaining] / np.log2(ranks[gaining] + 2)
    return _total(queries[gaining], gains, judged)


def _ndcg(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Järvelin and Kekäläinen (2002) with linear gain; the ideal uses all judged documents."""
    dcg = _dcg(judged.hit_query, judged.hit_rank, judged.hit_grade, measure, judged)
    ideal_ranks = position_in_group(judged.judged_query)
    ideal = _dcg(judged.judged_query, ideal_ranks, judged.judged_grade, measure, judged)
    return _ratio(dcg, ideal)


def _recall(measure: Measure, judged: JudgedRun) -> Float64Array:
    counts = _count(judged.hit_query[_relevant_hits(measure, judged)], judged)
    return _ratio(counts, _relevant(measure, judged))


def _precision(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Divides by the cutoff even when fewer documents were retrieved, as trec_eval does."""
    counts = _count(judged.hit_query[_relevant_hits(measure, judged)], judged)
    return counts / measure.cutoff


def _reciprocal_rank(measure: Measure, judged: JudgedRun) -> Float64Array:
    hits = _relevant_hits(measure, judged)
    queries, first = np.unique(judged.hit_query[hits], return_index=True)
    result = np.zeros(judged.queries)
    result[queries] = 1.0 / (judged.hit_rank[hits][first] + 1)
    return result


def _average_precision(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Sum of the precisions at the relevant documents over *all* relevant documents."""
    hits = _relevant_hits(measure, judged)
    queries, ranks = judged.hit_query[hits], judged.hit_rank[hits]
    precisions = (position_in_group(queries) + 1) / (ranks + 1)
    return _ratio(_total(queries, precisions, judged), _relevant(measure, judged))


def _success(measure: Measure, judged: JudgedRun) -> Float64Array:
    counts = _count(judged.hit_query[_relevant_hits(measure, judged)], judged)
    return (counts > 0).astype(np.float64)


def _judged(measure: Measure, judged: JudgedRun) -> Float64Array:
    """Share of the retrieved documents, up to the cutoff, that have a judgement of any grade."""
    counts = _count(judged.hit_query[_within(judged.hit_rank, measure)], judged)
    depth = np.minimum(judged.retrieved, measure.cutoff)
    return _ratio(counts, depth.astype(np.float64))


_NATIVE: Mapping[str, Callable[[Measure, JudgedRun], Float64Array]] = {
    "nDCG": _ndcg,
    "R": _recall,
    "P": _precision,
    "RR": _reciprocal_rank,
    "AP": _average_precision,
    "Success": _success,
    "Judged": _judged,
}
