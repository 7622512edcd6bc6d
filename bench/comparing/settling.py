"""Sensitivity of a verdict to the holes of two rankings, and the holes to judge first.

The verdict is settled if no labels can change it. Otherwise a model of relevance, calibrated on the
judged documents, draws labels for all holes, and the test of ``compare`` decides on each draw. See
docs/explanation/holes.md for its assumptions and for how often it errs.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from bench.comparing.holes import BOTH, UNJUDGED, HoleTable, tabulate_holes
from bench.comparing.statistics import ALPHA, SAME_MEAN, Difference
from bench.evaluation.result_record import Evaluation
from datasets_cfg.dataset import QUICK_BYTES, Dataset
from foundation.arrays import BoolArray, Float64Array, Int64Array
from foundation.errors import BenchError, UnavailableError, format_count
from foundation.records import Record

LABELINGS = 200  # drawn for all holes
CELLS = 6_000_000  # of labels drawn at once
FLIPS = 1_999  # of signs, for the verdict on each labeling
FAR = 100  # ranks beyond are alike
SPREAD = 0.25  # standard deviation of the log-odds that all holes of one kind share
HIDDEN = 0.3  # unjudged relevant documents for each judged one, if only relevant ones are listed
SHARED = 1.0  # standard deviation of its logarithm
POOLED, RARE = 10, 5  # relevant documents of one model alone, for each of the other alone
SWAPPED = [1, 0, 2, 4, 3, 5]  # order of the values of a document if a and b are swapped
OPEN = 0.1  # chance of another verdict from which a comparison is open
POOL_GAP = 0.1  # difference of the judged shares that suggests that only one run was pooled
MOST_ROWS, MOST_HOLES = 2_000_000, 60_000  # of both rankings, examined without being asked


def estimate_relevance(table: HoleTable) -> tuple[Float64Array, Int64Array]:
    """Estimate how likely each hole is relevant, and draw labels.

    A logistic regression on the ranks in both rankings, which of them retrieved the document within
    the depth, and the number of other relevant documents of its query, fitted to the judged
    documents in the measured depth.

    Most collections list hardly any document that is not relevant. There, it is fitted to all
    documents as if holes were not relevant, and the odds of a hole are `HIDDEN` of its result
    (Elkan and Noto, KDD 2008, with an assumed share of labelled documents), or all of it for the
    holes of a model that was not pooled, see `find_not_pooled`.

    The weights are uncertain: they have the covariance of the fit, and the model is wrong for whole
    kinds of documents, those of a, of b and of both, not for each one independently. Imported
    judgements correct them, and each draw of labels has weights of its own.

    Returns:
        Chance of each hole to be relevant, float64 ``(u,)``, and up to `LABELINGS` labelings, int64
        ``(s, u)``.
    """
    relevant = table.grade >= table.levels[0]
    judged = (table.grade != UNJUDGED) & ~table.imported
    others = table.known[1][0][table.query] - relevant * table.size
    kind = np.eye(BOTH + 1)[table.side]
    x = np.column_stack([kind, np.log2(np.minimum(table.rank.T, FAR) + 1.0), np.log(others + 1.0)])
    fitted, prior = judged, np.zeros(len(judged))
    if table.relevant_only:
        not_pooled = find_not_pooled(table)
        fitted, prior = ~not_pooled, np.where(not_pooled, 0.0, np.log(HIDDEN))
        if not np.isin(table.side[not_pooled], table.side[fitted]).any():
            x[not_pooled] = x[not_pooled][:, SWAPPED]
            agreement = np.mean(table.side[relevant] == BOTH)
            prior[not_pooled] = np.log(np.clip(2 * agreement, HIDDEN, 1.0))
    weights, covariance = _fit_logistic(x[fitted], (relevant & judged)[fitted], np.eye(x.shape[1]))
    shared = SHARED if table.relevant_only else 0.0
    covariance[: BOTH + 1, : BOTH + 1] += SPREAD**2 * np.eye(BOTH + 1) + shared**2
    log_odds, seen = np.clip(x @ weights, -20, 20) + prior, table.imported
    error, covariance = _fit_logistic(x[seen], relevant[seen], covariance, log_odds[seen])
    x, log_odds, rng = x[table.holes], log_odds[table.holes], np.random.default_rng(0)
    count = max(20, min(LABELINGS, CELLS // max(1, len(log_odds))))
    errors = rng.multivariate_normal(error, covariance, count) @ x.T
    drawn = rng.random(errors.shape) < _logistic(log_odds + errors)
    reached = np.array([np.count_nonzero(table.grade >= level) for level in table.levels])
    exactly = reached - np.append(reached[1:], 0) + 0.5
    labels = drawn * rng.choice(table.levels, p=exactly / exactly.sum(), size=drawn.shape)
    return _logistic(log_odds + x @ error), labels


def find_not_pooled(table: HoleTable) -> BoolArray:
    """Return the texts of a model that was probably not pooled, while the other one was, ``(n,)``.

    Of the documents in the measured depth of one model that the other does not have in its first
    ``d``, hardly any are known to be relevant for one model, and at least `POOLED` for the other.
    """
    relevant = (table.grade >= table.levels[0]) & ~table.imported
    for factor in (1, 10):
        beyond = table.rank.max(axis=0) > min(table.measure.cutoff, 100) * factor
        counts = [np.count_nonzero(relevant & beyond & (table.side == side)) for side in (0, 1)]
        if max(counts) >= POOLED and RARE * min(counts) <= max(counts):
            return np.asarray(beyond & (table.side == int(np.argmin(counts))))
    return np.zeros(len(relevant), dtype=bool)


def _logistic(x: Float64Array) -> Float64Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -30, 30))))


def _fit_logistic(
    x: Float64Array, y: BoolArray, prior: Float64Array, offset: Float64Array | float = 0.0
) -> tuple[Float64Array, Float64Array]:
    """Fit a logistic regression with a normal prior, of covariance ``prior``, by Newton's method.

    Returns:
        The weights and their covariance.
    """
    weights, precision = np.zeros(x.shape[1]), np.linalg.inv(prior)
    for _ in range(25):
        p = _logistic(x @ weights + offset)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + precision
        weights += np.linalg.solve(curvature, x.T @ (y - p) - precision @ weights)
    return weights, np.asarray(np.linalg.inv(curvature))


@cache
def _signs(queries: int) -> Float64Array:
    return np.random.default_rng(0).choice([-1.0, 1.0], size=(FLIPS, queries))


def find_verdicts(differences: Float64Array, level: float = ALPHA) -> Int64Array:
    """Return 1 if a is better, -1 if b is, or 0, for each row of float64 ``(s, q)``.

    It is the randomisation test of ``compare`` with the same signs for all rows.
    """
    total = differences.sum(axis=1)
    flipped = _signs(differences.shape[1]) @ differences.T
    p = (1 + (np.abs(flipped) >= np.abs(total) - SAME_MEAN).sum(axis=0)) / (1 + FLIPS)
    return np.asarray(np.sign(total) * (p <= level), dtype=np.int64)


def is_certain(low: Float64Array, high: Float64Array, verdict: int, level: float = ALPHA) -> bool:
    """Return True if the verdict is the same for all differences between the bounds ``(q,)``.

    It is proved for the normal limit of the test, in which the sum of differences is compared with
    z times the root of the sum of their squares.
    """
    if np.array_equal(low, high):
        return True
    z, ends = NormalDist().inv_cdf(1 - level / 2), np.stack([low, high])
    if verdict:
        ends *= verdict
        most = float(np.sqrt((ends**2).max(axis=0).sum()))
        return any(  # by sqrt(x) <= x / 2m + m / 2, which is tight for one m
            (ends - z * ends**2 / (2 * m)).min(axis=0).sum() > z * m / 2
            for m in most * np.geomspace(0.05, 1, 60)
        )
    return _cannot_exceed(ends, z) and _cannot_exceed(-ends, z)


def _cannot_exceed(ends: Float64Array, z: float) -> bool:
    """Return True if no sum between the ``ends`` reaches z times the norm (Cauchy's inequality)."""
    d = ends.max(axis=0)
    for _ in range(20):
        slope = 1 - z * d / (float(np.linalg.norm(d)) or 1.0)
        if (slope * ends).max(axis=0).sum() < 0:
            return True
        d = (d + np.where(slope > 0, ends.max(axis=0), ends.min(axis=0))) / 2
    return False


def expected_effects(table: HoleTable, chance: Float64Array) -> Float64Array:
    """Return the expected effect of the judgement of each hole on the verdict, float64 ``(u,)``.

    The verdict depends on the sum of the differences divided by the root of the sum of their
    squares. The effect of a hole is the change of this statistic if the hole alone is relevant,
    times its ``chance`` of relevance, float64 ``(u,)``.
    """
    (differences,) = table.differences()
    before = differences[table.query[table.holes]]
    after = table.differences_if_relevant()
    total = differences.sum() + np.append(0, after - before)  # first without judgements
    squares = (differences**2).sum() + np.append(0, after**2 - before**2)
    statistic = total / np.sqrt(np.maximum(squares, SAME_MEAN))
    return np.asarray(np.abs(statistic[1:] - statistic[0]) * chance)


class Holes(Record):
    """Effect of unjudged documents on a comparison on one collection.

    Attributes:
        a, b: names of the models; differences are a minus b.
        holes: number of unjudged pairs of query and document that the measure reads in either
            ranking, copies of a text counted once.
        low, high: range of the difference over all labels of the holes.
        exact: whether it is the exact range, not an outer bound.
        probable_low, probable_high: range that has 95 % of the differences under the model.
        chance: chance of another verdict of ``compare`` under the model.
        outcome: "settled" if no labels can change the verdict, "probably" settled if the chance is
            below 10 %, otherwise "open".
        needed: number of judgements from the top of the list after which the verdict is that of
            all judgements, in more than 90 % of cases under the model; None unless it is open.
        judged_a, judged_b: share of the documents read by the measure that are judged.
        warnings: reasons for doubt.
        missing: reason why the holes are unknown, in which case there are no figures.
    """

    a: str
    b: str
    collection: str
    measure: str
    holes: int = 0
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
        number = format_count(self.needed or 0, "judgement", "judgements")
        answer = {
            "settled": "settled: no labels of unjudged documents change the verdict",
            "probably": f"probably settled: another verdict has a chance of {self.chance:.0%}",
        }.get(
            self.outcome,
            f"open: another verdict has a chance of {self.chance:.0%}, and {number} from the top "
            f"of the list leave less than {OPEN:.0%}",
        )
        ranges = f"with all labels {self.low:+.3f} to {self.high:+.3f}"
        if not self.exact:
            ranges += " (outer bounds)"
        if self.outcome != "settled":
            ranges = f"probably {self.probable_low:+.3f} to {self.probable_high:+.3f}, {ranges}"
        pairs = format_count(self.holes, "unjudged document", "unjudged documents")
        judged = f"{self.judged_a:.0%} of {self.a} and {self.judged_b:.0%} of {self.b} judged"
        warnings = "".join(f"; warning: {text}" for text in self.warnings)
        return (
            f"{self.collection}: {answer}; {self.a} − {self.b} is {ranges} "
            f"({pairs} in {self.measure}; {judged}){warnings}"
        )


def examine_holes(
    table: HoleTable, a: str, b: str, collection: str = "", level: float = ALPHA
) -> Holes:
    """Find out whether labels of holes can change the verdict on models ``a`` and ``b``.

    ``level`` is the significance level of the verdict.
    """
    low, high, exact = table.bounds()
    ends, chance, needed = [float(low.mean()), float(high.mean())], 0.0, None
    verdict, probable = int(find_verdicts(table.differences(), level)[0]), ends
    certain = is_certain(low, high, verdict, level)
    if not certain:
        relevance, labels = estimate_relevance(table)
        differences = table.differences(labels)
        final = find_verdicts(differences, level)
        chance = float(np.mean(final != verdict))
        probable = np.quantile(differences.mean(axis=1), [0.025, 0.975]).tolist()
        if chance >= OPEN:
            needed = _count_needed(table, expected_effects(table, relevance), labels, final, level)
    return Holes(
        a=a,
        b=b,
        collection=collection,
        measure=table.measure.name,
        holes=len(table.holes),
        low=ends[0],
        high=ends[1],
        exact=exact,
        probable_low=probable[0],
        probable_high=probable[1],
        chance=chance,
        outcome="settled" if certain else "open" if needed else "probably",
        needed=needed,
        judged_a=table.shares[0],
        judged_b=table.shares[1],
        warnings=tuple(_find_doubts(table, (a, b))),
    )


def _count_needed(
    table: HoleTable, effects: Float64Array, labels: Int64Array, final: Int64Array, level: float
) -> int:
    """Return how many holes give the ``final`` verdict of most labelings if they are judged."""
    order = np.argsort(-effects, kind="stable")

    def is_enough(judged: int) -> bool:
        known = labels.copy()
        known[:, order[judged:]] = 0
        return float(np.mean(find_verdicts(table.differences(known), level) != final)) < OPEN

    return 1 + bisect_left(range(1, len(order) + 1), True, key=is_enough)


def _find_doubts(table: HoleTable, names: tuple[str, str]) -> Iterator[str]:
    """Yield warnings about pools and about rankings that are shorter than the measure reads."""
    outside: list[int] = table.side[find_not_pooled(table)].tolist()
    if not table.relevant_only:
        is_gap = abs(table.shares[0] - table.shares[1]) > POOL_GAP
        outside = [int(np.argmin(table.shares))] if is_gap else []
    for side in outside[:1]:
        yield (
            f"{names[1 - side]} was probably in the pool of judged documents, and {names[side]} "
            "was not"
        )
    for short, name in zip(table.short, names, strict=True):
        if short:
            number = format_count(short, "query", "queries")
            yield f"{name} has fewer than {table.measure.cutoff:,} documents for {number}"


def find_holes(
    models: tuple[Evaluation, Evaluation],
    test: Difference,
    opened: Dataset | UnavailableError,
    thorough: bool,
) -> Holes:
    """Examine the holes of two evaluations on one collection.

    Args:
        models: both evaluations, under one protocol.
        test: their difference. The level of the verdict is lower if p is adjusted.
        opened: the collection that was evaluated, or the reason why it is not available.
        thorough: examine long rankings, and read the texts of large collections, to find copies.
    """
    names = test.a, test.b, test.on
    try:
        table = open_holes(models, test.measure, opened, thorough)
    except (BenchError, OSError) as error:
        return Holes(*names, measure=test.measure, missing=str(error))
    level = ALPHA * min(1.0, test.p / test.p_adjusted) if test.p_adjusted else ALPHA
    return examine_holes(table, *names, level)


def open_holes(
    models: tuple[Evaluation, Evaluation],
    measure: str,
    opened: Dataset | UnavailableError,
    thorough: bool,
) -> HoleTable:
    """Read both rankings and find their holes. Arguments are those of `find_holes`.

    Raises:
        BenchError: a ranking or the judgements are missing, or the measure has no bounds.
    """
    if isinstance(opened, UnavailableError):
        raise opened
    if opened.answers is not None:
        raise BenchError("answer strings judge every document")
    runs = models[0].run, models[1].run
    if not thorough and sum(map(len, runs)) > MOST_ROWS:
        raise BenchError("the rankings are long; run `compare --holes` to examine them")
    doc_ids = {*runs[0].ids.to_pylist(), *runs[1].ids.to_pylist(), *opened.qrels.doc_ids}
    keys = _read_keys(opened, list(doc_ids), thorough)
    table = tabulate_holes(runs, opened.qrels, measure, keys, opened.overlaid)
    if not thorough and len(table.holes) > MOST_HOLES:
        raise BenchError(f"there are {len(table.holes):,}; run `compare --holes` to examine them")
    return table


def _read_keys(dataset: Dataset, doc_ids: Sequence[str], thorough: bool) -> dict[str, str]:
    """Return the text of each document as its key, or nothing if reading them is not possible.

    A large collection is read only if the examination is ``thorough``.
    """
    try:
        size = sum(file.stat().st_size for file in dataset.reader.corpus_files())
        if size > QUICK_BYTES and not thorough:
            return {}
        return {doc_id: text for doc_id, text in read_texts(dataset, doc_ids).items() if text}
    except (BenchError, OSError):
        return {}


def read_texts(dataset: Dataset, doc_ids: Sequence[str]) -> dict[str, str]:
    """Return title and text of the documents that the corpus contains."""
    rows = dataset.corpus.rows_of(doc_ids)
    present = np.flatnonzero(rows >= 0)
    documents = zip(*dataset.corpus.documents_at(rows[present]), strict=True)
    return {
        doc_ids[row]: f"{title} {text}".strip()
        for row, (title, text) in zip(present.tolist(), documents, strict=True)
    }
