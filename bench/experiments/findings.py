"""Statistics of an experiment: from the scores of all cells to its report.

The score of a recipe is a mean over training seeds and over queries. All seeds answer the same
queries, so the two factors are crossed: a resample draws seeds and, for all of them alike, queries.
With the differences ``d[s, q]`` of two recipes trained with the same seeds, the variance of their
mean has three parts,

    seeds / S  +  queries / Q  +  (seeds x queries) / (S Q),

and a test over queries alone, or over seeds alone, covers only one of the first two. Plain
resampling fails with the few seeds that people can afford: its variance is (S - 1) / S of the true
one, it counts the third part three times, and its percentiles cannot leave the range of the seeds.
Here each level is resampled with one unit fewer than it has, which makes its part unbiased
(McCarthy and Snowden, 1985), and the third part is subtracted where it is counted too often (Owen,
2007, on crossed resampling). The interval uses the t distribution with Satterthwaite's (1946)
degrees of freedom. The variance has a closed form, which is used here; the tests also draw it. In
simulations with 150 queries the interval covers the true mean in 93 to 96 of 100 cases with 3
seeds, 94 to 95 with 5, and 88 to 95 with 2. An interval over queries alone covers it in 22 to 96,
depending on the variance of the seeds.

If the queries vary more than the seeds, Satterthwaite's degrees of freedom are almost Q - 1, and p
can be 1e-48. But the variance of the seeds is estimated with S - 1 degrees of freedom, and with few
groups a t test has no more (Donald and Lang, "Inference with Difference-in-Differences and Other
Panel Data", 2007). Reports therefore print p as "< .001", "< .01" or "< .05", the smallest level
that a t test over the seeds' means alone reaches. The verdict and the interval cover seeds and
queries.
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
from bench.evaluation.result_record import Conditions
from bench.experiments.evaluate_stage import CheckpointScores, SequenceScores, read_sequence_scores
from bench.experiments.execute import ExperimentOutcome
from bench.experiments.experiment import CellTask, Experiment, GridCell, GridRow
from bench.experiments.report_record import (
    MEAN,
    CellResult,
    Interval,
    Report,
    RowOnCollection,
    RowResult,
    SequenceResult,
)
from foundation.arrays import Float64Array
from foundation.errors import BenchError

RESAMPLING = Resampling()
TINY = 1e-12

Scores = Mapping[str, CheckpointScores]  # by collection
ReadScores = Callable[[CellTask], Scores]
BySeed = dict[int, Scores]
OnCollections = tuple[RowOnCollection, ...]


def make_report(
    experiment: Experiment,
    outcome: ExperimentOutcome,
    read: ReadScores,
    command: str,
    conditions: Conditions,
) -> Report:
    """Make the report of the finished cells.

    Args:
        experiment: all rows and cells.
        outcome: finished and failed tasks.
        read: function that reads the scores of a finished evaluation, by collection.
        command: command line that makes the report.
        conditions: libraries and machine.

    Raises:
        BenchError: cells were scored on different queries.
    """
    scores: dict[str, BySeed] = {}
    for cell in (*experiment.cells, *experiment.anchors):
        by_seed = scores.setdefault(cell.row, {})
        if cell.task.key in outcome.finished:
            by_seed[cell.seed] = read(cell.task)
    results = _row_results(experiment, outcome, scores)
    finished = [outcome.finished[t.key] for t in experiment.tasks() if t.key in outcome.finished]
    return Report(
        name=experiment.grid.name,
        title=experiment.grid.title,
        command=command,
        seeds=experiment.grid.seeds,
        reference={name: dict(table) for name, table in experiment.rows[0].settings.items()},
        rows=results[: len(experiment.rows)],
        anchors=results[len(experiment.rows) :],
        base_per_seed=experiment.grid.base_per_seed,
        axes=experiment.axes,
        leaks=experiment.leaks,
        differing=experiment.differing,
        weights=dict(experiment.weights),
        commits=tuple(sorted({record.commit for record in finished})),
        seconds=sum(record.cost.seconds for record in finished),
        conditions=conditions,
    )


def _row_results(
    experiment: Experiment, outcome: ExperimentOutcome, scores: Mapping[str, BySeed]
) -> tuple[RowResult, ...]:
    """Return the results of all rows, then of all anchors, with verdicts."""
    anchors = (
        GridRow(cell.row, {cell.task.stage: cell.task.settings}, change="anchor")
        for cell in experiment.anchors
    )
    rows, weights = (*experiment.rows, *anchors), experiment.weights
    cells = (*experiment.cells, *experiment.anchors)
    compared = add_verdicts(
        {row.name: _compare_all(scores[row.name], scores.get(row.against), weights) for row in rows}
    )
    return tuple(
        RowResult(
            name=row.name,
            against=row.against,
            change=row.change,
            cells=_cell_results(row.name, cells, outcome, scores),
            on=compared[row.name],
            settings=dict(row.settings),
        )
        for row in rows
    )


def _cell_results(
    row: str, cells: Sequence[GridCell], outcome: ExperimentOutcome, scores: Mapping[str, BySeed]
) -> tuple[CellResult, ...]:
    """Return the scores, costs, code and error of each cell of a row."""
    results = []
    for cell in (cell for cell in cells if cell.row == row):
        stage, error = outcome.find_gap(cell)
        tasks = [task for task in cell.task.chain() if task.key in outcome.finished]
        by_collection = scores[row].get(cell.seed, {})
        result = CellResult(
            seed=cell.seed,
            scores={name: float(on.values.mean()) for name, on in by_collection.items()},
            failed_at=stage,
            error=error,
            costs={task.stage: outcome.finished[task.key].cost for task in tasks},
            code={task.stage: outcome.finished[task.key].commit for task in tasks},
        )
        results.append(result)
    return tuple(results)


def _compare_all(
    row: BySeed, against: BySeed | None, weights: Mapping[str, float]
) -> OnCollections:
    """Compare a row on each collection, then in their mean if they share one measure."""
    if not row:
        return ()
    names = list(next(iter(row.values())))
    compared = [compare_seeds(name, {name: 1.0}, row, against) for name in names]
    if len(names) > 1 and len({on.measure for on in compared}) == 1:
        shares = weights or dict.fromkeys(names, 1 / len(names))
        compared.append(compare_seeds(MEAN, {name: shares[name] for name in names}, row, against))
    return tuple(compared)


def compare_seeds(
    title: str, shares: Mapping[str, float], row: BySeed, against: BySeed | None
) -> RowOnCollection:
    """Estimate the score of a row in a mean of collections, and its difference from another row.

    Args:
        title: name of the collection or the mean.
        shares: weight of each collection in the mean; they sum to 1.
        row: scores of the row, by seed and collection.
        against: scores of the row that it is compared with, on the seeds that both have; None for
            no comparison.

    Raises:
        BenchError: cells were scored on different queries.
    """
    first = next(iter(row.values()))
    seeds = tuple(seed for seed in row if seed in (against or {}))
    scores = [_score_matrix(row, list(row), name) for name in shares]
    on = RowOnCollection(
        collection=title,
        measure=first[next(iter(shares))].measure,
        queries=sum(len(first[name].query_ids) for name in shares),
        score=estimate_interval(scores, list(shares.values())),
        seeds=seeds,
    )
    if against is None or not seeds:
        return on
    return msgspec.structs.replace(on, difference=_difference(shares, row, against, seeds))


def _difference(
    shares: Mapping[str, float], row: BySeed, against: BySeed, seeds: Sequence[int]
) -> Interval:
    """Estimate a difference: of two recipes with several seeds, of two checkpoints with one."""
    scores = {name: _score_matrix(row, seeds, name) for name in shares}
    others = {name: _score_matrix(against, seeds, name, row[seeds[0]][name]) for name in shares}
    weights = list(shares.values())
    if len(seeds) > 1:
        return estimate_interval([scores[name] - others[name] for name in shares], weights)
    columns = {"row": 0, "against": 1}
    parts = [
        ScoreMatrix(name, "", columns, np.stack([a[0], b[0]], axis=1), RESAMPLING).minus(*columns)
        for name, a, b in zip(shares, scores.values(), others.values(), strict=True)
    ]
    test = paired_difference(parts, weights)
    return Interval(
        mean=test.difference, low=test.low, high=test.high, p=test.p, detectable=test.detectable
    )


def _score_matrix(
    scores: BySeed, seeds: Sequence[int], name: str, alike: CheckpointScores | None = None
) -> Float64Array:
    """Return scores on a collection, float64 ``(seeds, queries)``.

    Raises:
        BenchError: the cells have different queries, or other queries than ``alike``.
    """
    found = [scores[seed][name] for seed in seeds]
    if len({each.query_ids for each in (*found, alike or found[0])}) > 1:
        raise BenchError(
            f"cells were scored on different queries of {name}",
            "delete the older evaluations, because the collection has changed",
        )
    return np.array([each.values for each in found], dtype=np.float64)


def add_verdicts(on: Mapping[str, OnCollections]) -> dict[str, OnCollections]:
    """Add verdicts to rows, with p-values corrected over all rows compared on a collection.

    Args:
        on: results by row.
    """
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
    """Add the corrected p-value and its verdict at 5 %."""
    if on.difference is None:
        return on
    sign = "better" if on.difference.mean > 0 else "worse"
    verdict = "cannot tell" if p is None or p > ALPHA else sign
    return msgspec.structs.replace(on, p_holm=p, verdict=verdict)


def add_sequences(
    report: Report, experiment: Experiment, outcome: ExperimentOutcome, out: Path
) -> Report:
    """Add gain and forgetting of rows with a sequence, with p-values corrected over all rows.

    Args:
        report: report of the finished cells.
        experiment: all rows and cells.
        outcome: finished and failed tasks.
        out: folder of all tasks.

    Raises:
        BenchError: a result is missing or damaged.
    """
    by_row: dict[str, dict[int, SequenceScores]] = {}
    for cell in experiment.cells:
        is_finished = cell.task.key in outcome.finished
        if is_finished and (sequence := read_sequence_scores(cell.task, out)):
            by_row.setdefault(cell.row, {})[cell.seed] = sequence
    on = add_verdicts({row: _gain_and_forgetting(by_seed) for row, by_seed in by_row.items()})
    rows = []
    for row in report.rows:
        if row.name in by_row:
            found = _sequence_result(by_row[row.name].values(), on[row.name])
            row = msgspec.structs.replace(row, sequence=found)
        rows.append(row)
    return msgspec.structs.replace(report, rows=tuple(rows))


def _gain_and_forgetting(by_seed: Mapping[int, SequenceScores]) -> OnCollections:
    """Compare the end of a sequence with its start, and with the training on each domain."""
    sequence = next(iter(by_seed.values())).sequence
    names, at_end, at_start, after_training = sequence.domains, BySeed(), BySeed(), BySeed()
    for seed, scores in by_seed.items():
        at_end[seed] = scores.select({name: sequence.searched_with(name) for name in names})
        at_start[seed] = scores.select(dict.fromkeys(names, scores.start))
        after_training[seed] = scores.select({name: sequence.trained_on(name) for name in names})
    pairs = [("gained", names, at_start)]
    if not sequence.separate:
        pairs.append(("forgotten", names[:-1], after_training))
    return tuple(
        compare_seeds(title, dict.fromkeys(shared, 1 / len(shared)), at_end, earlier)
        for title, shared, earlier in pairs
    )


def _sequence_result(sequences: Iterable[SequenceScores], on: OnCollections) -> SequenceResult:
    """Return gain, forgetting and mean losses of a row's sequences."""
    first, *_ = sequences = list(sequences)
    losses = zip(*(scores.sequence.losses for scores in sequences), strict=True)
    return SequenceResult(
        start=first.start,
        gained=on[0],
        forgotten=on[1] if len(on) > 1 else None,
        losses=dict(zip(first.sequence.domains, map(fmean, losses), strict=True)),
    )


def estimate_interval(parts: Sequence[Float64Array], weights: Sequence[float] = (1.0,)) -> Interval:
    """Estimate the mean of several collections, with its 95 % interval and p-value.

    Args:
        parts: by collection, float64 ``(seeds, queries)``, with the same seeds in the same order:
            scores of a recipe, or differences of two.
        weights: weights of the collections in the mean; they sum to 1.
    """
    of_seeds = _seed_means(parts, weights)
    mean = float(of_seeds.mean())
    if len(of_seeds) < 2 or min(part.shape[1] for part in parts) < 2:
        return Interval(mean=mean)
    deviation = float(of_seeds.std(ddof=1))
    error, degrees = standard_error(parts, weights)
    if error <= TINY:
        return Interval(mean=mean, seeds_sd=deviation)
    count = len(of_seeds)
    t_of_seeds = mean / max(deviation, TINY) * math.sqrt(count)
    reach = t_quantile(1 - ALPHA / 2, degrees) * error
    return Interval(
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        p=_two_sided_p(mean / error, degrees),
        p_seeds=_two_sided_p(t_of_seeds, count - 1),
        seeds_sd=deviation,
        detectable=detectable_effect(error, degrees),
    )


def _two_sided_p(t: float, degrees: float) -> float:
    """Return the two-sided p-value of a t statistic."""
    from scipy.special import stdtr  # imported late, so that `list` works without scipy

    return float(2 * stdtr(degrees, -abs(t)))


def standard_error(
    parts: Sequence[Float64Array], weights: Sequence[float] = (1.0,)
) -> tuple[float, float]:
    """Return the standard error of a mean and its degrees of freedom, by analysis of variance.

    The seeds' part is the variance of the seeds' means over the number of seeds. It includes the
    interaction of seeds with queries. The queries' part is the rest of the variance of the queries'
    means.

    Args:
        parts: by collection, float64 ``(seeds, queries)``, as for `estimate_interval`.
        weights: weights of the collections in the mean; they sum to 1.
    """
    of_seeds = _seed_means(parts, weights)
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


def _seed_means(parts: Sequence[Float64Array], weights: Sequence[float]) -> Float64Array:
    """Return the mean over collections for each seed, float64 ``(seeds,)``."""
    means: Float64Array = np.average([part.mean(axis=1) for part in parts], axis=0, weights=weights)
    return means
