"""The record of an experiment's results, from which tables and plots are made.

History of the schema: 1, the first; 2, collections that differ from the published ones, and weights
of the collections in their mean; 3, gain and forgetting of a row with a sequence; 4, tested
hypotheses; 5, costs and differences as a record each; 6, without published figures; 7, without
matrices of sequences, and points of an axis by their labels; 8, code and settings of each cell and
row, anchors, exploratory comparisons, and p of the seeds alone; 9, without hypotheses.
"""

from bench.evaluation.result_record import Conditions
from bench.experiments.experiment import AxisResult, Cost
from bench.experiments.grid import Table
from foundation.records import Record

SCHEMA = 9
MEAN = "mean"  # instead of a collection


class Interval(Record, kw_only=True):
    """A mean over seeds and queries.

    Attributes:
        mean: mean over collections, seeds and queries.
        low, high: 95 % interval over other seeds and other queries of these collections; None with
            one seed, which has no variance over seeds, or if nothing varies.
        p: two-sided p-value of a mean of 0; None if there is no interval.
        p_seeds: two-sided p-value of a t test over the seeds' means alone, whose degrees of freedom
            are the seeds less one; None with one seed. p is not printed below what it supports.
        seeds_sd: standard deviation of the seeds' means; None with one seed.
        detectable: smallest mean that is detected with a power of 80 % at 5 %, two-sided.
    """

    mean: float
    low: float | None = None
    high: float | None = None
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
        code: code that ran each finished stage: a git commit, marked if it was modified, or an
            installed version; "" if it is unknown.
    """

    seed: int
    scores: dict[str, float]
    failed_at: str = ""
    error: str = ""
    costs: dict[str, Cost] = {}
    code: dict[str, str] = {}


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
    score: Interval | None
    seeds: tuple[int, ...] = ()
    difference: Interval | None = None
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
    settings: dict[str, Table] = {}

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
        axes: axes with their rows.
        leaks: results of the leak check, a sentence each.
        commits: code that ran the tasks, each once, as in `CellResult`.
        seconds: wall-clock time of all distinct tasks. A task shared by several cells counts once.
        conditions: libraries and machine.
        differing: collections that differ from the published ones, a sentence each.
        weights: weights of the collections in their mean; empty for equal weights.
        anchors: finished models on the same collections, without a comparison.
        base_per_seed: see `Grid`.
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
    anchors: tuple[RowResult, ...] = ()
    base_per_seed: bool = False

    @property
    def collections(self) -> tuple[str, ...]:
        """Collections of all rows, then `MEAN` if there is one."""
        names = dict.fromkeys(on.collection for row in self.rows for on in row.on)
        return (*(name for name in names if name != MEAN), *([MEAN] if MEAN in names else []))

    def is_mean(self, name: str) -> bool:
        """Return True if ``name`` is the mean among `collections`."""
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
    def gaps(self) -> int:
        """Number of cells without a score."""
        return sum(not cell.scores for row in (*self.rows, *self.anchors) for cell in row.cells)
