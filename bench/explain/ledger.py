"""The ledger: where the score of a search system is lost, from exact search to its own answer.

Between two rankings one thing changes, so each term is a difference of scores, and for each query
the terms sum to the whole difference. A term depends on the order of the stages, which is fixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench.comparing.statistics import (
    Difference,
    Resampling,
    ScoreMatrix,
    paired_difference,
)
from bench.evaluation.judging import apply_protocol, judge
from bench.evaluation.runs import Run
from bench.evaluation.scoring import score
from bench.requests.outcomes import ExitCode
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float64Array
from foundation.records import Record

NOISE = 0.001  # a loss that is certainly larger counts


@dataclass(frozen=True)
class SearchStage:
    """A ranking on the way from exact search to the answer of a system.

    Attributes:
        name: what changed since the stage before.
        run: its rankings.
        apply: what to change; may be empty.
    """

    name: str
    run: Run
    apply: str = ""


class LedgerRow(Record, kw_only=True):
    """A change between two stages.

    Attributes:
        name: what changed.
        apply: what to change; may be empty.
        terms: change of each measure; below 0 is a loss.
        by_query: change of each measure for each query of the ledger.
    """

    name: str
    apply: str
    terms: tuple[Difference, ...]
    by_query: tuple[tuple[float, ...], ...]

    @property
    def is_loss(self) -> bool:
        """True if a measure has certainly lost something."""
        return any(map(is_loss, self.terms))

    @property
    def is_told(self) -> bool:
        """True if it changes scores and can be fixed."""
        return bool(self.apply) and any(term.changed for term in self.terms)


class Ledger(Record, kw_only=True):
    """Differences between exact search of a checkpoint's vectors and a search system.

    Attributes:
        system, version: the system, and what it says of its state.
        checkpoint: name of the checkpoint.
        collection: name of the collection.
        measures: names, the main one first.
        depth: documents that the system was asked for.
        queries: ids of the queries in ``by_query``.
        exact, deployed: mean of each measure, of exact search and of the system.
        totals: difference of each measure.
        rows: changes from stage to stage, in order.
        notes: what is known about the system and cost nothing by themselves.
    """

    system: str
    version: str
    checkpoint: str
    collection: str
    measures: tuple[str, ...]
    depth: int
    queries: tuple[str, ...]
    exact: tuple[float, ...]
    deployed: tuple[float, ...]
    totals: tuple[Difference, ...]
    rows: tuple[LedgerRow, ...]
    notes: tuple[str, ...]
    resampling: Resampling

    @property
    def exit_code(self) -> ExitCode:
        """DRIFT if something is lost beyond noise, in the whole or in a row."""
        lost = any(map(is_loss, self.totals)) or any(row.is_loss for row in self.rows)
        return ExitCode.DRIFT if lost else ExitCode.OK


def is_loss(term: Difference) -> bool:
    """Return True if a loss is larger than `NOISE` with 95 % confidence.

    A constant change has no interval and is certain.
    """
    bound = term.difference if term.high is None else term.high
    return bound < -NOISE and term.significant


def compare_stages(
    dataset: Dataset,
    stages: Sequence[SearchStage],
    measures: Sequence[str],
    depth: int,
    resampling: Resampling,
    *,
    system: str,
    version: str = "",
    checkpoint: str = "",
    notes: Sequence[str] = (),
) -> Ledger:
    """Score each stage and return the changes between them.

    Args:
        dataset: collection with its protocol.
        stages: two or more; the first is exact search.
        measures: canonical names, the main one first.
        depth: documents of each ranking that count.
        resampling: of the queries, the same resamples for all rows.
    """
    scored = []
    for stage in stages:
        run = apply_protocol(stage.run, dataset, depth)
        queries = dataset.queries.ids if dataset.answers is not None else None
        scored.append(score(run, judge(dataset, run), measures, queries))
    tables = [np.stack([each.values[name] for each in scored], axis=1) for name in measures]
    changes = [
        _changes(table, dataset.name, name, resampling)
        for table, name in zip(tables, measures, strict=True)
    ]
    rows = [
        LedgerRow(
            name=stage.name,
            apply=stage.apply,
            terms=tuple(terms[place] for _, terms in changes),
            by_query=tuple(
                tuple((table[:, place + 1] - table[:, place]).tolist()) for table in tables
            ),
        )
        for place, stage in enumerate(stages[1:])
    ]
    return Ledger(
        system=system,
        version=version,
        checkpoint=checkpoint,
        collection=dataset.name,
        measures=tuple(measures),
        depth=depth,
        queries=scored[0].query_ids,
        exact=tuple(float(table[:, 0].mean()) for table in tables),
        deployed=tuple(float(table[:, -1].mean()) for table in tables),
        totals=tuple(total for total, _ in changes),
        rows=tuple(rows),
        notes=tuple(notes),
        resampling=resampling,
    )


def _changes(
    table: Float64Array, collection: str, measure: str, resampling: Resampling
) -> tuple[Difference, list[Difference]]:
    """Return the whole difference, and that of each stage to the one before it.

    ``table`` is float64 ``(queries, stages)``.
    """
    names = [str(place) for place in range(table.shape[1])]
    columns = {name: place for place, name in enumerate(names)}
    matrix = ScoreMatrix(collection, measure, columns, table, resampling)
    total = paired_difference([matrix.minus(names[-1], names[0])])
    return total, [paired_difference([matrix.minus(b, a)]) for a, b in pairwise(names)]
