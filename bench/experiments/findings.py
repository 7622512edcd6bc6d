"""From the scores of all cells to the record of an ablation: seeds and queries resampled, both.

A score of a recipe is an average over the seeds it was trained with and over queries. All seeds
answer the same queries, so the two are crossed: what a resample draws are seeds and, for all of
them alike, queries. With the differences ``d[s, q]`` of two recipes trained with the same seeds,
the variance of their mean has three parts,

    seeds / S  +  queries / Q  +  (seeds x queries) / (S Q),

and a test over queries alone, or over seeds alone, sees one of the first two. Plain resampling is
wrong with the few seeds that anybody trains: it draws a variance that is (S - 1) / S of the right
one, counts the third part three times, and its percentiles cannot leave the range of the seeds.
So the variance is taken from the resampling distribution, each level drawn one fewer than it has,
which makes its part unbiased (McCarthy and Snowden, 1985), less the third part counted too often
(Owen, 2007, on crossed resampling); and the interval from the t distribution with Satterthwaite's
(1946) degrees of freedom. The variance has a closed form, which is used; the tests draw it too.
In simulations with 150 queries the interval holds the truth 93 to 96 times in 100 with 3 seeds, 94
to 95 with 5, and 88 to 95 with 2; one over queries alone 22 to 96, as the seeds are.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from bench.comparing.statistics import (
    ALPHA,
    Resampling,
    ScoreMatrix,
    detectable_effect,
    holm,
    paired_difference,
    t_quantile,
)
from bench.experiments.evaluate_stage import Scored, ScoredSequence, read_scored_sequence
from bench.experiments.execute import Outcome
from bench.experiments.grid import Hypothesis
from bench.experiments.plan import CellTask, GridCell, Plan
from bench.experiments.report_record import (
    MEAN,
    CellFound,
    HypothesisTested,
    Interval,
    Report,
    RowFound,
    RowOnCollection,
    SequenceFound,
)
from bench.results.result import Conditions
from foundation.arrays import Float64Array
from foundation.errors import BenchError

RESAMPLING = Resampling()
TINY = 1e-12

ScoresOf = Callable[[CellTask], Mapping[str, Scored]]
BySeed = dict[int, Mapping[str, Scored]]


def report_of(
    plan: Plan, outcome: Outcome, scores_of: ScoresOf, command: str, conditions: Conditions
) -> Report:
    """Everything that the finished cells say.

    Args:
        scores_of: reads the scores of a finished evaluation, by collection.
        command: that made the report.

    Raises:
        BenchError: cells were scored on different queries.
    """
    weights = plan.weights
    scores: dict[str, BySeed] = {row.name: {} for row in plan.rows}
    for cell in plan.cells:
        if cell.task.key in outcome.finished:
            scores[cell.row][cell.seed] = scores_of(cell.task)
    on = {r.name: _on_all(scores[r.name], scores.get(r.against), weights) for r in plan.rows}
    on_all = with_verdicts(on)
    used = [outcome.finished[t.key] for t in plan.tasks() if t.key in outcome.finished]
    return Report(
        name=plan.ablation.name,
        title=plan.ablation.title,
        command=command,
        seeds=plan.ablation.seeds,
        reference={name: dict(table) for name, table in plan.rows[0].settings.items()},
        rows=tuple(
            RowFound(
                name=row.name,
                against=row.against,
                change=row.change,
                cells=tuple(
                    _cell(cell, outcome, scores[row.name].get(cell.seed, {}))
                    for cell in plan.cells
                    if cell.row == row.name
                ),
                on=on_all[row.name],
            )
            for row in plan.rows
        ),
        axes=plan.axes,
        leaks=plan.leaks,
        differing=plan.differing,
        weights=dict(weights),
        commits=tuple(sorted({record.commit for record in used})),
        seconds=sum(record.cost.seconds for record in used),
        conditions=conditions,
        hypotheses=_hypotheses(plan.ablation.hypotheses, scores, weights),
    )


def _hypotheses(
    hypotheses: Sequence[Hypothesis], scores: Mapping[str, BySeed], weights: Mapping[str, float]
) -> tuple[HypothesisTested, ...]:
    """Each hypothesis on each collection, with p corrected for all of them."""
    on = {
        str(number): _on_all(scores[each.row], scores[each.against], weights)
        for number, each in enumerate(hypotheses)
    }
    return tuple(
        HypothesisTested(row=each.row, against=each.against, expected=each.expected, on=compared)
        for each, compared in zip(hypotheses, with_verdicts(on).values(), strict=True)
    )


def _cell(cell: GridCell, outcome: Outcome, scores: Mapping[str, Scored]) -> CellFound:
    stage, error = outcome.gap(cell)
    return CellFound(
        seed=cell.seed,
        scores={name: float(scored.values.mean()) for name, scored in scores.items()},
        failed_at=stage,
        error=error,
        costs={
            task.stage: outcome.finished[task.key].cost
            for task in cell.task.chain()
            if task.key in outcome.finished
        },
    )


def _on_all(
    own: BySeed, other: BySeed | None, weights: Mapping[str, float]
) -> tuple[RowOnCollection, ...]:
    """A row on each collection, then in their mean where they have one measure."""
    if not own:
        return ()
    names = list(next(iter(own.values())))
    compared = [compare_seeds(name, {name: 1.0}, own, other) for name in names]
    if len(names) > 1 and len({on.measure for on in compared}) == 1:
        shares = weights or dict.fromkeys(names, 1 / len(names))
        compared.append(compare_seeds(MEAN, {name: shares[name] for name in names}, own, other))
    return tuple(compared)


def compare_seeds(
    title: str, shares: Mapping[str, float], own: BySeed, other: BySeed | None
) -> RowOnCollection:
    """A row in the mean of collections, and its difference from another row.

    Args:
        shares: weight of each collection in the mean; they sum to 1.
        own: scores by collection of each seed of the row.
        other: of the row that it is compared with, on the seeds that both have; None for none.

    Raises:
        BenchError: cells were scored on different queries.
    """
    first = next(iter(own.values()))
    seeds = tuple(seed for seed in own if seed in (other or {}))
    on = RowOnCollection(
        collection=title,
        measure=first[next(iter(shares))].measure,
        queries=sum(len(first[name].query_ids) for name in shares),
        score=interval([_matrix(own, list(own), name) for name in shares], list(shares.values())),
        seeds=seeds,
    )
    if other is None or not seeds:
        return on
    return msgspec.structs.replace(on, difference=_difference(shares, own, other, seeds))


def _difference(
    shares: Mapping[str, float], own: BySeed, other: BySeed, seeds: Sequence[int]
) -> Interval:
    """Of recipes over several seeds; of the two checkpoints of a single one."""
    both = {
        name: (_matrix(own, seeds, name), _matrix(other, seeds, name, own[seeds[0]][name]))
        for name in shares
    }
    weights = list(shares.values())
    if len(seeds) > 1:
        return interval([mine - theirs for mine, theirs in both.values()], weights)
    columns = {"row": 0, "against": 1}
    parts = [
        ScoreMatrix(name, "", columns, np.stack([a[0], b[0]], axis=1), RESAMPLING).minus(*columns)
        for name, (a, b) in both.items()
    ]
    test = paired_difference(parts, weights)
    return Interval(
        mean=test.difference, low=test.low, high=test.high, p=test.p, detectable=test.detectable
    )


def _matrix(
    scores: BySeed, seeds: Sequence[int], name: str, alike: Scored | None = None
) -> Float64Array:
    """Scores ``(seeds, queries)`` on a collection.

    Raises:
        BenchError: they are of different queries, or of others than ``alike`` has.
    """
    found = [scores[seed][name] for seed in seeds]
    if len({each.query_ids for each in (*found, alike or found[0])}) > 1:
        raise BenchError(
            f"cells were scored on different queries of {name}",
            "the collection changed between them: delete the older evaluations",
        )
    return np.array([each.values for each in found], dtype=np.float64)


def with_verdicts(
    on: Mapping[str, tuple[RowOnCollection, ...]],
) -> dict[str, tuple[RowOnCollection, ...]]:
    """The rows with p of each collection corrected for all the rows that were compared on it."""
    families: dict[str, dict[str, float]] = {}
    for row, compared in on.items():
        for each in compared:
            if each.difference and each.difference.p is not None:
                families.setdefault(each.collection, {})[row] = each.difference.p
    adjusted = {
        name: dict(zip(family, holm(list(family.values())), strict=True))
        for name, family in families.items()
    }
    return {
        row: tuple(_with_verdict(each, adjusted.get(each.collection, {}).get(row)) for each in all_)
        for row, all_ in on.items()
    }


def _with_verdict(on: RowOnCollection, p: float | None) -> RowOnCollection:
    if on.difference is None:
        return on
    sign = "better" if on.difference.mean > 0 else "worse"
    verdict = "cannot tell" if p is None or p > ALPHA else sign
    return msgspec.structs.replace(on, p_holm=p, verdict=verdict)


def with_sequences(report: Report, plan: Plan, outcome: Outcome, out: Path) -> Report:
    """The report with what its rows gained and forgot, p corrected for all of them.

    Raises:
        BenchError: a result is missing or damaged.
    """
    learnt: dict[str, dict[int, ScoredSequence]] = {}
    for cell in plan.cells:
        if cell.task.key not in outcome.finished:
            continue
        if sequence := read_scored_sequence(cell.task, out):
            learnt.setdefault(cell.row, {})[cell.seed] = sequence
    on = with_verdicts({row: _gained_and_forgotten(by_seed) for row, by_seed in learnt.items()})
    rows = (
        msgspec.structs.replace(row, sequence=_found(learnt[row.name].values(), on[row.name]))
        if row.name in learnt
        else row
        for row in report.rows
    )
    return msgspec.structs.replace(report, rows=tuple(rows))


def _gained_and_forgotten(by_seed: Mapping[int, ScoredSequence]) -> tuple[RowOnCollection, ...]:
    """After the sequence against the start, and against just after each domain's training."""
    learnt = next(iter(by_seed.values())).learnt
    names, after, start, own = learnt.domains, BySeed(), BySeed(), BySeed()
    for seed, sequence in by_seed.items():
        after[seed] = sequence.of({name: learnt.after(name) for name in names})
        start[seed] = sequence.of(dict.fromkeys(names, sequence.start))
        own[seed] = sequence.of({name: learnt.own(name) for name in names})
    pairs = [("gained", names, start)]
    if not learnt.separate:
        pairs.append(("forgotten", names[:-1], own))
    return tuple(
        compare_seeds(title, dict.fromkeys(shared, 1 / len(shared)), after, earlier)
        for title, shared, earlier in pairs
    )


def _found(sequences: Iterable[ScoredSequence], on: tuple[RowOnCollection, ...]) -> SequenceFound:
    first, *_ = sequences = list(sequences)
    losses = zip(*(sequence.learnt.losses for sequence in sequences), strict=True)
    return SequenceFound(
        start=first.start,
        gained=on[0],
        forgotten=on[1] if len(on) > 1 else None,
        losses=dict(zip(first.learnt.domains, map(fmean, losses), strict=True)),
    )


def interval(parts: Sequence[Float64Array], weights: Sequence[float] = (1.0,)) -> Interval:
    """The mean of several collections.

    Args:
        parts: by collection, float64 ``(seeds, queries)`` with the same seeds in the same order:
            scores of a recipe, or differences of two.
        weights: of the collections in the mean; they sum to 1.
    """
    of_seeds = _of_seeds(parts, weights)
    mean = float(of_seeds.mean())
    if len(of_seeds) < 2 or min(part.shape[1] for part in parts) < 2:
        return Interval(mean=mean)
    deviation = float(of_seeds.std(ddof=1))
    error, degrees = standard_error(parts, weights)
    if error <= TINY:
        return Interval(mean=mean, seeds_sd=deviation)
    reach = t_quantile(1 - ALPHA / 2, degrees) * error
    return Interval(
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        p=_two_sided_p(mean / error, degrees),
        seeds_sd=deviation,
        detectable=detectable_effect(error, degrees),
    )


def _two_sided_p(t: float, degrees: float) -> float:
    """p of a t statistic."""
    from scipy.special import stdtr  # late: `list` must answer without scipy

    return float(2 * stdtr(degrees, -abs(t)))


def standard_error(
    parts: Sequence[Float64Array], weights: Sequence[float] = (1.0,)
) -> tuple[float, float]:
    """Standard error of the mean of `interval` and its degrees of freedom, by analysis of variance.

    The seeds' part is the variance of their means over the number of seeds: it includes what a
    seed does to single queries. The queries' part is what the variance of the queries' means has
    beyond that.
    """
    of_seeds = _of_seeds(parts, weights)
    count = len(of_seeds)
    seeds = float(of_seeds.var(ddof=1)) / count
    queries, squares = 0.0, seeds**2 / (count - 1)
    for part, share in zip(parts, weights, strict=True):
        of_queries = part.mean(axis=0)
        rest = part - part.mean(axis=1, keepdims=True) - of_queries + part.mean()
        n = len(of_queries)
        raw = float(of_queries.var(ddof=1)) / n * share**2
        twice = float((rest**2).sum()) / ((count - 1) * (n - 1)) / (count * n) * share**2
        queries += max(0.0, raw - twice)
        squares += raw**2 / (n - 1) + twice**2 / ((count - 1) * (n - 1))
    total = seeds + queries
    degrees = max(1.0, total**2 / squares) if squares else 1.0
    return math.sqrt(total), degrees


def _of_seeds(parts: Sequence[Float64Array], weights: Sequence[float]) -> Float64Array:
    """Mean over the collections for each seed, float64 ``(seeds,)``."""
    means: Float64Array = np.average([part.mean(axis=1) for part in parts], axis=0, weights=weights)
    return means
