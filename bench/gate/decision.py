"""The decision of a check: a function of two score vectors per collection, weights and limits.

The first row that applies decides:

======================================================================  ============  ====
figures                                                                 outcome       exit
======================================================================  ============  ====
an evaluation failed or a result is missing                             MISSING       4
--expect-same, and a query differs beyond the tolerance                 DRIFT         5
--expect-same, and no query does                                        OK            0
a collection lost significantly (Holm), and more than the floor         REGRESSION    1
the upper bound of the mean loss is within the margin                   OK            0
it is not, and the mean lost significantly                              REGRESSION    1
neither                                                                 INCONCLUSIVE  3
======================================================================  ============  ====

If measures differ, there is no mean, and the bound of each collection must be within the margin.

Slices of the collections can only add a REGRESSION, to OK or INCONCLUSIVE: if a slice lost
significantly, corrected over all slices and collections (`bench.comparing.slices`), with a lower
bound above 0, and more than the floor. A slice that is too small to show a loss decides nothing.

A loss is significant if the randomisation test has a p of at most .05 (two-sided, so that equal
models show a significant loss in at most 2.5 % of checks), and its lower bound (97.5 %) is above 0.
The test alone errs more often if many small losses balance rare large gains, which may be missing
from the sample. `upper_bound` is the bound (95 %, one-sided), and the lower one that of the gains.
Nothing else decides: no result of another model, no earlier check, no other folder.

Without slices, a candidate whose every score is lower or equal never has a better outcome. The
bound never falls, and neither does the significance of a loss: its p is the share of sign flips
whose mean loss is as large, which is the share of random subsets of the queries with a total loss
of at most 0. Each of these totals grows with each loss. For this, only losses count in the family
of Holm's correction. (With many changed queries p is accurate to .0005, and so is this statement.)

The bound needs no assumption on the distribution of losses. Student's t and the bootstrap know only
the losses that were seen, and the largest may be missing from the sample. Gaffke's bound (2005;
Learned-Miller and Thomas, 2020) adds one more query with the worst possible loss, which is 1: it is
the 95 % quantile of the mean of all these losses under random weights from a flat Dirichlet
distribution. For a weighted mean, the weights of each collection are drawn independently. A larger
loss of any query never lowers the bound: the random weights are fixed, and meet the sorted losses.
They depend on the number of queries alone. If collections have the same number, the baseline's
scores tell them apart, which a candidate cannot change.
If no score changes, the bound is 1 - 0.05^(1/n): 149 unchanged queries prove a margin of .02. Its
coverage is proved for a few distributions and conjectured for all, see
``docs/explanation/gate-errors.md``.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from bench.comparing.sign_flips import block_sizes
from bench.comparing.slices import CONSTANT, correct_jointly
from bench.comparing.statistics import (
    ALPHA,
    SAME_SCORE,
    Difference,
    ResampledScores,
    Resampling,
    ScorePair,
    collection_order,
    combine_draws,
    holm,
    paired_difference,
    resample_differences,
)
from bench.gate.check_record import MEAN, CheckRow, Decision, Reason
from bench.requests.deciding import GateSettings
from foundation.arrays import Float64Array
from foundation.errors import BenchError, format_count

LEVEL = 0.95  # of the upper bound, one-sided
LOWER_LEVEL = 0.975  # of the lower bound, one-sided, as of the test of a loss
DRAWS = 19_999  # another seed moves a bound by .6 % of its distance from the mean (1 sd)
MOST_QUERIES = 10_000_000  # that `queries_needed` considers


@dataclass(frozen=True)
class DrawnMeans:
    """Mean loss on one collection under random weights of its queries.

    Attributes:
        queries: number of queries.
        observed: mean loss.
        means: float64 ``(draws,)``, mean loss under flat Dirichlet weights.
        levels: float64 ``(draws,)``, quantile levels of the weight of the worst loss: the centre of
            each of ``draws`` equal steps from 0 to 1, in random order.
    """

    queries: int
    observed: float
    means: Float64Array
    levels: Float64Array

    @property
    def negated(self) -> "DrawnMeans":
        """The draws of the gain."""
        return replace(self, means=-self.means, observed=-self.observed)


def draw_means(losses: Float64Array, draws: int = DRAWS) -> DrawnMeans:
    """Draw the mean loss under random weights, which depend on the number of queries alone.

    ``losses`` are baseline minus candidate, float64 ``(queries,)``, at most 1. The benchmark passes
    ``(queries, samples)``.
    """
    for_means, for_worst = np.random.default_rng(len(losses)).spawn(2)
    ordered = np.sort(losses, axis=0)
    means, start = np.zeros((draws, *ordered.shape[1:])), 0
    for rows in block_sizes(len(ordered), draws) if ordered.any() else ():
        shares = for_means.standard_exponential((rows, len(ordered)))
        shares /= shares.sum(axis=1, keepdims=True)
        means[start : start + rows] = shares @ ordered
        start += rows
    levels = (for_worst.permutation(draws) + 0.5) / draws
    return DrawnMeans(len(ordered), float(ordered.mean()), means, levels)


def upper_bound(
    parts: Sequence[DrawnMeans],
    weights: Sequence[float] = (1.0,),
    factor: float = 1.0,
    level: float = LEVEL,
) -> float:
    """Return the upper confidence bound of the weighted mean loss.

    Args:
        parts: draws of each collection, in the order of `collection_order`.
        weights: weight of each collection; they sum to 1.
        factor: for planning: the bound if there were so many times as many queries with losses like
            these. The spread of the mean shrinks by its root.
        level: coverage, one-sided.
    """
    shrink = 1 / math.sqrt(factor)

    def draws(part: DrawnMeans) -> Float64Array:
        means = shrink * part.means + (1 - shrink) * part.observed
        worst = 1 - (1 - part.levels) ** (1 / (factor * part.queries))  # quantiles of Beta(1, n)
        return np.asarray(worst + (1 - worst) * means)

    total = combine_draws(weights, [draws(part) for part in parts])
    place = math.ceil(level * len(total)) - 1
    return float(np.partition(total, place)[place])


def queries_needed(
    parts: Sequence[DrawnMeans], weights: Sequence[float], margin: float, level: float = LEVEL
) -> int | None:
    """Return how many queries with losses like these have a bound of at most ``margin``, or None.

    All collections, whose draws are ``parts``, grow by the same factor.
    """
    known = sum(part.queries for part in parts)
    numbers = range(known, max(known, MOST_QUERIES) + 1)

    place = bisect_left(
        numbers,
        True,
        key=lambda queries: upper_bound(parts, weights, queries / known, level) <= margin,
    )
    return numbers[place] if place < len(numbers) else None


@dataclass(frozen=True)
class LossTest:
    """Significance and upper bound of a loss, on one collection or in the weighted mean.

    Attributes:
        name: name of the collection, or "mean".
        pairs, parts, drawn: for each collection the scores of candidate and baseline, their
            differences with resamples, and the draws of the bound.
        weights: weight of each collection; they sum to 1.
    """

    name: str
    pairs: Sequence[ScorePair]
    parts: Sequence[ResampledScores]
    drawn: Sequence[DrawnMeans]
    weights: Sequence[float]

    @cached_property
    def paired(self) -> Difference:
        """Difference with its interval, and p of a loss."""
        found = paired_difference(self.parts, self.weights, self.name)
        return msgspec.structs.replace(found, p=found.p if found.difference < 0 else 1.0)

    @cached_property
    def bound(self) -> float:
        """Upper bound of the loss."""
        return upper_bound(self.drawn, self.weights)

    @cached_property
    def lower(self) -> float:
        """Lower bound of the loss, 97.5 %: the upper bound of the gain."""
        return -upper_bound([part.negated for part in self.drawn], self.weights, level=LOWER_LEVEL)

    @property
    def loss(self) -> float:
        """Observed loss."""
        return -self.paired.difference

    @property
    def queries(self) -> int:
        """Number of queries."""
        return sum(part.queries for part in self.drawn)

    @property
    def where(self) -> str:
        """Collection or suite with the loss, as messages name it."""
        return "in the mean" if self.name == MEAN else f"on {self.name}"

    def row(self, p_adjusted: float | None, failure: str) -> CheckRow:
        """Return the row of the report."""
        scores = [[one.a.mean(), one.b.mean()] for one in self.pairs]
        candidate, baseline = np.dot(self.weights, scores).tolist()
        return CheckRow(
            on=self.name,
            measure=self.pairs[0].measure,
            queries=self.queries,
            mean_a=candidate,
            mean_b=baseline,
            paired=msgspec.structs.replace(self.paired, p_adjusted=p_adjusted),
            bound=self.bound,
            failure=failure,
        )

    def lost(self, p: float, rest: str) -> Reason:
        """Return the observed loss as a reason: a sentence that ends with ``rest``."""
        return Reason(f"{self.name} lost {self.loss:.4f}{rest}", self.name, loss=self.loss, p=p)

    def needed(self, margin: float) -> int | None:
        """Return the number of queries that would be enough to pass, or to show the loss."""
        if self.loss < margin:
            return queries_needed(self.drawn, self.weights, margin)
        gains = [part.negated for part in self.drawn]
        return queries_needed(gains, self.weights, 0.0, LOWER_LEVEL)


def decide(
    pairs: Sequence[ScorePair],
    weights: Mapping[str, float],
    settings: GateSettings,
    resampling: Resampling,
    gaps: Mapping[str, str] | None = None,
) -> Decision:
    """Decide whether a candidate may replace the baseline.

    Args:
        pairs: scores of candidate and baseline on each collection, from 0 to 1.
        weights: weight of each collection in the mean, in the order of the report.
        settings: limits.
        resampling: number of sign flips, and seed.
        gaps: reason for each collection without scores; "no result" by default.

    Raises:
        BenchError: a measure is not between 0 and 1.
    """
    known = {pair.on: pair for pair in pairs}
    missing = {n: (gaps or {}).get(n, "no result") for n in weights if n not in known}
    tests = {name: _test_pair(known[name], resampling) for name in weights if name in known}
    adjusted = dict(zip(tests, holm([test.paired.p for test in tests.values()]), strict=True))
    mean = None if missing else _test_mean(tests, weights)
    if missing:
        reasons = tuple(Reason(f"{name}: {why}", name) for name, why in missing.items())
        ruling = Decision(outcome="MISSING", reasons=reasons)
    elif settings.expect_same:
        ruling = _rule_on_drift(pairs, settings.tolerance)
    else:
        ruling = _rule_on_loss(tests, mean, adjusted, settings)
    is_against = ruling.outcome in ("DRIFT", "REGRESSION")
    failures = {one.where: one.what for one in ruling.reasons if is_against}
    rows = [
        tests[name].row(adjusted[name], failures.get(name, ""))
        if name in tests
        else CheckRow(on=name, missing=(missing[name],))
        for name in weights
    ]
    of_mean = mean.row(None, failures.get(MEAN, "")) if mean else None
    return msgspec.structs.replace(ruling, rows=tuple(rows), mean=of_mean)


def _test_pair(pair: ScorePair, resampling: Resampling) -> LossTest:
    """Resample the sorted differences of one collection, none of which may be larger than 1."""
    differences = np.sort(pair.differences)[::-1]
    if np.abs(differences).max() > 1 + SAME_SCORE:
        raise BenchError(
            f"{pair.measure} on {pair.on} is not a measure from 0 to 1, so a loss has no bound",
            "Choose another one with --measure.",
        )
    part = resample_differences(differences, resampling, pair.on, pair.measure)
    return LossTest(pair.on, [pair], [part], [draw_means(-differences)], [1.0])


def _test_mean(tests: Mapping[str, LossTest], weights: Mapping[str, float]) -> LossTest | None:
    """Return the test of the weighted mean, or None for one collection or several measures."""
    pairs = [pair for test in tests.values() for pair in test.pairs]
    if len(tests) < 2 or len({pair.measure for pair in pairs}) > 1:
        return None
    shares = [weights[name] for name in tests]
    order = collection_order([(pair.b, pair.a) for pair in pairs], shares)
    ordered = [list(tests.values())[number] for number in order]
    return LossTest(
        MEAN,
        [pairs[number] for number in order],
        [part for test in ordered for part in test.parts],
        [part for test in ordered for part in test.drawn],
        [shares[number] for number in order],
    )


def _rule_on_drift(pairs: Sequence[ScorePair], tolerance: float) -> Decision:
    """Compare the scores of each query."""
    failures = list[Reason]()
    for pair in pairs:
        differences = pair.differences
        beyond = np.abs(differences) > tolerance
        if beyond.any():
            worst = int(np.argmax(np.abs(differences)))
            query = f" on {pair.queries[worst]}" if pair.queries else ""
            number = format_count(int(beyond.sum()), "query", "queries")
            text = (
                f"{pair.on}: {pair.measure} of {number} of {len(beyond):,} differs by more than "
                f"{tolerance:.4f} (most: {differences[worst]:+.4f}{query}; "
                f"mean {differences.mean():+.4f})"
            )
            failures.append(Reason(text, pair.on))
    if failures:
        return Decision(outcome="DRIFT", reasons=tuple(failures))
    return Decision(outcome="OK", reasons=(Reason("every query is within the tolerance"),))


def _rule_on_loss(
    tests: Mapping[str, LossTest],
    mean: LossTest | None,
    adjusted: Mapping[str, float],
    settings: GateSettings,
) -> Decision:
    """Apply the last four rows of the table of this module."""
    margin, floor = settings.margin, settings.floor
    decisive = {MEAN: mean} if mean else tests
    p_values = {**adjusted, **({MEAN: mean.paired.p} if mean else {})}

    every = {**tests, **decisive}

    def lost(name: str, rest: str) -> Reason:
        p = p_values[name]
        return every[name].lost(p, f" (p {p:.4f}){rest}")

    losses = [
        name
        for name, test in every.items()
        if test.loss > 0 and p_values[name] <= ALPHA and test.lower > 0
    ]
    unproved = [name for name, test in decisive.items() if test.bound > margin]
    beyond = [name for name in tests if name in losses and tests[name].loss > floor]
    within = [name for name in unproved if name in losses and name not in beyond]
    if beyond or within:
        reasons = [lost(name, f", more than the floor of {floor:.4f}") for name in beyond]
        rest = f", and a loss beyond the margin of {margin:.4f} is not ruled out"
        reasons += [lost(name, rest) for name in within]
        return Decision(outcome="REGRESSION", reasons=tuple(reasons))
    if not unproved:
        reasons = [
            Reason(f"a loss of more than {margin:.4f} {test.where} is ruled out", name)
            for name, test in decisive.items()
        ]
        reasons += [lost(name, ": significant, but allowed") for name in losses]
        chance = ", more than the floor, but not significantly"
        unlikely = [name for name, test in tests.items() if test.loss > floor]
        reasons += [tests[name].lost(p_values[name], chance) for name in unlikely]
        return Decision(outcome="OK", reasons=tuple(reasons))
    needed = [decisive[name].needed(margin) for name in unproved]
    reasons = [
        _describe_doubt(decisive[name], margin, p_values[name], number)
        for name, number in zip(unproved, needed, strict=True)
    ]
    known = [number for number in needed if number is not None]
    largest = max(known) if len(known) == len(needed) else None
    return Decision(outcome="INCONCLUSIVE", reasons=tuple(reasons), needed=largest)


def _describe_doubt(test: LossTest, margin: float, p: float, needed: int | None) -> Reason:
    """Describe the possible loss, and how many queries would be enough to decide."""
    text = (
        f"a loss of up to {test.bound:.4f} {test.where} is possible, more than the margin of "
        f"{margin:.4f}"
    )
    if test.paired.p <= ALPHA and test.lower <= 0:
        text += (
            f"; the observed loss of {test.loss:.4f} has a small p, but rare gains that the sample "
            "lacks may balance it"
        )
    elif test.loss > margin:
        text += f"; the observed loss of {test.loss:.4f} is not significant"
    if needed is not None:
        text += f"; about {needed:,} queries are needed, and there are {test.queries:,}"
    return Reason(text, test.name, loss=test.loss, p=p)


def decide_slices(
    decision: Decision,
    slices: Sequence[ScorePair],
    wholes: Sequence[ScorePair],
    settings: GateSettings,
    resampling: Resampling,
) -> Decision:
    """Test slices of the collections, which can turn a ``decision`` to REGRESSION.

    Args:
        decision: outcome without slices.
        slices: scores of candidate and baseline on each slice.
        wholes: the same on each collection, which belong to the family.
        settings: limits.
        resampling: number of sign flips, and seed.
    """
    joint = correct_jointly([*slices, *wholes], resampling, losses_only=True)
    rows = [
        _test_slice(one, p, joint.critical, settings.floor, resampling)
        for one, p in zip(slices, joint.p_values[: len(slices)], strict=True)
    ]
    rows.sort(key=lambda row: (row.difference or 0, row.on, row.value))
    if decision.outcome not in ("OK", "INCONCLUSIVE", "REGRESSION"):
        rows = [msgspec.structs.replace(row, failure="") for row in rows]
    failures = [
        Reason(row.failure, row.on, row.value, -row.paired.difference, row.paired.p_adjusted)
        for row in rows
        if row.failure and row.paired
    ]
    decision = msgspec.structs.replace(decision, slice_rows=tuple(rows))
    if not failures:
        return decision
    kept = decision.reasons if decision.outcome == "REGRESSION" else ()
    reasons = (*kept, *failures)
    return msgspec.structs.replace(decision, outcome="REGRESSION", reasons=reasons, needed=None)


def _test_slice(
    one: ScorePair, p: float, critical: float, floor: float, resampling: Resampling
) -> CheckRow:
    """Return the row of a slice, with the reason if it lost too much."""
    test = _test_pair(one, resampling)
    p_adjusted = max(p, test.paired.p)
    failure = ""
    if test.loss > floor and p_adjusted <= ALPHA and test.lower > 0:
        failure = (
            f"{one.label} ({one.on}) lost {test.loss:.4f} (p {p_adjusted:.4f}), more than the "
            f"floor of {floor:.4f}"
        )
    smallest = smallest_shown_loss(test.queries, critical, floor)
    best = float(one.b.mean())
    unexamined = ""
    if smallest is None or smallest > best:
        number = format_count(test.queries, "query shows", "queries show")
        most = "no loss" if smallest is None else f"no loss below {smallest:.2f}"
        unexamined = f"{number} {most}, and the baseline scores {best:.2f}"
    return msgspec.structs.replace(
        test.row(p_adjusted, failure),
        value=one.label,
        shows_from=smallest,
        unexamined=unexamined,
    )


def smallest_shown_loss(queries: int, critical: float, floor: float) -> float | None:
    """Return the smallest mean loss that could turn a verdict to REGRESSION, or None if none could.

    A loss is easiest to show if all queries lose as much. Its statistic must reach the ``critical``
    one, and the lower bound (Gaffke's, closed form) must be above 0.
    """
    by_bound = (1 - LOWER_LEVEL) ** (-1 / queries) - 1
    spare = queries - critical * math.sqrt(queries)
    by_test = critical * CONSTANT / spare if spare > 0 else math.inf
    smallest = max(floor, by_bound, by_test)
    return smallest if smallest <= 1 else None
