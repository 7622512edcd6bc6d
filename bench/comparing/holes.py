"""Unjudged documents of two rankings: whether their labels could change which model is better.

A *hole* is a document without a judgement within the measured depth of either ranking. Exact copies
of a text share one label, in both rankings, and a copy of a judged document has its grade. The
range of the difference over all labels of the holes is exact. Documents that neither model
retrieved are not considered: a relevant one lowers both scores by the same factor.

Gains are linear, so a score is a sum over the levels of relevance ("at least grade 1", "at least
grade 2"), and so is the ideal of nDCG, which depends on the number of documents at each level only.
See Carterette, Allan and Sitaraman (Minimal test collections for retrieval evaluation, SIGIR 2006).
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np

from bench.evaluation.runs import Run
from bench.evaluation.scoring import Measure, parse_measure
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import Float64Array, Int64Array
from foundation.errors import BenchError

BOUNDED = ("nDCG", "RR", "R", "P", "Success")
FIRST = ("RR", "Success")  # decided by the first relevant document
STATES = 1_000_000  # numbers of relevant documents of one query that are enumerated
BEYOND = 1 << 30  # rank of a document that was not retrieved
A_ONLY, B_ONLY, BOTH = range(3)  # which of the rankings retrieved a document


@dataclass(frozen=True)
class Traits:
    """Features of n documents within the measured depth of two rankings.

    Attributes:
        side: int64 ``(n,)``, `A_ONLY`, `B_ONLY` or `BOTH`.
        rank: int64 ``(n,)``, best rank from 1.
        score: float64 ``(n,)``, standardised score within the depth, averaged over rankings.
        other_rank: int64 ``(n,)``, worst rank in the complete rankings, or beyond their end.
    """

    side: Int64Array
    rank: Int64Array
    score: Float64Array
    other_rank: Int64Array

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, float, int]]) -> "Traits":
        """Return the traits of documents, each ``(side, rank, score, other_rank)``."""
        side, rank, score, other_rank = np.array(rows, dtype=np.float64).reshape(-1, 4).T
        return cls(side.astype(np.int64), rank.astype(np.int64), score, other_rank.astype(np.int64))


@dataclass(frozen=True)
class HoleTable:
    """Holes of two rankings on one collection, by query, and what judged documents contribute.

    There are q queries and u holes. A hole is one or more copies of a text. Scores of the rankings
    are in the order a, b.

    Attributes:
        measure: measure of the scores.
        query_ids: ids of the queries.
        levels: int64 ``(l,)``, rising grades that gain.
        base: float64 ``(2, q)``, gain of judged documents; for RR and Success, the score.
        judged: int64 ``(l, q)``, number of judged documents of at least each level.
        query: int64 ``(u,)``, row of each hole's query, rising.
        documents: ids of the copies of each hole.
        size: int64 ``(u,)``, number of copies.
        weight: float64 ``(2, u)``, discount of a hole summed over copies; for RR and Success, the
            score if it is the first relevant document.
        traits: facts of the holes, from which relevance is estimated.
        known, known_grades: the same of judged documents in the measured depth, and their grades.
        shares: share of the documents within the measured depth of a, and of b, that are judged.
    """

    measure: Measure
    query_ids: tuple[str, ...]
    levels: Int64Array
    base: Float64Array
    judged: Int64Array
    query: Int64Array
    documents: Sequence[tuple[str, ...]]
    size: Int64Array
    weight: Float64Array
    traits: Traits
    known: Traits
    known_grades: Int64Array
    shares: tuple[float, float]

    @cached_property
    def gains(self) -> Float64Array:
        """Gain of each level over the one below, float64 ``(l,)``."""
        if self.measure.kind != "nDCG":
            return np.ones(len(self.levels))
        return np.diff(self.levels, prepend=0).astype(np.float64)

    @cached_property
    def ideal(self) -> Float64Array:
        """Best possible gain of 0, 1, ... documents at a level, the denominator of a score."""
        most = int(self.judged.max(initial=0) + self.size.sum()) + 1
        if self.measure.kind == "nDCG":
            places = np.arange(min(self.measure.cutoff, most))
            return np.concatenate([[0.0], np.cumsum(1 / np.log2(places + 2))])
        if self.measure.kind == "P":
            return np.full(1, float(self.measure.cutoff))
        return np.arange(most + 1.0)

    def ideal_of(self, counts: Int64Array) -> Float64Array:
        """Return the best possible gain of ``counts`` documents at a level."""
        return np.asarray(self.ideal[np.minimum(counts, len(self.ideal) - 1)])

    def scores(self, labels: Int64Array) -> Float64Array:
        """Return both scores of every query, float64 ``(2, s, q)``, for ``(s, u)`` grades."""
        if self.measure.kind in FIRST:
            relevant = labels >= self.levels[0]
            return np.stack(
                [
                    np.maximum(base, self._by_query(relevant * weight, np.maximum))
                    for base, weight in zip(self.base, self.weight, strict=True)
                ]
            )
        gain = np.repeat(self.base[:, None], len(labels), axis=1)
        best = np.zeros((len(labels), len(self.query_ids)))
        for level, weight, judged in zip(self.levels, self.gains, self.judged, strict=True):
            reached = labels >= level
            gain += weight * self._by_query(reached * self.weight[:, None], np.add)
            best += weight * self.ideal_of(judged + self._by_query(reached * self.size, np.add))
        return np.divide(gain, best, out=np.zeros_like(gain), where=best > 0)

    def differences(self, labels: Int64Array) -> Float64Array:
        """Return a minus b for every query, float64 ``(s, q)``, for ``(s, u)`` grades."""
        a, b = self.scores(labels)
        return np.asarray(a - b)

    def _by_query(self, values: Float64Array, combine: np.ufunc) -> Float64Array:
        """Combine the values of each query's holes, 0 for a query without holes."""
        queries, starts = np.unique(self.query, return_index=True)
        total = np.zeros((*values.shape[:-1], len(self.query_ids)), values.dtype)
        if len(queries):
            total[..., queries] = combine.reduceat(values, starts, axis=-1)
        return total

    def bounds(self) -> tuple[Float64Array, Float64Array, bool]:
        """Return the lowest and highest difference of every query over all labels of its holes.

        Returns:
            Two arrays, float64 ``(q,)``, and whether they are exact, not only outer bounds.
        """
        if self.measure.kind in FIRST:  # one more relevant document cannot help only one side
            base = self.base[0] - self.base[1]
            one = np.maximum(self.base[:, self.query], self.weight)
            gain = one[0] - one[1]
            high = self._by_query(gain - base[self.query], np.maximum)
            low = self._by_query(gain - base[self.query], np.minimum)
            return base + np.minimum(low, 0), base + np.maximum(high, 0), True
        found = [self._query_bounds(row) for row in range(len(self.query_ids))]
        ends = np.array([each[:2] for each in found])
        return ends[:, 0], ends[:, 1], all(exact for *_, exact in found)

    def _query_bounds(self, row: int) -> tuple[float, float, bool]:
        first, last = np.searchsorted(self.query, [row, row + 1])
        weight, size = self.weight[0] - self.weight[1], self.size[first:last]
        weight, base = weight[first:last], float(self.base[0, row] - self.base[1, row])
        kinds, counts = np.unique(size, return_counts=True)
        exact = bool(np.prod(counts + 1.0) <= STATES)
        if not exact:  # each copy with a label of its own
            weight, size = np.repeat(weight / size, size), np.ones(size.sum(), dtype=np.int64)
            kinds = np.ones(1, dtype=np.int64)
        best = [
            self._largest(row, sign * base, [sign * weight[size == kind] for kind in kinds], kinds)
            for sign in (-1, 1)
        ]
        return -best[0], best[1], exact

    def _largest(
        self, row: int, base: float, weights: Sequence[Float64Array], sizes: Int64Array
    ) -> float:
        """Return the largest difference of one query over all labels.

        Holes of one size change the ideal alike, so of any number of them at a level those with the
        largest weights are best. The ratio is maximised over these numbers, which do not grow with
        the level, by Dinkelbach's method (1967).
        """
        gain, count = np.zeros(()), np.zeros((), dtype=np.int64)
        for weight, size in zip(weights, sizes, strict=True):
            chosen = np.concatenate([[0.0], np.cumsum(-np.sort(-weight))])
            gain = gain[..., None] + chosen
            count = count[..., None] + size * np.arange(len(chosen))
        ideals = [self.ideal_of(judged + count) for judged in self.judged[:, row]]
        known = float(np.dot(self.gains, [ideal.min() for ideal in ideals]))
        ratio = base / known if known else -2.0
        while True:
            state = tuple(np.zeros(gain.shape) for _ in range(3))  # value, gain, ideal
            for weight, ideal in reversed(list(zip(self.gains, ideals, strict=True))):
                added = (gain - ratio * ideal, gain, ideal)
                state = _cumulative_maximum(*state)
                state = tuple(old + weight * new for old, new in zip(state, added, strict=True))
            value = np.where(state[2] > 0, state[0], -np.inf)  # without relevant documents: 0
            place = int(value.argmax())
            if base + value.flat[place] <= 1e-12:
                return ratio if known else max(ratio, 0.0)
            ratio = (base + state[1].flat[place]) / float(state[2].flat[place])


def _cumulative_maximum(values: Float64Array, *others: Float64Array) -> tuple[Float64Array, ...]:
    """Return running maxima of ``values`` over all axes, and the ``others`` at these places."""
    for axis in range(values.ndim):
        top = np.maximum.accumulate(values, axis)
        shape = [-1 if each == axis else 1 for each in range(values.ndim)]
        places = np.where(values == top, np.arange(values.shape[axis]).reshape(shape), 0)
        places = np.maximum.accumulate(places, axis)
        values, others = top, tuple(np.take_along_axis(one, places, axis) for one in others)
    return (values, *others)


def tabulate_holes(
    runs: tuple[Run, Run], qrels: Qrels, measure: str, keys: Mapping[str, str] | None = None
) -> HoleTable:
    """Find the holes of two rankings.

    Args:
        runs: both rankings, under one protocol.
        qrels: judgements.
        measure: name of a measure in `BOUNDED`.
        keys: for each document a key that exact copies share; None without their texts.

    Raises:
        BenchError: the range of the measure cannot be computed.
    """
    parsed, keys = parse_measure(measure), keys or {}
    if not parsed.native or parsed.kind not in BOUNDED:
        raise BenchError(
            f"there are no bounds of {parsed.name} over unknown labels",
            f"Choose {', '.join(BOUNDED)} with --measure, such as nDCG@10.",
        )
    levels = np.array([parsed.rel])
    if parsed.kind == "nDCG":
        levels = np.unique(qrels.grades[qrels.grades > 0]).astype(np.int64)
        levels = levels if len(levels) else np.ones(1, dtype=np.int64)
    gains = np.diff(levels, prepend=0) if parsed.kind == "nDCG" else np.ones(1)
    grades = _grades_by_query(qrels)
    base, judged = np.zeros((2, len(grades))), np.zeros((len(levels), len(grades)), np.int64)
    shares = np.zeros((2, len(grades)))
    holes: list[tuple[int, _Text]] = []
    known: list[tuple[int, _Text]] = []
    rankings = [_Rankings(run, parsed) for run in runs]
    for row, (query_id, own) in enumerate(grades.items()):
        measured = [each.documents_of(query_id) for each in rankings]
        shares[:, row] = [len(side & own.keys()) / max(1, len(side)) for side in measured]
        for doc_id in own.keys() - measured[0] - measured[1]:
            judged[:, row] += own[doc_id] >= levels
        by_key = {keys.get(doc_id, doc_id): grade for doc_id, grade in own.items()}
        for key, text in _find_texts(query_id, measured, rankings, keys).items():
            if key not in by_key:
                holes.append((row, text))
                continue
            reached = by_key[key] >= levels
            known.append((by_key[key], text))
            judged[:, row] += reached * len(text.documents)
            if parsed.kind in FIRST:
                base[:, row] = np.maximum(base[:, row], reached[0] * np.array(text.weights))
            else:
                base[:, row] += float(gains @ reached) * np.array(text.weights)
    return HoleTable(
        measure=parsed,
        query_ids=tuple(grades),
        levels=levels,
        base=base,
        judged=judged,
        query=np.array([row for row, _ in holes], dtype=np.int64),
        documents=[text.documents for _, text in holes],
        size=np.array([len(text.documents) for _, text in holes], dtype=np.int64),
        weight=np.array([text.weights for _, text in holes]).reshape(-1, 2).T,
        traits=Traits.of([text.traits for _, text in holes]),
        known=Traits.of([text.traits for _, text in known]),
        known_grades=np.array([grade for grade, _ in known], dtype=np.int64),
        shares=(float(shares[0].mean()), float(shares[1].mean())),
    )


def _grades_by_query(qrels: Qrels) -> dict[str, dict[str, int]]:
    """Return the grade of each judged document by query."""
    grades: dict[str, dict[str, int]] = {query_id: {} for query_id in qrels.queries()}
    for query_id, doc_id, grade in qrels:
        grades[query_id][doc_id] = grade
    return grades


class _Text(NamedTuple):
    """Documents of one query with the same text, within the measured depth of two rankings.

    ``weights`` are the discounts in both, and ``traits`` a row of `Traits`.
    """

    documents: tuple[str, ...]
    weights: tuple[float, float]
    traits: tuple[int, int, float, int]


def _find_texts(
    query_id: str,
    measured: Sequence[Set[str]],
    rankings: Sequence["_Rankings"],
    keys: Mapping[str, str],
) -> dict[str, _Text]:
    """Return the texts within the measured depth of either ranking, by key."""
    sides = [each.of(query_id) for each in rankings]
    copies: dict[str, list[str]] = {}
    for doc_id in dict.fromkeys(chain(*sides)):
        if doc_id in measured[0] or doc_id in measured[1]:
            copies.setdefault(keys.get(doc_id, doc_id), []).append(doc_id)
    texts = {}
    for key, documents in copies.items():
        within = [[d for d in documents if d in side] for side in measured]
        ranks = [[side[d][0] for d in listed] for side, listed in zip(sides, within, strict=True)]
        scores = [side[d][1] for side, listed in zip(sides, within, strict=True) for d in listed]
        worst = max(
            min((side[d][0] for d in documents if d in side), default=BEYOND) for side in sides
        )
        retrieved = BOTH if all(within) else B_ONLY if within[1] else A_ONLY
        weights = [each.discount(found) for each, found in zip(rankings, ranks, strict=True)]
        traits = (retrieved, min(chain(*ranks)), fmean(scores), worst)
        texts[key] = _Text(tuple(documents), (weights[0], weights[1]), traits)
    return texts


class _Rankings:
    """Rankings of a run by query, as a measure reads them."""

    def __init__(self, run: Run, measure: Measure) -> None:
        self.run, self.measure = run, measure
        self.rows = {query_id: row for row, query_id in enumerate(run.query_ids)}
        self.ids = run.ids.to_pylist()

    def of(self, query_id: str) -> dict[str, tuple[int, float]]:
        """Return rank from 1 and score, standardised within the cutoff, by document id."""
        if query_id not in self.rows:
            return {}
        start, end = self.run.offsets[self.rows[query_id] :][:2].tolist()
        scores = self.run.scores[start:end].astype(np.float64)
        top = scores[: self.measure.cutoff]
        z = (scores - top.mean()) / (top.std() or 1.0) if len(top) else scores
        documents = self.run.documents[start:end].tolist()
        return {
            self.ids[document]: (rank, value)
            for rank, (document, value) in enumerate(zip(documents, z.tolist(), strict=True), 1)
        }

    def documents_of(self, query_id: str) -> set[str]:
        """Return the ids of the documents within the measured depth."""
        ranked = self.of(query_id).items()
        return {doc_id for doc_id, (rank, _) in ranked if rank <= self.measure.cutoff}

    def discount(self, ranks: Sequence[int]) -> float:
        """Return what a document of grade 1 at each of the ``ranks`` adds to the score."""
        if self.measure.kind == "nDCG":
            return float(sum(1 / np.log2(rank + 1) for rank in ranks))
        if self.measure.kind == "RR":
            return 1 / min(ranks) if ranks else 0.0
        return float(min(len(ranks), 1) if self.measure.kind == "Success" else len(ranks))
