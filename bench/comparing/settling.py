"""Sensitivity of a verdict to the holes of two rankings, and the holes to judge first.

The verdict is settled if no labels can change it. Otherwise a model of relevance, calibrated on the
judged documents, draws labels for all holes, and the test of ``compare`` decides on each draw. See
docs/explanation/holes.md for its assumptions and for how often it errs.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from bench.comparing.holes import BOTH, HoleTable, Traits, tabulate_holes
from bench.comparing.statistics import ALPHA, SAME_MEAN
from bench.evaluation.result_record import Evaluation
from bench.evaluation.runs import Run
from bench.evaluation.scoring import NO_CUTOFF
from datasets_cfg.dataset import QUICK_BYTES, Dataset
from datasets_cfg.readers.reader import Qrels
from foundation.arrays import Float64Array, Int64Array
from foundation.errors import BenchError, format_count
from foundation.records import Record

LABELINGS = 200  # drawn for all holes
AVERAGED = 20  # of them, for the effect of a hole
CELLS = 6_000_000  # of labels drawn at once
FLIPS = 1_999  # of signs, for the verdict on each labeling
SPREAD = 0.5  # standard deviation of the log-odds that all holes of one kind share
HIDDEN = 0.1  # unjudged relevant documents for each judged one, if only relevant ones are listed
POOLED = 5  # relevant documents of one model from which none of the other is suspicious
OPEN = 0.1  # chance of another verdict from which a comparison is open
POOL_GAP = 0.1  # difference of the judged shares that suggests that only one run was pooled
MOST_ROWS = 2_000_000  # of both rankings, examined without being asked


def estimate_relevance(table: HoleTable, qrels: Qrels) -> tuple[Float64Array, Float64Array]:
    """Estimate how likely each hole is relevant, and which grade it has then.

    A logistic regression on the best rank, the standardised score and whether both models retrieved
    the document, fitted to the judged documents in the measured depth.

    Most collections list hardly any document that is not relevant. There, it is fitted to all
    documents as if holes were not relevant, and the odds of a hole are `HIDDEN` of its result
    (Elkan and Noto, KDD 2008, with an assumed share of labelled documents), or all of it for the
    holes of a model that was not pooled, see `find_pooled`.

    Returns:
        Chance that a hole has at least the lowest level, float64 ``(u,)``, and the frequencies of
        the levels among judged documents, float64 ``(l,)``.
    """
    x, y = _features(table.known), (table.known_grades >= table.levels[0]).astype(np.float64)
    holes = _features(table.traits)
    hidden: float | Float64Array = 1.0
    if lists_relevant_only(qrels):
        x, y = np.concatenate([x, holes]), np.append(y, np.zeros(len(holes)))
        hidden = np.full(len(holes), HIDDEN)
        if pool := find_pooled(table):
            side, depth = pool
            outside = (table.traits.side == 1 - side) & (table.traits.other_rank > depth)
            hidden[outside] = 1.0
            kept = np.append(np.ones(len(table.known_grades), dtype=bool), ~outside)
            x, y = x[kept], y[kept]
    weights = _fit_logistic(x, y)
    odds = np.exp(np.clip(holes @ weights, -20, 20)) * hidden
    reached = np.array([np.count_nonzero(table.known_grades >= level) for level in table.levels])
    exactly = reached - np.append(reached[1:], 0) + 0.5
    return odds / (1 + odds), exactly / exactly.sum()


def _features(traits: Traits) -> Float64Array:
    both = (traits.side == BOTH).astype(np.float64)
    return np.stack([np.ones(len(both)), np.log2(traits.rank + 1.0), both, traits.score], axis=1)


def find_pooled(table: HoleTable) -> tuple[int, int] | None:
    """Return which ranking was pooled alone (0 or 1), and how deep, or None.

    Of the documents in the measured depth of one model that the other does not have in its first
    ``d``, none, or one for 20, are known to be relevant for one model, and at least `POOLED` for
    the other.
    """
    relevant = table.known_grades >= table.levels[0]
    for factor in (1, 10):
        depth = min(table.measure.cutoff, 100) * factor
        beyond = relevant & (table.known.other_rank > depth)
        counts = [int(np.count_nonzero(beyond & (table.known.side == side))) for side in (0, 1)]
        strong = int(np.argmax(counts))
        if counts[strong] >= POOLED and 20 * counts[1 - strong] <= counts[strong]:
            return strong, depth
    return None


def lists_relevant_only(qrels: Qrels) -> bool:
    """Return True if at most a third of the judged documents are not relevant."""
    return bool(2 * np.count_nonzero(qrels.grades <= 0) < np.count_nonzero(qrels.grades > 0))


def _logistic(x: Float64Array) -> Float64Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -30, 30))))


def _fit_logistic(x: Float64Array, y: Float64Array) -> Float64Array:
    """Fit a logistic regression with a weak ridge penalty by Newton's method."""
    weights = np.zeros(x.shape[1])
    for _ in range(25):
        p = _logistic(x @ weights)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.eye(x.shape[1])
        weights += np.linalg.solve(curvature, x.T @ (y - p) - weights)
    return weights


def draw_labels(
    table: HoleTable, relevance: Float64Array, grades: Float64Array, count: int = LABELINGS
) -> Int64Array:
    """Draw ``count`` labelings of the holes, int64 ``(count, u)``.

    Each draw shifts the log-odds of all holes that one model retrieved alone, or both, by the same
    normal number: models are wrong for whole kinds of documents, not for each one independently.
    """
    rng = np.random.default_rng(0)
    shift = rng.normal(0, SPREAD, (count, BOTH + 1))[:, table.traits.side]
    odds = np.log(relevance) - np.log1p(-relevance)
    relevant = rng.random((count, len(relevance))) < _logistic(odds + shift)
    chosen = rng.choice(table.levels, p=grades, size=relevant.shape)
    return np.asarray(relevant * chosen)


@dataclass(frozen=True)
class VerdictTest:
    """The test of ``compare`` for many vectors of differences at once.

    Attributes:
        signs: float64 ``(flips, q)``, random signs that all vectors share.
        level: significance level, 5 % divided by the correction for several collections.
    """

    signs: Float64Array
    level: float

    @classmethod
    def for_queries(cls, queries: int, level: float = ALPHA) -> "VerdictTest":
        """Return the test for so many ``queries``."""
        rng = np.random.default_rng(0)
        return cls(rng.choice([-1.0, 1.0], size=(FLIPS, queries)), level)

    def verdicts(self, differences: Float64Array) -> Int64Array:
        """Return 1 if a is better, -1 if b is, or 0, for float64 ``(s, q)``."""
        total = differences.sum(axis=1)
        extreme = np.abs(self.signs @ differences.T) >= np.abs(total) - SAME_MEAN
        p = (1 + extreme.sum(axis=0)) / (1 + len(self.signs))
        return np.asarray(np.sign(total) * (p <= self.level), dtype=np.int64)

    def is_certain(self, low: Float64Array, high: Float64Array, verdict: int) -> bool:
        """Return True if the verdict is the same for all differences between the bounds.

        It is proved for the normal limit of the test, in which the sum of differences is compared
        with z times the root of the sum of their squares.
        """
        if np.array_equal(low, high):
            return True
        z = NormalDist().inv_cdf(1 - self.level / 2)
        if verdict:
            low, high = (low, high) if verdict > 0 else (-high, -low)
            ends = np.stack([low, high])
            most = float(np.sqrt((ends**2).max(axis=0).sum()))
            return any(  # by sqrt(x) <= x / 2m + m / 2, which is tight for one m
                (ends - z * ends**2 / (2 * m)).min(axis=0).sum() > z * m / 2
                for m in most * np.geomspace(0.05, 1, 60)
            )
        return all(self._cannot_exceed(*ends, z) for ends in ((low, high), (-high, -low)))

    @staticmethod
    def _cannot_exceed(low: Float64Array, high: Float64Array, z: float) -> bool:
        """Return True if no sum reaches z times the norm, by Cauchy's inequality."""
        d = high
        for _ in range(20):
            slope = 1 - z * d / (float(np.linalg.norm(d)) or 1.0)
            if np.maximum(slope * low, slope * high).sum() < 0:
                return True
            d = (d + np.where(slope > 0, high, low)) / 2
        return False


def order_holes(table: HoleTable, qrels: Qrels) -> tuple[Int64Array, Float64Array]:
    """Order holes by the expected effect of their judgements, the largest first.

    The effect of a hole is the change of its query's difference if the hole is relevant, averaged
    over labels drawn for the other holes, times the chance of relevance.

    Returns:
        The order, int64 ``(u,)``, and the expected effects, float64 ``(u,)``.
    """
    relevance, grades = estimate_relevance(table, qrels)
    labels = draw_labels(table, relevance, grades, AVERAGED)
    change = np.zeros(len(relevance))
    within = np.arange(len(table.query)) - np.searchsorted(table.query, table.query)
    for place in range(int(within.max(initial=-1)) + 1):
        some = np.flatnonzero(within == place)
        low, high = labels.copy(), labels.copy()
        low[:, some], high[:, some] = 0, table.levels[0]
        moved = np.abs(table.differences(high) - table.differences(low))
        change[some] = moved.mean(axis=0)[table.query[some]] * relevance[some]
    return np.argsort(-change, kind="stable"), change


class Holes(Record, kw_only=True):
    """Effect of unjudged documents on a comparison on one collection.

    Attributes:
        a, b: names of the models; differences are a minus b.
        queries: number of queries.
        holes: number of unjudged pairs of query and document within ``depth`` of either ranking,
            copies of a text counted once.
        depth: documents per query that the measure reads.
        low, high: range of the difference over all labels of the holes.
        exact: whether it is the exact range, not an outer bound.
        probable_low, probable_high: range that has 95 % of the differences under the model.
        chance: chance of another verdict of ``compare`` under the model.
        outcome: "settled" if no labels can change the verdict, "probably" settled if the chance is
            below 10 %, otherwise "open".
        needed: number of judgements after which the verdict would be final in more than 90 % of all
            cases under the model; None unless it is open.
        judged_a, judged_b: share of the documents within ``depth`` that are judged.
        warnings: reasons for doubt.
        missing: reason why the holes are unknown, in which case there are no figures.
    """

    a: str
    b: str
    collection: str
    measure: str
    queries: int = 0
    holes: int = 0
    depth: int | None = None
    low: float = 0.0
    high: float = 0.0
    exact: bool = True
    probable_low: float = 0.0
    probable_high: float = 0.0
    chance: float = 0.0
    outcome: Literal["settled", "probably", "open", "unknown"] = "unknown"
    needed: int | None = None
    judged_a: float = 0.0
    judged_b: float = 0.0
    warnings: tuple[str, ...] = ()
    missing: str = ""

    def __str__(self) -> str:
        if self.missing:
            return f"{self.collection}: holes were not examined: {self.missing}"
        pairs = format_count(self.holes, "unjudged document", "unjudged documents")
        judged = f"{self.judged_a:.0%} of {self.a} and {self.judged_b:.0%} of {self.b} judged"
        where = f"among the first {self.depth}" if self.depth else "in the rankings"
        found = f"{self.collection}: {{}} ({pairs} {where}; {judged})"
        if self.outcome == "settled":
            return found.format("settled: no labels of unjudged documents change the verdict")
        likely = f"the difference is probably {self.probable_low:+.3f} to {self.probable_high:+.3f}"
        if self.outcome == "probably":
            return found.format(f"probably settled: {likely}")
        number = format_count(self.needed or 0, "judgement", "judgements")
        return found.format(f"open: {number} would settle it; {likely}")


def examine_holes(table: HoleTable, qrels: Qrels, level: float = ALPHA) -> dict[str, Any]:
    """Return the figures of `Holes` that follow from the table and its judgements."""
    low, high, exact = table.bounds()
    test = VerdictTest.for_queries(len(table.query_ids), level)
    verdict = int(test.verdicts(table.differences(np.zeros((1, len(table.query)), np.int64)))[0])
    figures = {
        "queries": len(table.query_ids),
        "holes": len(table.query),
        "low": float(low.mean()),
        "high": float(high.mean()),
        "exact": exact,
        "probable_low": float(low.mean()),
        "probable_high": float(high.mean()),
    }
    if test.is_certain(low, high, verdict):
        return {**figures, "outcome": "settled"}
    relevance, grades = estimate_relevance(table, qrels)
    count = max(100, min(LABELINGS, CELLS // len(table.query)))
    labels = draw_labels(table, relevance, grades, count)
    differences = table.differences(labels)
    final = test.verdicts(differences)
    chance = float(np.mean(final != verdict))
    ends = np.quantile(differences.mean(axis=1), [0.025, 0.975]).tolist()
    figures |= {"probable_low": ends[0], "probable_high": ends[1], "chance": chance}
    if chance < OPEN:
        return {**figures, "outcome": "probably"}
    order, _ = order_holes(table, qrels)

    def is_enough(judged: int) -> bool:
        known = labels.copy()
        known[:, order[judged:]] = 0
        return float(np.mean(test.verdicts(table.differences(known)) != final)) < OPEN

    numbers = range(1, len(order) + 1)
    needed = numbers[bisect_left(numbers, True, key=is_enough)]
    return {**figures, "outcome": "open", "needed": needed}


def find_holes(
    models: tuple[Evaluation, Evaluation],
    names: tuple[str, str],
    measure: str,
    opened: Dataset | str,
    level: float = ALPHA,
    thorough: bool = True,
) -> Holes:
    """Examine the holes of two evaluations on one collection.

    Args:
        models: both evaluations, under one protocol.
        names: names of the models.
        measure: name of the measure.
        opened: the collection that was evaluated, or the reason why it is not available.
        level: significance level of the verdict.
        thorough: examine long rankings, and read the texts of large collections, to find copies.
    """
    about: dict[str, Any] = {
        "a": names[0],
        "b": names[1],
        "collection": models[0].dataset,
        "measure": measure,
    }
    try:
        runs, dataset, table = open_holes(models, measure, opened, thorough)
    except (BenchError, OSError) as error:
        return Holes(**about, missing=str(error))
    cutoff, (a, b) = table.measure.cutoff, table.shares
    return Holes(
        **about,
        depth=None if cutoff == NO_CUTOFF else cutoff,
        judged_a=a,
        judged_b=b,
        warnings=tuple(_find_doubts(runs, names, table, dataset.qrels)),
        **examine_holes(table, dataset.qrels, level),
    )


def open_holes(
    models: tuple[Evaluation, Evaluation], measure: str, opened: Dataset | str, thorough: bool
) -> tuple[tuple[Run, Run], Dataset, HoleTable]:
    """Read both rankings and find their holes. Arguments are those of `find_holes`.

    Raises:
        BenchError: a ranking or the judgements are missing, or the measure has no bounds.
    """
    if isinstance(opened, str):
        raise BenchError(opened)
    if opened.answers is not None:
        raise BenchError("answer strings judge every document")
    runs = models[0].run, models[1].run
    if not thorough and sum(map(len, runs)) > MOST_ROWS:
        raise BenchError("the rankings are long; add --holes to examine them")
    doc_ids = [*runs[0].ids.to_pylist(), *runs[1].ids.to_pylist(), *opened.qrels.doc_ids]
    keys = hash_texts(opened, doc_ids, thorough)
    return runs, opened, tabulate_holes(runs, opened.qrels, measure, keys)


def _find_doubts(
    runs: tuple[Run, Run], names: tuple[str, str], table: HoleTable, qrels: Qrels
) -> Iterator[str]:
    """Yield warnings about pools and about rankings that are shorter than the measure reads."""
    pooled: int | None = None
    if lists_relevant_only(qrels):
        pooled, _ = find_pooled(table) or (None, 0)
    elif abs(table.shares[0] - table.shares[1]) > POOL_GAP:
        pooled = int(np.argmax(table.shares))
    if pooled is not None:
        yield (
            f"{names[pooled]} was probably in the pool of judged documents, and "
            f"{names[1 - pooled]} was not"
        )
    cutoff = table.measure.cutoff
    for run, name in zip(runs, names, strict=True) if cutoff != NO_CUTOFF else ():
        rows = dict(zip(run.query_ids, np.diff(run.offsets).tolist(), strict=True))
        if shallow := sum(rows.get(query, 0) < cutoff for query in table.query_ids):
            number = format_count(shallow, "query", "queries")
            yield f"{name} has fewer than {cutoff:,} documents for {number}"


def hash_texts(dataset: Dataset, doc_ids: Sequence[str], thorough: bool) -> dict[str, str]:
    """Return a hash of title and text by document id, or nothing if the documents are not here.

    A large collection is read only if the examination is ``thorough``.
    """
    try:
        size = sum(file.stat().st_size for file in dataset.reader.corpus_files())
        if size > QUICK_BYTES and not thorough:
            return {}
        unique = list(dict.fromkeys(doc_ids))
        rows = dataset.corpus.rows_of(unique)
        present = np.flatnonzero(rows >= 0)
        documents = zip(*dataset.corpus.documents_at(rows[present]), strict=True)
    except (BenchError, OSError):
        return {}
    return {
        unique[place]: hashlib.sha256("\0".join(document).encode()).hexdigest()
        for place, document in zip(present.tolist(), documents, strict=True)
        if any(document)
    }
