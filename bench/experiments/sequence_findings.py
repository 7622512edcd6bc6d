"""Gain and forgetting of each row of an experiment with a sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from bench.comparing.compare import Entrant
from bench.comparing.statistics import Resampling
from bench.comparing.transfer import Forgetting, Sequenced, forgetting_of
from bench.experiments.evaluation import RESULTS, scored
from bench.experiments.execute import Outcome
from bench.experiments.findings import BySeed, Scored, compare_seeds, with_verdicts
from bench.experiments.plan import CellTask, Plan
from bench.experiments.report_record import Report, RowOnCollection, SequenceFound
from bench.experiments.sequence import LearntSequence, read_sequence
from bench.results.find import find_results
from bench.results.result import Evaluation

GAINED, FORGOTTEN = "gained", "forgotten"


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


def check_resamples(plan: Plan, resampling: Resampling) -> None:
    """Refuse, before any work, so few resamples that no p of a matrix could be significant.

    Raises:
        BenchError: there are too few.
    """
    for row in plan.rows:
        if "adapt" in row.settings:
            domains, scored_on = (len(row.settings[name]["on"]) for name in ("adapt", "evaluate"))
            resampling.check_enough(max(domains - 1, scored_on - domains))


def with_sequences(
    report: Report, plan: Plan, outcome: Outcome, out: Path, resampling: Resampling
) -> Report:
    """The report with what its rows gained and forgot, p corrected for all of them.

    Raises:
        BenchError: a result is missing or damaged, or too few resamples.
    """
    sequences: dict[str, dict[int, EvaluatedSequence]] = {row.name: {} for row in plan.rows}
    for cell in plan.cells:
        if cell.task.key in outcome.finished and (sequence := _read(cell.task, out)):
            sequences[cell.row][cell.seed] = sequence
    finished = {row: by_seed for row, by_seed in sequences.items() if by_seed}
    compared = with_verdicts({row: _compared(each, resampling) for row, each in finished.items()})
    rows = [
        msgspec.structs.replace(
            row, sequence=_found(finished[row.name], compared[row.name], resampling)
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


def _compared(
    by_seed: Mapping[int, EvaluatedSequence], resampling: Resampling
) -> tuple[RowOnCollection, ...]:
    """After the sequence against the start, and against just after each domain's training."""
    learnt = next(iter(by_seed.values())).learnt
    against_start, against_own = {}, {}
    after: BySeed = {}
    for seed, sequence in by_seed.items():
        after[seed] = sequence.scores({name: learnt.after(name) for name in learnt.domains})
        against_start[seed] = sequence.scores(dict.fromkeys(learnt.domains, sequence.base))
        against_own[seed] = sequence.scores({name: learnt.own(name) for name in learnt.domains})
    pairs: list[tuple[str, Sequence[str], BySeed]] = [(GAINED, learnt.domains, dict(against_start))]
    if not learnt.separate:
        pairs.append((FORGOTTEN, learnt.domains[:-1], dict(against_own)))
    return tuple(
        compare_seeds(title, dict.fromkeys(names, 1 / len(names)), after, earlier, resampling)
        for title, names, earlier in pairs
    )


def _found(
    by_seed: Mapping[int, EvaluatedSequence],
    compared: Sequence[RowOnCollection],
    resampling: Resampling,
) -> SequenceFound:
    sequences = list(by_seed.values())
    by_title = {each.collection: each for each in compared}
    domains = sequences[0].learnt.domains
    losses = zip(*(sequence.learnt.losses for sequence in sequences), strict=True)
    return SequenceFound(
        start=sequences[0].base,
        gained=by_title[GAINED],
        forgotten=by_title.get(FORGOTTEN),
        losses={name: fmean(each) for name, each in zip(domains, losses, strict=True)},
        forgetting=_matrix(sequences, resampling),
    )


def _matrix(sequences: Sequence[EvaluatedSequence], resampling: Resampling) -> Forgetting:
    """The matrix of one row; each query's score is its mean over the seeds."""
    first = sequences[0]
    base = _entrant(first.base, [each.results[each.base] for each in sequences])
    checkpoints = [
        _entrant(f"after {name}", [each.results[each.learnt.own(name)] for each in sequences])
        for name in first.learnt.domains
    ]
    domains = first.learnt.domains
    further = [name for name in base.entries if name not in domains]
    measure = base.entries[domains[0]].result.main_measure
    sequence = Sequenced(checkpoints, domains, further, base, first.learnt.separate)
    matrix = forgetting_of(sequence, measure, resampling)
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
