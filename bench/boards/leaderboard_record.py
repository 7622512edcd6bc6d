"""Record of a leaderboard, from which its tables and its page are made.

Each score comes with its interval, group, protocol, recipe, training data, and the published score.
A missing score is a gap, and a mean over a gap is a gap.
"""

import re

import msgspec

from bench.comparing.pairs import Comparison, ComparisonRow
from bench.comparing.slices import SliceComparison
from bench.comparing.statistics import Estimate
from bench.gate.check_record import Outcome, Reason
from retrievers.models.checkpoint import Parameters


class Score(Estimate):
    """One score of a leaderboard: a mean over all queries, or over a suite.

    Attributes:
        group: 1 for the best; models in a group do not differ significantly from its best one.
        published: published score of the same checkpoint.
    """

    group: int | None = None
    published: float | None = None
    source: str = ""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one collection.

    Attributes:
        judged_at_10: share of judged documents in the top 10.
        tie_low, tie_high: range of the main score over all orders of tied documents.
        index_recall: share of the exact top k that the index found, by depth.
        unanswered: number of queries without retrieved documents.
        tokens_per_s: encoding speed in tokens per second; None if nothing was encoded.
        search_ms: milliseconds per query; None for a run file.
        provenance: time, commit, machine, libraries and key of the result.
    """

    scores: dict[str, Score]
    in_domain: bool
    judged_at_10: float | None
    tie_low: float | None
    tie_high: float | None
    index_recall: dict[str, float]
    unanswered: int
    tokens_per_s: float | None
    search_ms: float | None
    provenance: dict[str, str]
    warnings: tuple[str, ...]


class Mean(msgspec.Struct, frozen=True):
    """One model over one suite, by one measure.

    Attributes:
        score: mean score; None if a member is missing.
        zero_shot: mean over the members that the model was not trained on.
        missing: members without a score.
    """

    score: Score | None
    zero_shot: float | None
    zero_shot_members: int
    missing: tuple[str, ...]


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model under one recipe.

    Attributes:
        name: name of the model, with the settings that distinguish its rows.
        recipe: settings as text.
        trained_on: collections that its card lists as training data.
        tokens_per_s: encoding speed of the largest evaluation, on the machine ``speed_device``.
        document_bytes: size of one document's stored vector, or of its part of the index; None
            without vectors.
    """

    name: str
    model: str
    title: str
    recipe: dict[str, str]
    cells: dict[str, Cell]
    means: dict[str, dict[str, Mean]]
    trained_on: tuple[str, ...]
    tokens_per_s: float | None
    speed_device: str
    parameters: Parameters | None
    document_bytes: int | None = None

    def score(self, column: str, measure: str) -> Score | None:
        """Return the score by ``measure`` in the ``column`` of a collection or suite."""
        if column in self.cells:
            return self.cells[column].scores.get(measure)
        mean = self.means.get(column, {}).get(measure)
        return mean.score if mean else None

    def mean(self, suite: "SuiteColumn", measure: str) -> Mean | None:
        """Return the mean of ``suite`` by ``measure``, or by its main measure if that is ""."""
        return self.means.get(suite.name, {}).get(measure or suite.main_measure)

    def score_in(self, column: "ScoreColumn", measure: str) -> Score | None:
        """Return the score in ``column`` by ``measure``, or by its main measure if that is ""."""
        return self.score(column.name, measure or column.main_measure)


class CollectionColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A collection under one protocol.

    Attributes:
        name: name of the column, with all that distinguishes it from the main protocol.
        label: short name for tables, unique among the columns.
        main: whether it represents its collection, also in means.
        official: whether this is the published collection; None if nothing is published for it.
        title_track: track of the collection's titles, if it has several.
    """

    name: str
    label: str
    collection: str
    main: bool
    official: bool | None
    main_measure: str
    measures: tuple[str, ...]
    queries: int
    documents: int | None
    title_track: str
    protocol: dict[str, str]


class SuiteColumn(msgspec.Struct, frozen=True):
    """A suite with a mean.

    Attributes:
        main_measure: main measure of all members; "" if they differ.
        members: members of the mean, which may be suites.
        collections: all collections, also in nested suites.
    """

    name: str
    title: str
    main_measure: str
    members: tuple[str, ...]
    collections: tuple[str, ...]


ScoreColumn = CollectionColumn | SuiteColumn


class Claim(msgspec.Struct, frozen=True):
    """A published score with its source.

    Attributes:
        model: name of a card, or of a system as in the publication.
        name: collection or suite.
        publication: title; "" for a card's own checkpoint.
        second_hand: whether it was copied from somebody else's publication.
        note: remark that readers of this score need.
    """

    model: str
    name: str
    measure: str
    value: float
    source: str
    publication: str = ""
    second_hand: bool = False
    note: str = ""


class Contrast(msgspec.Struct, frozen=True):
    """A row (``a``) compared with a baseline (``b``), as by ``compare``.

    Attributes:
        comparison: differences on the columns and suites that both have.
        outcome, reasons: decision of the gate on the baseline's columns, with its default limits.
        slices: differences on the slices by each field; empty without any.
    """

    comparison: Comparison
    outcome: Outcome
    reasons: tuple[Reason, ...]
    slices: tuple[SliceComparison, ...] = ()

    def on(self, column: str, measure: str) -> ComparisonRow | None:
        """Return the difference by ``measure`` on the ``column`` of a collection or suite."""
        rows = self.comparison.all_rows
        return next((row for row in rows if (row.on, row.measure) == (column, measure)), None)


class Leaderboard(msgspec.Struct, frozen=True, kw_only=True):
    """Models, collections, scores and published scores.

    Attributes:
        columns: collections, each under one protocol.
        claims: published scores on the columns and suites shown, also of models without results.
        results: number of evaluations.
        newest: time of the newest one, ISO 8601.
        resamples: number of resamples of every interval and group.
        published: whether published scores of other systems are shown.
        baselines: rows that the others are compared with.
        contrasts: every other row compared with each baseline.
    """

    measures: tuple[str, ...]
    columns: tuple[CollectionColumn, ...]
    suites: tuple[SuiteColumn, ...]
    rows: tuple[ModelRow, ...]
    claims: tuple[Claim, ...]
    results: int
    newest: str
    resamples: int
    published: bool = False
    baselines: tuple[str, ...] = ()
    contrasts: tuple[Contrast, ...] = ()

    def contrasts_of(self, row: str) -> dict[str, Contrast]:
        """Return the comparisons of ``row`` by baseline."""
        mine = (each for each in self.contrasts if each.comparison.a == row)
        return {each.comparison.b: each for each in mine}

    def systems(self) -> list[tuple[Claim, ...]]:
        """Group published scores without a row of their own by system and source."""
        known = {row.model for row in self.rows}
        by_system: dict[tuple[str, str], list[Claim]] = {}
        for claim in self.claims:
            if claim.publication or claim.model not in known:
                by_system.setdefault((claim.model, claim.source), []).append(claim)
        return [tuple(some) for some in by_system.values()]

    @property
    def all_columns(self) -> list[ScoreColumn]:
        """All columns of the table: suites, then collections."""
        return [*self.suites, *self.columns]

    def headline(self, measure: str) -> ScoreColumn:
        """Return the column to rank models by: the first suite that any model has completely.

        Without one, it is the collection with most scores by ``measure``.
        """

        def filled(column: ScoreColumn) -> int:
            return sum(row.score_in(column, measure) is not None for row in self.rows)

        whole = (suite for suite in self.suites if filled(suite))
        return next(whole, None) or max(self.columns, key=filled)

    def ranked(self, measure: str) -> list[ModelRow]:
        """Sort rows by falling score in the headline column of ``measure``, then by name."""
        headline = self.headline(measure)

        def order(row: ModelRow) -> tuple[float, list[tuple[str, int]]]:
            score = row.score_in(headline, measure)
            return (-score.value if score else float("inf")), natural_sort_key(row.name)

        return sorted(self.rows, key=order)


def natural_sort_key(name: str) -> list[tuple[str, int]]:
    """Return a sorting key of ``name`` that puts ``dl9`` before ``dl19``."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]
