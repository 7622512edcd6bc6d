"""Findings of an ablation: the record that tables and plots are made of.

History of the schema: 1, the first; 2, collections that are not the published ones, and
weights of the collections in their mean; 3, what a row with a sequence gained and forgot; 4, tested
hypotheses; 5, costs and differences as a record each; 6, no published figures; 7, no matrices of
sequences, points of an axis by their labels.
"""

from typing import Literal

from bench.experiments.experiment import AxisResult, Cost
from bench.experiments.grid import Table
from bench.results.result import Conditions
from foundation.records import Record

SCHEMA = 7
MEAN = "mean"  # instead of a collection


class Interval(Record, kw_only=True):
    """A mean over seeds and queries.

    Attributes:
        mean: over collections, seeds and queries.
        low, high: 95 % interval over other seeds and other queries of these collections; None
            with one seed, which says nothing of others, or where nothing varies.
        p: two-sided, of a mean of 0; None with the same.
        seeds_sd: standard deviation of the seeds' means; None with one seed.
        detectable: mean that would be found, at 5 % two-sided, 80 times in 100.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    seeds_sd: float | None = None
    detectable: float | None = None


class CellResult(Record, kw_only=True):
    """One row with one seed.

    Attributes:
        scores: mean of the main measure by collection; empty for a gap.
        failed_at, error: stage and reason of a gap; "" if there is none.
        costs: by stage, of what is finished; a stage that several cells share counts in each.
    """

    seed: int
    scores: dict[str, float]
    failed_at: str = ""
    error: str = ""
    costs: dict[str, Cost] = {}


class RowOnCollection(Record, kw_only=True):
    """A row on one collection, or in the mean of all (`MEAN`).

    Attributes:
        score: over the seeds that are finished; None for a gap.
        seeds: that the row and the one it is compared with both have. With one, the difference is
            of two checkpoints and not of two recipes.
        difference: from the row that it is compared with; None if nothing is compared.
        p_holm: p, corrected for all rows of the ablation on this collection.
        verdict: by ``p_holm`` at 5 %; "" if nothing is compared.
    """

    collection: str
    measure: str
    queries: int
    score: Interval | None
    seeds: tuple[int, ...] = ()
    difference: Interval | None = None
    p_holm: float | None = None
    verdict: str = ""


class SequenceResult(Record, kw_only=True):
    """Gain and forgetting of a row that learnt one domain after the other.

    Attributes:
        start: the model that the sequence starts from.
        gained: mean over the domains after the sequence, compared with the start.
        forgotten: mean over all domains but the last after the sequence, compared with just after
            the domain's own training; None if each domain keeps a model of its own.
        losses: of masked language modelling by domain, at the end of its own training, in nats;
            mean over the seeds.
    """

    start: str
    gained: RowOnCollection
    forgotten: RowOnCollection | None
    losses: dict[str, float]


class RowResult(Record, kw_only=True):
    """One recipe.

    Attributes:
        against: the row that it differs from in one field; "" for the reference.
        change: that field, with the value there and the value here; "" for the reference.
        sequence: None if nothing was learnt in a sequence, or no cell is finished.
    """

    name: str
    against: str
    change: str
    cells: tuple[CellResult, ...]
    on: tuple[RowOnCollection, ...]
    sequence: SequenceResult | None = None

    def on_collection(self, collection: str) -> RowOnCollection | None:
        """Its figures on a collection, if there are any."""
        return next((on for on in self.on if on.collection == collection), None)


class HypothesisResult(Record, kw_only=True):
    """A comparison of two rows that was fixed before any result.

    Attributes:
        expected: of ``row`` compared with ``against``.
        on: by collection, then in their mean, with p corrected for all hypotheses; empty if
            one of the rows has no finished seed that the other has.
    """

    row: str
    against: str
    expected: Literal["better", "equal"]
    on: tuple[RowOnCollection, ...]

    def answer(self, collection: str) -> str:
        """``supported``, ``refuted``, ``not separated``, or "" if nothing was compared.

        A difference that is not seen supports no hypothesis, and refutes none.
        """
        verdict = next((on.verdict for on in self.on if on.collection == collection), "")
        if verdict in ("", "cannot tell"):
            return verdict and "not separated"
        return "supported" if verdict == self.expected else "refuted"


class Report(Record, kw_only=True):
    """A whole ablation.

    Attributes:
        command: that made it.
        reference: complete settings of the reference, by stage.
        leaks: what the check for leaks looked at, in words.
        differing: which collections are not the published ones, and where they differ, in words.
        weights: of the collections in their mean; empty if each weighs the same.
        commits: of the code that made the cells.
        seconds: wall clock of all distinct work; what cells share counts once.
        hypotheses: what was expected before any result, and what came of it.
    """

    schema: int = SCHEMA
    name: str
    title: str
    command: str
    seeds: tuple[int, ...]
    reference: dict[str, Table]
    rows: tuple[RowResult, ...]
    axes: tuple[AxisResult, ...]
    leaks: tuple[str, ...]
    commits: tuple[str, ...]
    seconds: float
    conditions: Conditions
    differing: tuple[str, ...] = ()
    weights: dict[str, float] = {}
    hypotheses: tuple[HypothesisResult, ...] = ()

    @property
    def collections(self) -> tuple[str, ...]:
        """Collections of all rows, then `MEAN` if there is one."""
        names = dict.fromkeys(on.collection for row in self.rows for on in row.on)
        return (*(name for name in names if name != MEAN), *([MEAN] if MEAN in names else []))

    def is_mean(self, name: str) -> bool:
        """True for the one of ``collections`` that is their mean."""
        return name == MEAN

    def seed_scores(self, row: RowResult, collection: str) -> list[float]:
        """The score of each seed that is finished, on a collection or in the mean (`MEAN`)."""
        finished = [cell.scores for cell in row.cells if cell.scores]
        if collection != MEAN:
            return [scores[collection] for scores in finished if collection in scores]
        return [
            sum(self.weights.get(name, 1 / len(scores)) * scores[name] for name in scores)
            for scores in finished
        ]

    @property
    def trains(self) -> bool:
        """True if a row is a recipe, and not one use of a finished model."""
        return any(stage != "evaluate" for stage in self.reference)

    @property
    def gaps(self) -> int:
        """Cells without a score."""
        return sum(not cell.scores for row in self.rows for cell in row.cells)
