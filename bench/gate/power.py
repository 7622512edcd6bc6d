"""What a check could see, before anything is encoded: the minimum detectable effect.

It needs the standard deviation of the differences, which nobody knows yet. Pairs of stored results
of the same kind are the best source: sibling checkpoints differ far less than different models.
Without any, a pessimistic constant stands in, and is named.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import NormalDist

import numpy as np

from bench.compare.panels import protocol_differences
from bench.compare.statistics import ALPHA, POWER
from bench.gate.skew import allowance
from bench.results.find import Stored
from bench.results.record import Result
from foundation.records import Record

# Measured, RR@10 of the embedded collection: minilm with 31 and with 32 tokens 0.10; bm25 and
# hashing 0.36; minilm and bm25 0.50. Twice the first, and a little more than the last.
PESSIMISTIC = {"siblings": 0.2, "different models": 0.6}
MOST_PAIRS = 20
MEAN = "mean"
_BOTH = NormalDist().inv_cdf(1 - ALPHA / 2) + NormalDist().inv_cdf(POWER)


class Foreseen(Record):
    """What a check of one collection, or of the mean, could see.

    Attributes:
        deviation: standard deviation of the differences; None for the mean.
        source: where it comes from.
        detectable: loss that is found, at 5 % two-sided, 80 times in 100; with what the gate allows
            for gains that a sample misses.
    """

    name: str
    queries: int
    deviation: float | None
    source: str
    detectable: float


def kind_of(a: Result, b: Result) -> str:
    """Siblings make vectors of one form with one architecture; others are different models."""
    recipes = (a.recipe, b.recipe)
    forms = [(r.kind, r.dim, r.pooling, r.similarity) if r else None for r in recipes]
    return "siblings" if forms[0] and forms[0] == forms[1] else "different models"


def foresee(
    kind: str,
    baselines: Mapping[str, Stored],
    known: Sequence[Stored],
    weights: Mapping[str, float],
    measure: str | None = None,
) -> tuple[Foreseen, ...]:
    """For each collection and then for the mean, where there will be one.

    Args:
        kind: of candidate and baseline, see `kind_of`.
        baselines: stored results by collection.
        known: stored results of any model, from which pairs are taken.
        weights: of the collections in the mean.
        measure: instead of the main one of each collection.
    """
    asked = {name: measure or one.result.main_measure for name, one in baselines.items()}
    rows = [_on(kind, baselines[name], known, asked[name]) for name in weights if name in asked]
    measures = {asked[row.name] for row in rows}
    if len(rows) < max(2, len(weights)) or len(measures) > 1:
        return tuple(rows)
    unseen = allowance([row.queries for row in rows], [weights[row.name] for row in rows])
    alone = [weights[row.name] * (row.detectable - allowance([row.queries])) for row in rows]
    error = math.hypot(*alone) + unseen
    mean = Foreseen(MEAN, sum(row.queries for row in rows), None, "its collections", error)
    return (*rows, mean)


def _on(kind: str, baseline: Stored, known: Sequence[Stored], measure: str) -> Foreseen:
    queries = baseline.result.queries
    found = _deviations(kind, baseline, known, measure)
    if found:
        pairs = "1 stored pair" if len(found) == 1 else f"the largest of {len(found)} stored pairs"
        deviation, source = max(found), f"{pairs} ({kind})"
    else:
        deviation, source = PESSIMISTIC[kind], f"a pessimistic constant ({kind})"
    effect = _BOTH * deviation / math.sqrt(queries) + allowance([queries])
    return Foreseen(baseline.collection, queries, deviation, source, effect)


def _deviations(kind: str, baseline: Stored, known: Sequence[Stored], measure: str) -> list[float]:
    """Of the differences of stored pairs of a kind, under the baseline's protocol."""
    protocol = baseline.result.protocol
    usable = [
        one
        for one in known
        if one.collection == baseline.collection
        and measure in one.result.measures
        and not protocol_differences(one.result.protocol, protocol)
    ]
    pairs = [pair for pair in combinations(usable, 2) if _is_pair(kind, *pair)]
    return [_deviation(a, b, measure) for a, b in pairs[:MOST_PAIRS]]


def _is_pair(kind: str, a: Stored, b: Stored) -> bool:
    return a.result.key != b.result.key and kind_of(a.result, b.result) == kind


def _deviation(a: Stored, b: Stored, measure: str) -> float:
    values = [
        dict(zip(ids, by[measure].tolist(), strict=True)) for ids, by in (a.scores(), b.scores())
    ]
    common = sorted(set(values[0]) & set(values[1]))
    return float(np.std([values[0][query] - values[1][query] for query in common]))
