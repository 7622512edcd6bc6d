"""From the scores of all cells to the record of an ablation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from bench.comparing.statistics import ALPHA, Resampling, ScoreMatrix, holm, paired
from bench.experiments.evaluate_stage import Scored, ScoredSequence, read_scored_sequence
from bench.experiments.execute import Outcome
from bench.experiments.grid import Hypothesis
from bench.experiments.plan import CellTask, GridCell
from bench.experiments.prepare import Prepared
from bench.experiments.report_record import (
    MEAN,
    CellFound,
    HypothesisTested,
    Report,
    RowFound,
    RowOnCollection,
    SequenceFound,
)
from bench.experiments.twolevel import Interval, interval
from bench.results.result import Conditions
from foundation.arrays import Float64Array
from foundation.errors import BenchError

RESAMPLING = Resampling()

ScoresOf = Callable[[CellTask], Mapping[str, Scored]]
BySeed = dict[int, Mapping[str, Scored]]


def report_of(
    part: Prepared, outcome: Outcome, scores_of: ScoresOf, command: str, conditions: Conditions
) -> Report:
    """Everything that the finished cells say.

    Args:
        scores_of: reads the scores of a finished evaluation, by collection.
        command: that made the report.

    Raises:
        BenchError: cells were scored on different queries.
    """
    plan, weights = part.plan, part.weights
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
        leaks=part.leaks,
        differing=part.differing,
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
    test = paired(parts, weights)
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


def with_sequences(report: Report, part: Prepared, outcome: Outcome, out: Path) -> Report:
    """The report with what its rows gained and forgot, p corrected for all of them.

    Raises:
        BenchError: a result is missing or damaged.
    """
    learnt: dict[str, dict[int, ScoredSequence]] = {}
    for cell in part.plan.cells:
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
