"""The report of an experiment: its records, and the statistics that make it from scores.

A score is a mean over training seeds and queries. All seeds answer the same queries, so a resample
draws seeds and, for all of them alike, queries. The variance of a mean difference is seeds / S +
queries / Q + (seeds x queries) / (S Q). Plain resampling fails with few seeds: its variance is (S -
1) / S of the true one, and it counts the third part three times. Here each level is resampled with
one unit fewer than it has (McCarthy and Snowden, 1985), and the third part is subtracted where it
is counted too often (Owen, 2007). The interval uses the t distribution with Satterthwaite's (1946)
degrees of freedom. The variance has a closed form; the tests also draw it. In simulations with 150
queries the interval covers the true mean in 93 to 96 of 100 cases with 3 seeds, 94 to 95 with 5,
and 88 to 95 with 2; an interval over queries alone in 22 to 96.

If queries vary more than seeds, these degrees of freedom are almost Q - 1. But a t test with few
groups has S - 1 (Donald and Lang, 2007). Reports therefore print p as "< .001", "< .01" or "< .05",
the smallest level that a t test over the seeds' means alone reaches.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from statistics import fmean

import msgspec
import numpy as np

from bench.comparing.statistics import (
    ALPHA,
    Estimate,
    Resampling,
    ScoreMatrix,
    detectable_effect,
    holm,
    paired_difference,
    t_quantile,
)
from bench.evaluation.result_record import Conditions
from bench.experiments.experiment import CellTask, Cost, Experiment, ExperimentOutcome, GridCell
from bench.experiments.grid import Axis, AxisResult, TomlTable
from foundation.arrays import Float64Array
from foundation.records import Record

# Schemas of earlier versions: 3 adds gain and forgetting, 5 costs and differences as a record each,
# 7 points of an axis by their labels, 8 settings of each row and p of the seeds alone. 9
# has no hypotheses, 10 no anchors and no code of each cell, 11 factors and their effects.
SCHEMA = 11
MEAN = "mean"  # instead of a collection


class SeedEstimate(Estimate, kw_only=True):
    """A mean over collections, seeds and queries, with its interval over other seeds and queries.

    Attributes:
        value: the mean; ``mean`` in JSON.
        p: two-sided p-value of a mean of 0; None if there is no interval.
        p_seeds: two-sided p-value of a t test over the seeds' means alone, whose degrees of freedom
            are the seeds less one; None with one seed. p is not printed below what it supports.
        seeds_sd: standard deviation of the seeds' means; None with one seed.
        detectable: smallest mean that is detected with a power of 80 % at 5 %, two-sided.
    """

    value: float = msgspec.field(name="mean")
    p: float | None = None
    p_seeds: float | None = None
    seeds_sd: float | None = None
    detectable: float | None = None


class CellResult(Record, kw_only=True):
    """One row with one seed.

    Attributes:
        seed: seed of the training.
        scores: mean of the main measure by collection; empty for a gap.
        failed_at, error: stage and reason of a gap; "" for a finished cell.
        costs: costs of finished stages by name. A stage shared by several cells counts in each.
    """

    seed: int
    scores: dict[str, float]
    failed_at: str = ""
    error: str = ""
    costs: dict[str, Cost] = {}


class RowOnCollection(Record, kw_only=True):
    """A row on one collection, or in the mean of all (`MEAN`).

    Attributes:
        collection: name of the collection, or `MEAN`.
        measure: main measure.
        queries: number of queries.
        score: score over the finished seeds; None for a gap.
        seeds: seeds that the row shares with the row it is compared with. With a single seed the
            difference is of two checkpoints, not of two recipes.
        difference: difference from the compared row; None without a comparison.
        p_holm: p-value, corrected over all rows of the experiment on this collection.
        verdict: ``better``, ``worse`` or ``cannot tell``, by ``p_holm`` at 5 %; "" without a
            comparison.
    """

    collection: str
    measure: str
    queries: int
    score: SeedEstimate | None
    seeds: tuple[int, ...] = ()
    difference: SeedEstimate | None = None
    p_holm: float | None = None
    verdict: str = ""


class SequenceResult(Record, kw_only=True):
    """Gain and forgetting of a row that was trained on one domain after the other.

    Attributes:
        start: initial model of the sequence.
        gained: mean over the domains after the sequence, compared with the initial model.
        forgotten: mean over all domains but the last after the sequence, compared with the
            checkpoint right after the domain's own training; None if each domain keeps its own
            model.
        losses: loss of masked language modelling at the end of each domain's training, in nats;
            mean over the seeds.
    """

    start: str
    gained: RowOnCollection
    forgotten: RowOnCollection | None
    losses: dict[str, float]


class RowResult(Record, kw_only=True):
    """One recipe.

    Attributes:
        name: name of the row.
        against: row that it differs from in one field; "" for the reference.
        change: the field and its two values; "" for the reference.
        cells: one result for each seed.
        on: results by collection, then in their mean.
        sequence: None without a sequence of domains, or if no cell is finished.
        settings: complete settings by stage.
    """

    name: str
    against: str
    change: str
    cells: tuple[CellResult, ...]
    on: tuple[RowOnCollection, ...]
    sequence: SequenceResult | None = None
    settings: dict[str, TomlTable] = {}

    def on_collection(self, collection: str) -> RowOnCollection | None:
        """Return the result on ``collection``, or None."""
        return next((on for on in self.on if on.collection == collection), None)


class Effect(Record, kw_only=True):
    """The main effect of a factor, or the interaction of two, between two levels of each.

    A main effect is the mean of the cells with one level minus the mean of those with the first. An
    interaction is the difference between the effects of one factor at two levels of the other, in
    the mean over all further factors.

    Attributes:
        change: factors with the first and the other level of each.
        is_interaction: True for an interaction of two factors.
        on: by collection, then in their mean: the mean of the cells with the other level (of an
            interaction, None) and the effect as a difference; empty while no seed has all cells.
    """

    change: str
    is_interaction: bool
    on: tuple[RowOnCollection, ...]

    def on_collection(self, collection: str) -> RowOnCollection | None:
        """Return the result on ``collection``, or None."""
        return next((on for on in self.on if on.collection == collection), None)


class Report(Record, kw_only=True):
    """A complete report.

    Attributes:
        name: name of the folder.
        title: title of the report.
        command: command line that made it.
        seeds: seeds of every row.
        reference: complete settings of the reference, by stage.
        rows: rows, the reference first.
        axes: axes with their rows, and the cells of all factors.
        effects: effects of the factors.
        leaks: results of the leak check, a sentence each.
        commits: code that ran the tasks, each once: a git commit, marked if it was modified, or an
            installed version.
        seconds: wall-clock time of all distinct tasks. A task shared by several cells counts once.
        conditions: libraries and machine.
        differing: collections that differ from the published ones, a sentence each.
        weights: weights of the collections in their mean; empty for equal weights.
        base_per_seed: see `Grid`.
    """

    schema: int = SCHEMA
    name: str
    title: str
    command: str
    seeds: tuple[int, ...]
    reference: dict[str, TomlTable]
    rows: tuple[RowResult, ...]
    axes: tuple[AxisResult, ...]
    leaks: tuple[str, ...]
    commits: tuple[str, ...]
    seconds: float
    conditions: Conditions
    differing: tuple[str, ...] = ()
    weights: dict[str, float] = {}
    base_per_seed: bool = False
    effects: tuple[Effect, ...] = ()

    @property
    def collections(self) -> tuple[str, ...]:
        """Collections of all rows, then `MEAN` if there is one."""
        names = dict.fromkeys(on.collection for row in self.rows for on in row.on)
        return (*(name for name in names if name != MEAN), *([MEAN] if MEAN in names else []))

    def is_mean(self, name: str) -> bool:
        """Return True if ``name`` is the mean."""
        return name == MEAN

    def seed_scores(self, row: RowResult, collection: str) -> list[float]:
        """Return the score of each finished seed of ``row`` on ``collection`` or `MEAN`."""
        finished = [cell.scores for cell in row.cells if cell.scores]
        if collection != MEAN:
            return [scores[collection] for scores in finished if collection in scores]
        return [
            sum(self.weights.get(name, 1 / len(scores)) * scores[name] for name in scores)
            for scores in finished
        ]

    @property
    def trains(self) -> bool:
        """True if rows are recipes rather than uses of one model."""
        return any(stage != "evaluate" for stage in self.reference)

    @property
    def critical_t(self) -> float:
        """Standard errors of two seeds or more at which a t test over them has p = 5 %."""
        return t_quantile(1 - ALPHA / 2, len(self.seeds) - 1)

    @property
    def gaps(self) -> int:
        """Number of cells without a score."""
        return sum(not cell.scores for row in self.rows for cell in row.cells)


RESAMPLING = Resampling()
TINY = 1e-12


@dataclass(frozen=True)
class CheckpointScores:
    """Scores of a checkpoint on one collection; ``values`` is float64 ``(queries,)``."""

    measure: str
    values: Float64Array


MainScores = Mapping[str, CheckpointScores]  # by collection


@dataclass(frozen=True)
class CellScores:
    """Scores of a finished cell, and those before them if it learnt one domain after the other.

    ``before`` are those of the model ``start``, and ``learnt`` those right after the training on
    each domain but the last; it is empty if each domain keeps its own model. ``losses`` are of
    masked language modelling at the end of each domain's training, in nats.
    """

    on: MainScores
    start: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)
    before: MainScores = field(default_factory=dict)
    learnt: MainScores = field(default_factory=dict)


ReadScores = Callable[[CellTask], CellScores]
BySeed = dict[int, MainScores]
OnCollections = tuple[RowOnCollection, ...]


def make_report(
    experiment: Experiment,
    outcome: ExperimentOutcome,
    read: ReadScores,
    command: str,
    conditions: Conditions,
) -> Report:
    """Make the report of the finished cells, whose scores ``read`` returns."""
    scores: dict[str, dict[int, CellScores]] = {}
    for cell in experiment.cells:
        by_seed = scores.setdefault(cell.row, {})
        if cell.task.key in outcome.finished:
            by_seed[cell.seed] = read(cell.task)
    last = {row: {seed: each.on for seed, each in cells.items()} for row, cells in scores.items()}
    rows, weights = experiment.rows, experiment.weights
    compared = add_verdicts(
        {row.name: _compare_all(last[row.name], last.get(row.against), weights) for row in rows}
    )
    sequences = add_verdicts({row: _compare_sequence(cells) for row, cells in scores.items()})
    results = tuple(
        RowResult(
            name=row.name,
            against=row.against,
            change=row.change,
            cells=tuple(
                _cell_result(cell, outcome, last[row.name].get(cell.seed, {}))
                for cell in experiment.cells
                if cell.row == row.name
            ),
            on=compared[row.name],
            sequence=_sequence_result(scores[row.name], sequences[row.name]),
            settings=dict(row.settings),
        )
        for row in rows
    )
    finished = [outcome.finished[t.key] for t in experiment.tasks() if t.key in outcome.finished]
    return Report(
        name=experiment.grid.name,
        title=experiment.grid.title,
        command=command,
        seeds=experiment.grid.seeds,
        reference={name: dict(table) for name, table in experiment.rows[0].settings.items()},
        rows=results,
        base_per_seed=experiment.grid.base_per_seed,
        axes=experiment.axes,
        leaks=experiment.leaks,
        differing=experiment.differing,
        weights=dict(weights),
        effects=tuple(
            effect
            for axis in experiment.axes
            if axis.factors
            for effect in estimate_effects(axis, last, weights)
        ),
        commits=tuple(sorted({record.commit for record in finished})),
        seconds=sum(record.cost.seconds for record in finished),
        conditions=conditions,
    )


def make_contrasts(factors: Sequence[Axis]) -> Iterator[tuple[str, bool, Float64Array]]:
    """Yield the main effects of ``factors``, then the interactions of two.

    Each is its change of levels, True for an interaction, and coefficients of the cells, float64
    ``(cells,)``: products of one vector for each factor, which takes the difference of two levels
    or the mean over all.
    """
    for order in (1, 2):
        for chosen in itertools.combinations(factors, order):
            for labels in itertools.product(*(list(factor.points)[1:] for factor in chosen)):
                level = dict(zip((factor.title for factor in chosen), labels, strict=True))
                vectors, changes = [], []
                for factor in factors:
                    known = list(factor.points)
                    vector = np.full(len(known), 1 / len(known))
                    if factor in chosen:
                        vector = np.zeros(len(known))
                        vector[[0, known.index(level[factor.title])]] = -1, 1
                        changes.append(f"{factor.title}: {known[0]} -> {level[factor.title]}")
                    vectors.append(vector)
                yield "; ".join(changes), order > 1, reduce(np.multiply.outer, vectors).ravel()


def estimate_effects(
    axis: AxisResult, scores: Mapping[str, BySeed], weights: Mapping[str, float]
) -> tuple[Effect, ...]:
    """Estimate the effects of the factors of ``axis`` from the scores of each row, by seed."""
    cells = [scores[row] for row in axis.points.values()]
    seeds = [seed for seed in cells[0] if all(seed in cell for cell in cells)]

    def add(shares: Float64Array) -> BySeed:
        return {seed: _add_scores([cell[seed] for cell in cells], shares) for seed in seeds}

    contrasts = list(make_contrasts(axis.factors))
    compared = {
        change: _compare_all(add(shares.clip(0)), add((-shares).clip(0)), weights)
        for change, _, shares in contrasts
    }
    verdicts = add_verdicts(compared)
    return tuple(
        Effect(
            change=change,
            is_interaction=is_interaction,
            on=tuple(
                msgspec.structs.replace(on, score=None) if is_interaction else on
                for on in verdicts[change]
            ),
        )
        for change, is_interaction, _ in contrasts
    )


def _add_scores(cells: Sequence[MainScores], shares: Float64Array) -> MainScores:
    """Return the sum of the scores of ``cells``, each multiplied by its share."""
    return {
        name: replace(first, values=shares @ np.array([cell[name].values for cell in cells]))
        for name, first in cells[0].items()
    }


def _cell_result(cell: GridCell, outcome: ExperimentOutcome, scores: MainScores) -> CellResult:
    stage, error = outcome.find_gap(cell)
    tasks = [task for task in cell.task.chain() if task.key in outcome.finished]
    return CellResult(
        seed=cell.seed,
        scores={name: float(on.values.mean()) for name, on in scores.items()},
        failed_at=stage,
        error=error,
        costs={task.stage: outcome.finished[task.key].cost for task in tasks},
    )


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


def _compare_sequence(cells: Mapping[int, CellScores]) -> OnCollections:
    last = {seed: each.on for seed, each in cells.items()}
    before = {seed: each.before for seed, each in cells.items() if each.before}
    learnt = {seed: each.learnt for seed, each in cells.items() if each.learnt}
    return tuple(
        compare_seeds(title, dict.fromkeys(domains, 1 / len(domains)), last, earlier)
        for title, earlier in (("gained", before), ("forgotten", learnt))
        if (domains := next(iter(earlier.values()), {}))
    )


def _sequence_result(cells: Mapping[int, CellScores], on: OnCollections) -> SequenceResult | None:
    if not on:
        return None
    first = next(iter(cells.values()))
    return SequenceResult(
        start=first.start,
        gained=on[0],
        forgotten=on[1] if len(on) > 1 else None,
        losses={name: fmean(each.losses[name] for each in cells.values()) for name in first.losses},
    )


def compare_seeds(
    title: str, shares: Mapping[str, float], row: BySeed, against: BySeed | None
) -> RowOnCollection:
    """Estimate the score of a row in a mean of collections, and its difference from another row.

    ``shares`` has the weight of each collection in the mean ``title``. ``row`` and ``against`` have
    scores by seed and collection. Seeds that both have are compared.
    """
    first = [next(iter(row.values()))[name] for name in shares]
    seeds = tuple(seed for seed in row if seed in (against or {}))
    weights = list(shares.values())
    return RowOnCollection(
        collection=title,
        measure=first[0].measure,
        queries=sum(len(on.values) for on in first),
        score=estimate_interval([_score_matrix(row, row, name) for name in shares], weights),
        seeds=seeds,
        difference=_difference(shares, row, against, seeds) if against and seeds else None,
    )


def _difference(
    shares: Mapping[str, float], row: BySeed, against: BySeed, seeds: Sequence[int]
) -> SeedEstimate:
    """Estimate a difference: of two recipes with several seeds, of two checkpoints with one."""
    weights = list(shares.values())
    pairs = {
        name: [_score_matrix(scores, seeds, name) for scores in (row, against)] for name in shares
    }
    if len(seeds) > 1:
        return estimate_interval([a - b for a, b in pairs.values()], weights)
    columns = {"row": 0, "against": 1}
    parts = [
        ScoreMatrix(name, "", columns, np.concatenate(pair).T, RESAMPLING).minus(*columns)
        for name, pair in pairs.items()
    ]
    test = paired_difference(parts, weights)
    return SeedEstimate(
        value=test.difference, low=test.low, high=test.high, p=test.p, detectable=test.detectable
    )


def _score_matrix(scores: BySeed, seeds: Iterable[int], name: str) -> Float64Array:
    """Return scores on a collection, float64 ``(seeds, queries)``.

    Queries are the same in all cells, because their hash is part of the key of an evaluation.
    """
    return np.array([scores[seed][name].values for seed in seeds])


def add_verdicts(on: Mapping[str, OnCollections]) -> dict[str, OnCollections]:
    """Add verdicts at 5 %, with p-values corrected over all rows compared on a collection."""
    families: dict[str, dict[str, float]] = {}
    for row, compared in on.items():
        for each in compared:
            if each.difference and each.difference.p is not None:
                families.setdefault(each.collection, {})[row] = each.difference.p
    adjusted = {
        (name, row): p
        for name, family in families.items()
        for row, p in zip(family, holm(list(family.values())), strict=True)
    }
    return {
        row: tuple(_with_verdict(each, adjusted.get((each.collection, row))) for each in compared)
        for row, compared in on.items()
    }


def _with_verdict(on: RowOnCollection, p: float | None) -> RowOnCollection:
    if on.difference is None:
        return on
    sign = "better" if on.difference.value > 0 else "worse"
    verdict = "cannot tell" if p is None or p > ALPHA else sign
    return msgspec.structs.replace(on, p_holm=p, verdict=verdict)


def estimate_interval(
    parts: Sequence[Float64Array], weights: Sequence[float] = (1.0,)
) -> SeedEstimate:
    """Estimate the mean of several collections, with its 95 % interval and p-value.

    Args:
        parts: by collection, float64 ``(seeds, queries)``, with the same seeds in the same order:
            scores of a recipe, or differences of two.
        weights: weights of the collections in the mean; they sum to 1.
    """
    of_seeds = _seed_means(parts, weights)
    mean = float(of_seeds.mean())
    if len(of_seeds) < 2 or min(part.shape[1] for part in parts) < 2:
        return SeedEstimate(value=mean)
    deviation = float(of_seeds.std(ddof=1))
    error, degrees = standard_error(parts, weights)
    if error <= TINY:
        return SeedEstimate(value=mean, seeds_sd=deviation)
    count = len(of_seeds)
    t_of_seeds = mean / max(deviation, TINY) * math.sqrt(count)
    reach = t_quantile(1 - ALPHA / 2, degrees) * error
    return SeedEstimate(
        value=mean,
        low=mean - reach,
        high=mean + reach,
        p=_two_sided_p(mean / error, degrees),
        p_seeds=_two_sided_p(t_of_seeds, count - 1),
        seeds_sd=deviation,
        detectable=detectable_effect(error, degrees),
    )


def _two_sided_p(t: float, degrees: float) -> float:
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
