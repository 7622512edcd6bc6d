"""From the scores of all cells to the record of an ablation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from bench.comparing.compare import Entrant
from bench.comparing.statistics import ALPHA, Resampling, ScoreMatrix, holm, paired
from bench.comparing.transfer import Forgetting, Sequenced, forgetting_of
from bench.experiments.adapt_stage import LearntSequence, read_sequence
from bench.experiments.evaluate_stage import RESULTS, Scored, scored
from bench.experiments.execute import Outcome
from bench.experiments.grid import Hypothesis
from bench.experiments.plan import CellTask, GridCell, GridRow
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
from bench.results.find import find_results
from bench.results.result import Conditions, Evaluation
from foundation.arrays import Float64Array
from foundation.errors import BenchError

GAINED, FORGOTTEN = "gained", "forgotten"
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
        rows=tuple(_row(row, part, outcome, scores, on_all[row.name]) for row in plan.rows),
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


def _row(
    row: GridRow,
    part: Prepared,
    outcome: Outcome,
    scores: Mapping[str, BySeed],
    on: tuple[RowOnCollection, ...],
) -> RowFound:
    own = [cell for cell in part.plan.cells if cell.row == row.name]
    return RowFound(
        name=row.name,
        against=row.against,
        change=row.change,
        cells=tuple(_cell(cell, outcome, scores[row.name], part.weights) for cell in own),
        on=on,
    )


def _cell(
    cell: GridCell, outcome: Outcome, scores: BySeed, weights: Mapping[str, float]
) -> CellFound:
    stage, error = outcome.gap(cell)
    found = scores.get(cell.seed, {})
    means = {name: float(scored.values.mean()) for name, scored in found.items()}
    weighted = means and weights
    return CellFound(
        seed=cell.seed,
        scores=means,
        mean=sum(weights[name] * mean for name, mean in means.items()) if weighted else None,
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


@dataclass(frozen=True)
class EvaluatedSequence:
    """A sequence of one cell with its results.

    Attributes:
        results: by model and collection; the start is under `base`.
    """

    learnt: LearntSequence
    results: Mapping[str, Mapping[str, Evaluation]]

    @property
    def base(self) -> str:
        """Name of what the sequence starts from, by which its results are known."""
        return next(name for name in self.results if name not in self.learnt.checkpoints)

    def scores(self, checkpoints: Mapping[str, str]) -> dict[str, Scored]:
        """Scores on collections, each of the checkpoint that is named for it."""
        return {name: scored(self.results[model][name]) for name, model in checkpoints.items()}


def with_sequences(report: Report, part: Prepared, outcome: Outcome, out: Path) -> Report:
    """The report with what its rows gained and forgot, p corrected for all of them.

    Raises:
        BenchError: a result is missing or damaged.
    """
    finished: dict[str, dict[int, EvaluatedSequence]] = {}
    for cell in part.plan.cells:
        if cell.task.key in outcome.finished and (sequence := _read(cell.task, out)):
            finished.setdefault(cell.row, {})[cell.seed] = sequence
    compared = with_verdicts({row: _compared(by_seed) for row, by_seed in finished.items()})
    rows = [
        msgspec.structs.replace(
            row, sequence=_found(list(finished[row.name].values()), compared[row.name])
        )
        if row.name in finished
        else row
        for row in report.rows
    ]
    return msgspec.structs.replace(report, rows=tuple(rows))


def _read(task: CellTask, out: Path) -> EvaluatedSequence | None:
    folder = task.folder(out)
    learnt = read_sequence(folder)
    if learnt is None:
        return None
    results: dict[str, dict[str, Evaluation]] = {}
    for stored in find_results(folder / RESULTS):
        results.setdefault(stored.result.model, {})[stored.collection] = stored
    return EvaluatedSequence(learnt, results)


def _compared(by_seed: Mapping[int, EvaluatedSequence]) -> tuple[RowOnCollection, ...]:
    """After the sequence against the start, and against just after each domain's training."""
    learnt = next(iter(by_seed.values())).learnt
    names, after, start, own = learnt.domains, BySeed(), BySeed(), BySeed()
    for seed, sequence in by_seed.items():
        after[seed] = sequence.scores({name: learnt.after(name) for name in names})
        start[seed] = sequence.scores(dict.fromkeys(names, sequence.base))
        own[seed] = sequence.scores({name: learnt.own(name) for name in names})
    pairs = [(GAINED, names, start)]
    if not learnt.separate:
        pairs.append((FORGOTTEN, names[:-1], own))
    return tuple(
        compare_seeds(title, dict.fromkeys(shared, 1 / len(shared)), after, earlier)
        for title, shared, earlier in pairs
    )


def _found(
    sequences: Sequence[EvaluatedSequence], compared: Sequence[RowOnCollection]
) -> SequenceFound:
    by_title = {each.collection: each for each in compared}
    losses = zip(*(sequence.learnt.losses for sequence in sequences), strict=True)
    domains = sequences[0].learnt.domains
    return SequenceFound(
        start=sequences[0].base,
        gained=by_title[GAINED],
        forgotten=by_title.get(FORGOTTEN),
        losses={name: fmean(each) for name, each in zip(domains, losses, strict=True)},
        forgetting=_forgetting(sequences),
    )


def _forgetting(sequences: Sequence[EvaluatedSequence]) -> Forgetting:
    """The matrix of one row; each query's score is its mean over the seeds."""
    learnt, name = sequences[0].learnt, sequences[0].base
    base = _entrant(name, [each.results[each.base] for each in sequences])
    checkpoints = [
        _entrant(f"after {name}", [each.results[each.learnt.own(name)] for each in sequences])
        for name in learnt.domains
    ]
    further = [name for name in base.entries if name not in learnt.domains]
    measure = base.entries[learnt.domains[0]].result.main_measure
    sequence = Sequenced(checkpoints, learnt.domains, further, base, learnt.separate)
    matrix = forgetting_of(sequence, measure, RESAMPLING)
    return msgspec.structs.replace(matrix, trainings=len(sequences))


def _entrant(name: str, results: Sequence[Mapping[str, Evaluation]]) -> Entrant:
    """One checkpoint in the mean over the seeds, given its results by collection for each seed."""
    return Entrant(
        name,
        {
            collection: _mean_entry([by_name[collection] for by_name in results])
            for collection in results[0]
        },
    )


def _mean_entry(entries: Sequence[Evaluation]) -> Evaluation:
    """The mean over seeds of the main measure, query by query."""
    result = entries[0].result
    measure, scores = result.main_measure, [entry.scores for entry in entries]
    values = np.mean([each.values[measure] for each in scores], axis=0)
    return Evaluation(result, replace(scores[0], values={measure: values}))
