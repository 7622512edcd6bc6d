"""Minimum detectable effect of a check, stated before anything is encoded.

It depends on the standard deviation of the differences, which is not known yet. The best estimate
comes from stored results of other models compared with the same baseline, if they are of the same
kind as the candidate: sibling checkpoints differ far less than different models. No single stored
result may determine the estimate, since a copy of the baseline would promise everything and a
broken checkpoint nothing. Both are left out, and the median of the rest is used. Without any, a
pessimistic constant stands in.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bench.comparing.pairs import differing_fields
from bench.comparing.statistics import FEW, SAME_SCORE, detectable_effect
from bench.gate.skew import unseen_allowance
from bench.result_store.result import Evaluation, Result
from foundation.arrays import Float64Array
from foundation.printable import format_names
from foundation.records import Record

# Measured, RR@10 of the embedded collection: minilm with 31 and with 32 tokens 0.10; bm25 and
# hashing 0.36; minilm and bm25 0.50. Twice the first, and a little more than the last.
PESSIMISTIC = {"siblings": 0.2, "different models": 0.6}
MOST_PAIRS = 20
MEAN = "mean"


class DetectableEffect(Record):
    """Minimum detectable effect on one collection, or in the mean.

    Attributes:
        name: name of the collection, or "mean".
        queries: number of queries.
        deviation: standard deviation of the differences; None for the mean.
        source: origin of the deviation, for people.
        detectable: loss found by the t test with a power of 80 % at the 5 % level, two-sided,
            including the gate's allowance for gains missing from the sample. The gate assumes less
            and has a power of 69 to 84 % on real pairs, see `tests/benchmarks/gate_simulation.py`.
    """

    name: str
    queries: int
    deviation: float | None
    source: str
    detectable: float


def relation_between(a: Result, b: Result) -> str:
    """Return "siblings" if results ``a`` and ``b`` are of one architecture and form of vectors.

    Otherwise they are "different models".
    """
    recipes = (a.recipe, b.recipe)
    forms = [(r.kind, r.dim, r.pooling, r.similarity) if r else None for r in recipes]
    return "siblings" if forms[0] and forms[0] == forms[1] else "different models"


def detectable_effects(
    kind: str,
    baselines: Mapping[str, Evaluation],
    known: Sequence[Evaluation],
    weights: Mapping[str, float],
    measure: str | None = None,
    floor: float = 0.1,
) -> tuple[DetectableEffect, ...]:
    """Estimate the minimum detectable effect on each collection, and then in the mean.

    Args:
        kind: relation of candidate and baseline, see `relation_between`.
        baselines: the baseline's stored results by collection.
        known: stored results of any model, which are paired with the baseline's.
        weights: weight of each collection in the mean.
        measure: used instead of the main one of each collection.
        floor: pairs whose means are further apart are not used, since the floor decides on those.
    """
    measures = {name: measure or one.result.main_measure for name, one in baselines.items()}
    effects = [
        _effect_on(kind, baselines[name], known, measures[name], floor)
        for name in weights
        if name in measures
    ]
    if len(effects) < max(2, len(weights)) or len({measures[e.name] for e in effects}) > 1:
        return tuple(effects)
    queries = [effect.queries for effect in effects]
    unseen = unseen_allowance(queries, [weights[effect.name] for effect in effects])
    scaled = [weights[e.name] * (e.detectable - unseen_allowance([e.queries])) for e in effects]
    mean = math.hypot(*scaled) + unseen
    return (*effects, DetectableEffect(MEAN, sum(queries), None, "its collections", mean))


def _effect_on(
    kind: str, baseline: Evaluation, known: Sequence[Evaluation], measure: str, floor: float
) -> DetectableEffect:
    queries = baseline.result.queries
    deviation, source = _expected_deviation(kind, baseline, known, measure, floor)
    error = deviation / math.sqrt(queries)
    effect = detectable_effect(error, max(1, queries - 1)) + unseen_allowance([queries])
    return DetectableEffect(baseline.collection, queries, deviation, source, effect)


NamedDifferences = tuple[str, Float64Array]  # name of a model, differences


def _expected_deviation(
    kind: str, baseline: Evaluation, known: Sequence[Evaluation], measure: str, floor: float
) -> tuple[float, str]:
    """Return the standard deviation of the differences to expect, and its origin."""
    pairs = _paired_with_baseline(kind, baseline, known, measure)
    reasons = [_reason_unusable(differences, floor) for _, differences in pairs]
    usable = [pair for pair, reason in zip(pairs, reasons, strict=True) if not reason]
    left_out = [f"{pair[0]} ({why})" for pair, why in zip(pairs, reasons, strict=True) if why]
    note = f"; left out: {format_names(left_out)}" if left_out else ""
    if not usable:
        return PESSIMISTIC[kind], f"a pessimistic constant ({kind}){note}"
    deviation = float(np.median([differences.std(ddof=1) for _, differences in usable]))
    number = "1 stored pair" if len(usable) == 1 else f"the median of {len(usable)} stored pairs"
    names = format_names([model for model, _ in usable])
    return deviation, f"{number} ({kind}): {baseline.result.model} with {names}{note}"


def _reason_unusable(differences: Float64Array, floor: float) -> str:
    """Return the reason why a pair is not informative, or "" if it is."""
    if np.count_nonzero(np.abs(differences) > SAME_SCORE) < FEW:
        return f"fewer than {FEW} queries differ"
    distance = abs(float(differences.mean()))
    return f"means differ by {distance:.4f}, more than the floor" if distance > floor else ""


def _paired_with_baseline(
    kind: str, baseline: Evaluation, known: Sequence[Evaluation], measure: str
) -> list[NamedDifferences]:
    """Return differences from the baseline of the newest stored results of the same kind."""
    if measure not in baseline.result.measures:
        return []
    results = {
        other.result.key: other
        for other in sorted(known, key=lambda stored: stored.result.conditions.time)
        if other.collection == baseline.collection
        and other.result.key != baseline.result.key
        and measure in other.result.measures
        and relation_between(other.result, baseline.result) == kind
        and not differing_fields(other.result.protocol, baseline.result.protocol)
    }
    values = baseline.scores.by_query(measure)
    pairs = []
    for other in list(results.values())[::-1][:MOST_PAIRS]:
        other_scores = other.scores.by_query(measure)
        common = sorted(other_scores.keys() & values.keys())
        differences = np.array([other_scores[query] - values[query] for query in common])
        pairs.append((other.result.model, differences))
    return pairs
