"""The report of an experiment as a record: rows with their cells, scores and effects."""

from bench.comparing.statistics import ALPHA, t_quantile
from bench.evaluation.result_record import Conditions
from bench.experiments.experiment import Cost
from bench.experiments.grid import AxisResult, TomlTable
from bench.experiments.seed_statistics import SeedEstimate
from foundation.records import Record

# Schemas of earlier versions: 3 adds gain and forgetting, 5 costs and differences as a record each,
# 7 points of an axis by their labels, 8 settings of each row and p of the seeds alone. 9
# has no hypotheses, 10 no anchors and no code of each cell, 11 factors and their effects.
SCHEMA = 11
MEAN = "mean"  # instead of a collection


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
    def has_three_factors(self) -> bool:
        """True if three or more factors are crossed. Of their interactions, `Effect` has pairs."""
        return any(len(axis.factors) > 2 for axis in self.axes)

    @property
    def critical_t(self) -> float:
        """Standard errors of two seeds or more at which a t test over them has p = 5 %."""
        return t_quantile(1 - ALPHA / 2, len(self.seeds) - 1)

    @property
    def gaps(self) -> int:
        """Number of cells without a score."""
        return sum(not cell.scores for row in self.rows for cell in row.cells)
