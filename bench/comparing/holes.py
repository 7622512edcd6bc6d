"""Unjudged documents of two rankings: whether their labels could change which model is better.

A *hole* is a document without a judgement within the measured depth of either ranking. Exact copies
of a text share one label, in both rankings, and a copy of a judged document has its grade. The
range of the difference over all labels of the holes is exact. Documents that neither model
retrieved are not considered: a relevant one lowers both scores by the same factor.

A score is a sum over the levels of relevance ("at least grade 1", "at least grade 2"), each with
the gain that it adds, and so is the ideal of nDCG, which depends on the number of documents at each
level only. Gains, discounts and normalisers are those of `bench.evaluation.scoring`.
See Carterette, Allan and Sitaraman (Minimal test collections for retrieval evaluation, SIGIR 2006).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.evaluation.runs import Run
from bench.evaluation.scoring import (
    DEFINITIONS,
    NO_CUTOFF,
    Definition,
    Measure,
    parse_measure,
)
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import BoolArray, Float64Array, Int64Array
from foundation.errors import BenchError

if TYPE_CHECKING:
    import pandas as pd

STATES = 1_000_000  # numbers of relevant documents of one query that are enumerated
BEYOND = 1 << 30  # rank of a document that was not retrieved
UNJUDGED = -1  # grade of a hole
SIDES = (0, 1)  # the first and the second ranking
BOTH = 2  # side of a text that both rankings have


@dataclass(frozen=True)
class HoleTable:
    """Texts within the measured depth of two rankings on one collection, by query.

    There are q queries, l levels and n texts, each of one or more documents. Of the texts, u are
    holes. Values of the two rankings are in the order a, b.

    Attributes:
        measure: measure of the scores.
        query_ids: ids of the queries.
        levels: int64 ``(l,)``, rising grades that gain.
        query: int64 ``(n,)``, row of each text's query, rising.
        documents: ids of the copies of each text.
        weight: float64 ``(2, n)``, 1 / discount summed over copies; for RR and Success, the score
            if it is the first relevant text.
        rank: int64 ``(2, n)``, best rank from 1 in the complete rankings, or `BEYOND`.
        grade: int64 ``(n,)``, at least 0, or `UNJUDGED`.
        imported: bool ``(n,)``, whether the grade is an imported judgement.
        outside: int64 ``(l, q)``, number of judged documents below the depth at each level.
        shares: share of the documents within the depth of a, and of b, that are judged.
        short: number of queries with fewer documents than the depth in a, and in b.
        relevant_only: whether at most a third of all judged documents are not relevant.
    """

    measure: Measure
    query_ids: tuple[str, ...]
    levels: Int64Array
    query: Int64Array
    documents: Sequence[tuple[str, ...]]
    weight: Float64Array
    rank: Int64Array
    grade: Int64Array
    imported: BoolArray
    outside: Int64Array
    shares: tuple[float, ...]
    short: tuple[int, ...]
    relevant_only: bool

    @property
    def definition(self) -> Definition:
        """Definition of the measure."""
        return DEFINITIONS[self.measure.kind]

    @property
    def first_counts(self) -> bool:
        """True for RR and Success: only the first relevant document counts."""
        return self.definition.normaliser == "first"

    @cached_property
    def holes(self) -> Int64Array:
        """Rows of the holes, int64 ``(u,)``."""
        return np.flatnonzero(self.grade == UNJUDGED)

    @cached_property
    def size(self) -> Int64Array:
        """Number of copies of each text, int64 ``(n,)``."""
        return np.array([len(each) for each in self.documents], dtype=np.int64)

    @cached_property
    def side(self) -> Int64Array:
        """0 or 1 for texts within the depth of a or b only, or `BOTH`, int64 ``(n,)``."""
        in_a, in_b = _is_within(self.measure, self.rank)
        return np.where(in_a & in_b, BOTH, in_b)

    @cached_property
    def gains(self) -> Float64Array:
        """Gain of each level over the one below, float64 ``(l,)``."""
        return np.diff(self.definition.gain(self.levels, self.measure.rel), prepend=0.0)

    @cached_property
    def ideal(self) -> Float64Array:
        """Best possible gain of 0, 1, ... documents at a level, the denominator of a score."""
        counts = np.arange(int(self.outside.max(initial=0) + self.size.sum()) + 1)
        if self.definition.normaliser == "ideal":
            return np.append(0.0, np.cumsum(_weights(self.measure, counts[1:])))
        if self.definition.normaliser == "cutoff":
            counts = np.full(len(counts), self.measure.cutoff)
        return counts.astype(np.float64)

    @cached_property
    def known(self) -> tuple[Float64Array, Int64Array]:
        """Gains of judged texts, float64 ``(2, q)``, and documents at each level, ``(l, q)``."""
        judged = np.flatnonzero(self.grade != UNJUDGED)
        gain, count = self._add_up(judged, self.grade[None, judged])
        return gain[:, 0], count[:, 0] + self.outside

    def scores(self, labels: Int64Array) -> Float64Array:
        """Return both scores of every query, float64 ``(2, s, q)``, for ``(s, u)`` grades."""
        known_gain, known_count = self.known
        gain, count = self._add_up(self.holes, labels)
        total = gain + known_gain[:, None]
        if self.first_counts:
            total = np.maximum(gain, known_gain[:, None])
        return self._normalise(total, count + known_count[:, None])

    def _normalise(self, gain: Any, count: Any) -> Float64Array:
        if self.first_counts:
            return np.asarray(gain)
        best = np.tensordot(self.gains, self.ideal[count], 1)
        return np.asarray(np.divide(gain, best, out=np.zeros_like(gain), where=best > 0))

    def differences(self, labels: Int64Array | None = None) -> Float64Array:
        """Return a minus b for every query, float64 ``(s, q)``, for ``(s, u)`` grades.

        Without ``labels``, holes are not relevant, and s is 1.
        """
        if labels is None:
            labels = np.zeros((1, len(self.holes)), dtype=np.int64)
        a, b = self.scores(labels)
        return np.asarray(a - b)

    def differences_if_relevant(self) -> Float64Array:
        """Return the difference of each hole's query if it alone has the lowest level, ``(u,)``."""
        query, weight = self.query[self.holes], self.weight[:, self.holes]
        gain, count = (known[:, query] for known in self.known)
        if self.first_counts:
            gain = np.maximum(gain, weight)
        else:
            gain += self.gains[0] * weight
            count[0] += self.size[self.holes]
        a, b = self._normalise(gain, count)
        return np.asarray(a - b)

    def _add_up(self, texts: Int64Array, grades: Int64Array) -> tuple[Float64Array, Int64Array]:
        """Return gains ``(2, s, q)`` and documents at each level ``(l, s, q)`` of some texts."""
        query, combine = self.query[texts], np.maximum if self.first_counts else np.add
        reached = grades >= self.levels[:, None, None]
        gain = np.tensordot(self.gains, reached, 1) * self.weight[:, None, texts]
        count = self._by_query(reached * self.size[texts], query, np.add)
        return self._by_query(gain, query, combine), count

    def _by_query(self, values: Any, query: Int64Array, combine: np.ufunc) -> Any:
        """Combine the values of each query's texts, 0 for a query without any."""
        queries, starts = np.unique(query, return_index=True)
        total = np.zeros((*values.shape[:-1], len(self.query_ids)), values.dtype)
        if len(queries):
            total[..., queries] = combine.reduceat(values, starts, axis=-1)
        return total

    def bounds(self) -> tuple[Float64Array, Float64Array, bool]:
        """Return the lowest and highest difference of every query over all labels of its holes.

        Returns:
            Two arrays, float64 ``(q,)``, and whether they are exact, not only outer bounds.
        """
        gain, count = self.known
        if self.first_counts:  # one more relevant document cannot help only one side
            query, base = self.query[self.holes], gain[0] - gain[1]
            one = np.maximum(gain[:, query], self.weight[:, self.holes])
            moved = one[0] - one[1] - base[query]
            low, high = (self._by_query(moved, query, end) for end in (np.minimum, np.maximum))
            return base + np.minimum(low, 0), base + np.maximum(high, 0), True
        ends, exact = np.zeros((2, len(self.query_ids))), True
        limits = np.searchsorted(self.query[self.holes], np.arange(len(self.query_ids) + 1))
        for row, (first, last) in enumerate(pairwise(limits.tolist())):
            texts = self.holes[first:last]
            weight, size = self.weight[0, texts] - self.weight[1, texts], self.size[texts]
            if np.prod(np.unique(size, return_counts=True)[1] + 1.0) > STATES:
                exact = False  # each copy with a label of its own
                weight, size = np.repeat(weight / size, size), np.ones(size.sum(), dtype=np.int64)
            for end, sign in enumerate((-1, 1)):
                base = sign * float(gain[0, row] - gain[1, row])
                ends[end, row] = sign * self._largest(count[:, row], base, sign * weight, size)
        return ends[0], ends[1], exact

    def _largest(
        self, judged: Int64Array, base: float, weights: Float64Array, sizes: Int64Array
    ) -> float:
        """Return the largest difference of one query over all labels.

        Holes of one size change the ideal alike, so of any number of them at a level those with the
        largest weights are best. The ratio is maximised over these numbers, which do not grow with
        the level, by Dinkelbach's method (1967).

        Args:
            judged: int64 ``(l,)``, number of judged documents at each level.
            base: difference of the gains of judged documents.
            weights, sizes: difference of the discounts, and number of copies, of each hole.
        """
        gain, count = np.zeros(()), np.zeros((), dtype=np.int64)
        for size in np.unique(sizes):
            chosen = np.concatenate([[0.0], np.cumsum(-np.sort(-weights[sizes == size]))])
            gain = gain[..., None] + chosen
            count = count[..., None] + size * np.arange(len(chosen))
        ideals = [self.ideal[number + count] for number in judged]
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
    runs: tuple[Run, Run],
    qrels: Qrels,
    measure: str,
    keys: Mapping[str, str] | None = None,
    imported: int = 0,
) -> HoleTable:
    """Find the holes of two rankings.

    Args:
        runs: both rankings, under one protocol.
        qrels: judgements.
        measure: name of a measure in `DEFINITIONS`.
        keys: for each document a key that exact copies share; None without their texts.
        imported: number of imported judgements, at the end of ``qrels``.

    Raises:
        BenchError: the range of the measure cannot be computed.
    """
    import pandas as pd  # late: `list` must answer without it

    parsed, keys = parse_measure(measure), keys or {}
    if (definition := parsed.definition) is None:
        raise BenchError(
            f"there are no bounds of {parsed.name} over unknown labels",
            f"Choose {', '.join(DEFINITIONS)} with --measure, such as nDCG@10.",
        )
    levels = np.unique([parsed.rel, *qrels.grades[qrels.grades > 0]]).astype(np.int64)
    levels = levels[np.diff(definition.gain(levels, parsed.rel), prepend=0.0) > 0]
    row_of = {query_id: row for row, query_id in enumerate(qrels.queries())}
    judged = _read_judgements(qrels, row_of, imported)
    rows = _read_ranks(runs, row_of, parsed.cutoff)
    outside = _count_outside(judged, rows, levels, len(row_of))
    rows = _add_grades(rows, judged, keys)
    is_judged, ranks = rows["grade"].notna().to_numpy(), rows[list(SIDES)].to_numpy()
    within = _is_within(parsed, ranks)
    lengths = [np.bincount(rows["query"][side], minlength=len(row_of)) for side in within.T]
    depth = 0 if parsed.cutoff == NO_CUTOFF else parsed.cutoff
    rows["grade"] = rows["grade"].fillna(rows["grade_of_text"]).fillna(UNJUDGED).astype(np.int64)
    texts = rows.groupby(["query", "key", "grade"], sort=False)
    first, text = texts.first().reset_index(), texts.ngroup().to_numpy()
    weights = pd.DataFrame(_weights(parsed, ranks)).groupby(text)
    weight = weights.max() if definition.normaliser == "first" else weights.sum()
    return HoleTable(
        measure=parsed,
        query_ids=tuple(row_of),
        levels=levels,
        query=first["query"].to_numpy(np.int64),
        documents=texts["document"].agg(tuple).tolist(),
        weight=weight.to_numpy().T,
        rank=texts[list(SIDES)].min().to_numpy().T,
        grade=first["grade"].to_numpy(np.int64),
        imported=first["imported"].eq(True).to_numpy(bool),
        outside=outside,
        shares=tuple(float(is_judged[side].mean()) if side.any() else 0.0 for side in within.T),
        short=tuple(int((each < depth).sum()) for each in lengths),
        relevant_only=2 * int((qrels.grades <= 0).sum()) < int((qrels.grades > 0).sum()),
    )


def _count_outside(
    judged: "pd.DataFrame", rows: "pd.DataFrame", levels: Int64Array, queries: int
) -> Int64Array:
    """Return how many judged documents of each level and query neither ranking has."""
    seen = judged.merge(rows, "left", indicator="seen")["seen"].to_numpy() == "both"
    below = judged[~seen]
    return np.stack(
        [np.bincount(below["query"][below["grade"] >= one], minlength=queries) for one in levels]
    )


def _read_judgements(qrels: Qrels, row_of: Mapping[str, int], imported: int) -> "pd.DataFrame":
    """Return the last judgement of each pair of query and document."""
    import pandas as pd

    return pd.DataFrame(
        {
            "query": [row_of[query_id] for query_id in qrels.query_ids],
            "document": qrels.doc_ids,
            "grade": np.maximum(qrels.grades, 0),
            "imported": np.arange(len(qrels)) >= len(qrels) - imported,
        }
    ).drop_duplicates(["query", "document"], keep="last")


def _add_grades(
    rows: "pd.DataFrame", judged: "pd.DataFrame", keys: Mapping[str, str]
) -> "pd.DataFrame":
    """Add the text's key, the grade and the grade of an exact copy to retrieved documents."""
    rows, judged = (
        frame.assign(key=[keys.get(document, document) for document in frame["document"]])
        for frame in (rows, judged)
    )
    of_text = judged.drop(columns="document").drop_duplicates(["query", "key"], keep="last")
    rows = rows.merge(judged[["query", "document", "grade"]], "left", ["query", "document"])
    return rows.merge(of_text, "left", ["query", "key"], suffixes=("", "_of_text"))


def _read_ranks(runs: tuple[Run, Run], row_of: Mapping[str, int], cutoff: int) -> "pd.DataFrame":
    """Return the documents within the depth of either ranking, with both ranks or `BEYOND`."""
    import pandas as pd

    frames = []
    for side, run in zip(SIDES, runs, strict=True):
        lengths = np.diff(run.offsets)
        frames.append(
            pd.DataFrame(
                {
                    "query": np.repeat([row_of.get(one, -1) for one in run.query_ids], lengths),
                    "document": run.doc_ids.to_pylist(),
                    side: np.arange(1, len(run) + 1) - np.repeat(run.offsets[:-1], lengths),
                }
            )
        )
    near = [frame[frame[side] <= cutoff] for side, frame in zip(SIDES, frames, strict=True)]
    rows = pd.concat(near)[["query", "document"]].query("query >= 0").drop_duplicates()
    for frame in frames:
        rows = rows.merge(frame, "left", ["query", "document"])
    rows[list(SIDES)] = rows[list(SIDES)].fillna(BEYOND).astype(np.int64)
    rows["best"] = rows[list(SIDES)].min(axis=1)
    return rows.sort_values(["query", "best"], kind="stable")


def _is_within(measure: Measure, ranks: Int64Array) -> BoolArray:
    """Return whether ``measure`` reads documents at ``ranks``."""
    return (ranks <= measure.cutoff) & (ranks < BEYOND)


def _weights(measure: Measure, ranks: Int64Array) -> Float64Array:
    """Return what a gain of 1 at ``ranks`` adds to a score before it is normalised."""
    inside = _is_within(measure, ranks)
    return np.where(inside, 1 / DEFINITIONS[measure.kind].discount(ranks), 0.0)
