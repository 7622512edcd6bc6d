"""The record that the tables and the page of a leaderboard are made from.

Scores stand beside what qualifies them: interval, group, protocol, recipe, training data, and the
published score, which is a claim. What is not there is a gap, and a mean over a gap is a gap.
"""

import re

import msgspec

from retrievers.models.checkpoint import Parameters

MAIN_MEASURE = ""  # stands for the main measure of each collection


class Score(msgspec.Struct, frozen=True):
    """One number of a leaderboard.

    Attributes:
        value: mean over all queries, or over a suite.
        low, high: 95 % interval (bootstrap over queries); None if no values by query are kept.
        group: 1 for the best; models in one group cannot be told apart from its leader.
        published: score of the same checkpoint that somebody stated.
        source: who stated it.
    """

    value: float
    low: float | None = None
    high: float | None = None
    group: int | None = None
    published: float | None = None
    source: str = ""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one collection.

    Attributes:
        scores: by measure.
        facts: of this evaluation only, such as its time, in words.
        tokens_per_s: of encoding; None if nothing was encoded.
        search_ms: milliseconds per query; None if a run file was scored.
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
    facts: dict[str, str]
    warnings: tuple[str, ...]


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """One model over one suite, by one measure; `SuiteMean` with what surrounds it.

    Attributes:
        score: None if a member is missing.
        zero_shot: mean over the members that the model was not trained on.
    """

    score: Score | None
    zero_shot: float | None
    zero_shot_members: int
    missing: tuple[str, ...]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A model under one recipe.

    Attributes:
        name: the model's, with what tells it from other rows of the same model.
        recipe: in words.
        cells: by name of column.
        means: by suite, then by measure.
        trained_on: as its card says.
        tokens_per_s: over all that was encoded on one machine, named by ``speed_device``.
        parameters: None if no result knows them.
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

    def score(self, column: str, measure: str) -> Score | None:
        """Score in a column or suite."""
        if column in self.cells:
            return self.cells[column].scores.get(measure)
        mean = self.means.get(column, {}).get(measure)
        return mean.score if mean else None

    def mean(self, suite: "SuiteColumn", measure: str) -> Mean | None:
        """Mean of a suite, by its main measure where none is asked for; None if all is gap."""
        return self.means.get(suite.name, {}).get(measure or suite.main_measure)

    def score_in(self, column: "ScoreColumn", measure: str) -> Score | None:
        """Score in a column or suite, by its main measure where none is asked for."""
        return self.score(column.name, measure or column.main_measure)


class CollectionColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A collection under one protocol.

    Attributes:
        main: whether it stands for its collection, also in means.
        protocol, about: facts in words.
    """

    name: str
    collection: str
    main: bool
    official: bool
    main_measure: str
    measures: tuple[str, ...]
    queries: int
    documents: int | None
    title_track: str
    protocol: dict[str, str]
    about: dict[str, str]


class SuiteColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A suite with a mean.

    Attributes:
        main_measure: that all members share; "" if they differ.
        collections: all that count, also those inside an inner suite.
    """

    name: str
    title: str
    main_measure: str
    members: tuple[str, ...]
    collections: tuple[str, ...]


ScoreColumn = CollectionColumn | SuiteColumn


class Claim(msgspec.Struct, frozen=True):
    """A published score: of a collection or suite, and who stated it.

    Attributes:
        model: name of a card, or of a system as the publication has it.
        publication: title; "" for a card's own checkpoint.
        second_hand: copied from somebody else's publication.
        note: what a reader must know of it.
    """

    model: str
    name: str
    measure: str
    value: float
    source: str
    publication: str = ""
    second_hand: bool = False
    note: str = ""


class Leaderboard(msgspec.Struct, frozen=True, kw_only=True):
    """A leaderboard.

    Attributes:
        measures: of any column.
        claims: of any card, and of publications that were asked for, for the columns and suites
            shown; also of models without results.
        results: how many evaluations it was made from.
        newest: time of the newest one, ISO 8601.
        resamples: behind every interval and group.
        published: whether claims of other systems are to be shown beside the rows.
    """

    measures: tuple[str, ...]
    columns: tuple[CollectionColumn, ...]
    suites: tuple[SuiteColumn, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    results: int
    newest: str
    resamples: int
    published: bool = False

    def systems(self) -> list[tuple[Claim, ...]]:
        """Claims of one system in one source together, of those that are no row, as given."""
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
        """Where models are ranked: the first suite that any has whole, else the fullest column."""

        def filled(column: ScoreColumn) -> int:
            return sum(row.score_in(column, measure) is not None for row in self.rows)

        whole = (suite for suite in self.suites if filled(suite))
        return next(whole, None) or max(self.columns, key=filled)

    def ranked(self, measure: str) -> list[Row]:
        """Rows by falling score in the headline; those without one last, by name."""
        headline = self.headline(measure)

        def order(row: Row) -> tuple[float, list[tuple[str, int]]]:
            score = row.score_in(headline, measure)
            return (-score.value if score else float("inf")), natural_sort_key(row.name)

        return sorted(self.rows, key=order)


def natural_sort_key(name: str) -> list[tuple[str, int]]:
    """Sorting key by which ``dl9`` comes before ``dl19``."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]
