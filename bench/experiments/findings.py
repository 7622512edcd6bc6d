"""From the scores of all cells to the record of an ablation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from bench.comparing.statistics import (
    ALPHA,
    PairedScores,
    Resampling,
    ScoreMatrix,
    holm,
    paired,
)
from bench.experiments.execute import Outcome
from bench.experiments.grid import Axis, Hypothesis
from bench.experiments.plan import CellTask, GridCell, Plan
from bench.experiments.report_record import (
    MEAN,
    AxisFound,
    CellFound,
    HypothesisTested,
    Report,
    ReportedPoint,
    RowFound,
    RowOnCollection,
)
from bench.experiments.rows import GridRow
from bench.experiments.twolevel import interval
from bench.results.result import Conditions
from foundation.arrays import Float64Array
from foundation.errors import BenchError


@dataclass(frozen=True)
class Scored:
    """A checkpoint on one collection.

    Attributes:
        values: float64 ``(queries,)`` of the measure.
    """

    measure: str
    query_ids: tuple[str, ...]
    values: Float64Array


@dataclass(frozen=True)
class MadeBy:
    """Command, checks and conditions that a report was made with.

    Attributes:
        command, leaks, differing, weights: see `Report`.
    """

    command: str
    leaks: tuple[str, ...]
    conditions: Conditions
    resampling: Resampling = field(default_factory=Resampling)
    differing: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)


ScoresOf = Callable[[CellTask], Mapping[str, Scored]]
BySeed = dict[int, Mapping[str, Scored]]


def report_of(plan: Plan, outcome: Outcome, scores_of: ScoresOf, made: MadeBy) -> Report:
    """Everything that the finished cells say.

    Args:
        scores_of: reads the scores of a finished evaluation, by collection.

    Raises:
        BenchError: cells were scored on different queries.
    """
    scores: dict[str, BySeed] = {row.name: {} for row in plan.rows}
    for cell in plan.cells:
        if cell.task.key in outcome.finished:
            scores[cell.row][cell.seed] = scores_of(cell.task)
    on = {row.name: _on_all(scores[row.name], scores.get(row.against), made) for row in plan.rows}
    on_all = with_verdicts(on)
    published = plan.ablation.published
    used = [
        outcome.finished[key]
        for key in dict.fromkeys(t.key for t in plan.tasks())
        if key in outcome.finished
    ]
    return Report(
        name=plan.ablation.name,
        title=plan.ablation.title,
        command=made.command,
        seeds=plan.ablation.seeds,
        reference={name: dict(table) for name, table in plan.rows[0].settings.items()},
        rows=tuple(
            _row(row, plan, outcome, scores, on_all[row.name], made.weights) for row in plan.rows
        ),
        axes=tuple(_axis(axis, plan) for axis in plan.ablation.axes),
        source=published.source if published else "",
        published_on=published.collection if published else "",
        leaks=made.leaks,
        differing=made.differing,
        weights=dict(made.weights),
        commits=tuple(sorted({record.commit for record in used})),
        seconds=sum(record.cost.seconds for record in used),
        conditions=made.conditions,
        hypotheses=_hypotheses(plan.ablation.hypotheses, scores, made),
    )


def _hypotheses(
    hypotheses: Sequence[Hypothesis], scores: Mapping[str, BySeed], made: MadeBy
) -> tuple[HypothesisTested, ...]:
    """Each hypothesis on each collection, with p corrected for all of them."""
    on = {
        str(number): _on_all(scores[each.row], scores[each.against], made)
        for number, each in enumerate(hypotheses)
    }
    return tuple(
        HypothesisTested(row=each.row, against=each.against, expected=each.expected, on=compared)
        for each, compared in zip(hypotheses, with_verdicts(on).values(), strict=True)
    )


def _row(
    row: GridRow,
    plan: Plan,
    outcome: Outcome,
    scores: Mapping[str, BySeed],
    on: tuple[RowOnCollection, ...],
    weights: Mapping[str, float],
) -> RowFound:
    cells = [cell for cell in plan.cells if cell.row == row.name]
    return RowFound(
        name=row.name,
        against=row.against,
        change=row.change,
        cells=tuple(_cell(cell, outcome, scores[row.name], weights) for cell in cells),
        on=on,
        published=_published(row.name, plan),
    )


def _published(row: str, plan: Plan) -> dict[str, float]:
    """Figures of the first axis that shows this row and has any."""
    for axis in plan.ablation.axes:
        for point in plan.points[axis.title]:
            if point.row == row and point.label in axis.published:
                return axis.published[point.label]
    return {}


def _axis(axis: Axis, plan: Plan) -> AxisFound:
    points = [
        ReportedPoint(point.label, point.row, axis.published.get(point.label, {}))
        for point in plan.points[axis.title]
    ]
    against = axis.against or plan.rows[0].name
    return AxisFound(title=axis.title, field=axis.field, against=against, points=tuple(points))


def _cell(
    cell: GridCell, outcome: Outcome, scores: BySeed, weights: Mapping[str, float]
) -> CellFound:
    stage, error = outcome.gap(cell)
    costs = {
        task.stage: outcome.finished[task.key].cost
        for task in cell.task.chain()
        if task.key in outcome.finished
    }
    means = {
        name: float(scored.values.mean()) for name, scored in scores.get(cell.seed, {}).items()
    }
    weighted = means and weights
    return CellFound(
        seed=cell.seed,
        scores=means,
        mean=sum(weights[name] * mean for name, mean in means.items()) if weighted else None,
        failed_at=stage,
        error=error,
        seconds={name: cost.seconds for name, cost in costs.items()},
        tokens={name: cost.tokens for name, cost in costs.items() if cost.tokens},
        parameters={name: cost.parameters for name, cost in costs.items() if cost.parameters},
        of_parameters={name: c.of_parameters for name, c in costs.items() if c.of_parameters},
        saved_bytes={name: cost.saved_bytes for name, cost in costs.items() if cost.saved_bytes},
    )


def _on_all(own: BySeed, other: BySeed | None, made: MadeBy) -> tuple[RowOnCollection, ...]:
    """A row on each collection, then in their mean where they have one measure."""
    if not own:
        return ()
    names = list(next(iter(own.values())))
    compared = [compare_seeds(name, {name: 1.0}, own, other, made.resampling) for name in names]
    if len(names) > 1 and len({on.measure for on in compared}) == 1:
        weights = made.weights or dict.fromkeys(names, 1 / len(names))
        shares = {name: weights[name] for name in names}
        compared.append(compare_seeds(MEAN, shares, own, other, made.resampling))
    return tuple(compared)


def compare_seeds(
    title: str,
    shares: Mapping[str, float],
    own: BySeed,
    other: BySeed | None,
    resampling: Resampling,
) -> RowOnCollection:
    """A row in the mean of collections, and its difference from another row.

    Args:
        shares: weight of each collection in the mean; they sum to 1.
        own: scores by collection of each seed of the row.
        other: of the row that it is compared with, on the seeds that both have; None for none.

    Raises:
        BenchError: cells were scored on different queries.
    """
    names, weights = list(shares), list(shares.values())
    first = next(iter(own.values()))
    seeds = tuple(seed for seed in own if seed in (other or {}))
    score = interval([_matrix(own, list(own), name) for name in names], weights)
    on = RowOnCollection(
        collection=title,
        measure=first[names[0]].measure,
        queries=sum(len(first[name].query_ids) for name in names),
        score=score,
        seeds=seeds,
    )
    if other is None or not seeds:
        return on
    both = [(_matrix(own, seeds, name), _matrix(other, seeds, name)) for name in names]
    for name in names:
        _check_same_queries(name, [own[seeds[0]][name], other[seeds[0]][name]])
    if len(seeds) > 1:
        recipes = interval([mine - theirs for mine, theirs in both], weights)
        return msgspec.structs.replace(on, recipes=recipes)
    parts = [
        _paired_part(name, on.measure, np.stack([mine[0], theirs[0]], axis=1), resampling)
        for name, (mine, theirs) in zip(names, both, strict=True)
    ]
    return msgspec.structs.replace(on, checkpoints=paired(parts, weights, title))


def _matrix(scores: BySeed, seeds: Sequence[int], name: str) -> Float64Array:
    """Scores ``(seeds, queries)`` on a collection."""
    _check_same_queries(name, [scores[seed][name] for seed in seeds])
    return np.array([scores[seed][name].values for seed in seeds], dtype=np.float64)


def _check_same_queries(name: str, scored: Sequence[Scored]) -> None:
    if len({each.query_ids for each in scored}) > 1:
        raise BenchError(
            f"cells were scored on different queries of {name}",
            "the collection changed between them: delete the older evaluations",
        )


def _paired_part(
    name: str, measure: str, scores: Float64Array, resampling: Resampling
) -> PairedScores:
    """The two columns of scores ``(queries, 2)``, subtracted."""
    return ScoreMatrix(name, measure, {"row": 0, "against": 1}, scores, resampling).minus(
        "row", "against"
    )


def with_verdicts(
    on: Mapping[str, tuple[RowOnCollection, ...]],
) -> dict[str, tuple[RowOnCollection, ...]]:
    """The rows with p of each collection corrected for all the rows that were compared on it."""
    keyed = {(row, each.collection): _p(each) for row, compared in on.items() for each in compared}
    adjusted: dict[tuple[str, str], float] = {}
    for name in dict.fromkeys(collection for _, collection in keyed):
        family = {key: p for key, p in keyed.items() if key[1] == name and p is not None}
        adjusted |= dict(zip(family, holm(list(family.values())), strict=True))
    return {
        row: tuple(_with_verdict(each, adjusted.get((row, each.collection))) for each in compared)
        for row, compared in on.items()
    }


def _p(on: RowOnCollection) -> float | None:
    return on.compared.p if on.compared else None


def _with_verdict(on: RowOnCollection, p: float | None) -> RowOnCollection:
    if on.difference is None:
        return on
    sign = "better" if on.difference > 0 else "worse"
    verdict = "cannot tell" if p is None or p > ALPHA else sign
    return msgspec.structs.replace(on, p_holm=p, verdict=verdict)
