"""The report of an experiment, made from the scores of its finished cells."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from statistics import fmean

import msgspec
import numpy as np

from bench.comparing.statistics import ALPHA, Resampling, ScoreMatrix, holm, paired_difference
from bench.evaluation.result_record import Conditions
from bench.experiments.experiment import CellTask, Experiment, ExperimentOutcome, GridCell
from bench.experiments.grid import Axis, AxisResult
from bench.experiments.report_record import (
    MEAN,
    CellResult,
    Effect,
    Report,
    RowOnCollection,
    RowResult,
    SequenceResult,
)
from bench.experiments.seed_statistics import SeedEstimate, estimate_interval
from foundation.arrays import Float64Array

RESAMPLING = Resampling()


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
                yield " x ".join(changes), order > 1, reduce(np.multiply.outer, vectors).ravel()


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
