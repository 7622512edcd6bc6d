"""From stored results to the record of a leaderboard."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from bench.boards.cells import row_of
from bench.boards.groups import Standings, standings
from bench.boards.pairs import PairWork
from bench.boards.published_scores import gathered
from bench.boards.queries import OpenDataset, QueryWork
from bench.boards.records import (
    MAIN,
    Board,
    CollectionColumn,
    Pair,
    Row,
    SuiteColumn,
)
from bench.boards.rows import columns, rows
from bench.comparing.statistics import Resampling
from bench.evaluate.suites import suite_weights
from bench.results.facts import protocol_facts
from bench.results.result import Evaluation
from datasets_cfg.catalogue import collections_of, dataset_names, facts_for, suite_for, suite_names
from foundation.errors import BenchError, did_you_mean
from retrievers.models.card import Card


class Choice(msgspec.Struct, frozen=True):
    """Selection of what a leaderboard shows.

    Attributes:
        suite: only this one and its members; "" for all.
        measure: only this one; `MAIN` for the main one of each collection.
        every_measure: also intervals of the measures that are not main.
        neighbours: also compare each row with the next one of the headline.
        pairs: names of rows to compare besides.
        changed: queries of a pair that changed most, each way; 0 for none.
        published: names of publications whose systems are shown too, ``cards`` for those of
            cards; empty or ``all`` for all, None for no systems but those with a row.
    """

    suite: str = ""
    measure: str = MAIN
    every_measure: bool = False
    neighbours: bool = False
    pairs: tuple[tuple[str, str], ...] = ()
    changed: int = 3
    published: tuple[str, ...] | None = None


def assemble(
    stored: Sequence[Evaluation],
    cards: Mapping[str, Card],
    choice: Choice,
    resampling: Resampling,
    advance: Callable[[int], None] = lambda done: None,
    opened: OpenDataset | None = None,
) -> Board:
    """Make a leaderboard.

    Args:
        cards: by name of model.
        advance: called with 1 after each column.
        opened: finds the collection of a protocol, or says why it is not at hand; None where no
            pair is looked at query by query.

    Raises:
        BenchError: nothing is left to show, or values of queries are damaged.
        BenchError: there is no such suite.
    """
    placed = columns(chosen(stored, choice))
    layout = _Layout(placed, rows(placed), cards, choice)
    _check_measure(choice.measure, layout.columns)
    suites = [suite.name for suite in layout.suites]
    plain = layout.board({}, (), resampling)
    queries = QueryWork(layout.by_row, choice.pairs, opened, choice.changed) if opened else None
    work = PairWork(
        _pairs(plain, choice),
        {name: suite_weights(name) for name in suites},
        queries.look if queries else None,
    )
    wanted = {column.name: _wanted(column, choice) for column in layout.columns}
    stand = standings(layout.by_row, wanted, suites, work, resampling, advance)
    made = layout.board(stand, work.pairs(), resampling)
    return msgspec.structs.replace(made, texts=queries.texts if queries else {})


class _Layout:
    """Columns, suites, rows and claims of a leaderboard, before its standings are known."""

    def __init__(
        self,
        placed: Mapping[str, Sequence[Evaluation]],
        by_row: Mapping[str, Mapping[str, Evaluation]],
        cards: Mapping[str, Card],
        choice: Choice,
    ) -> None:
        self.by_row = by_row
        self.columns = tuple(_column(name, some) for name, some in placed.items())
        self.suites = _suites(self.columns, choice.suite)
        self._choice, self._cards = choice, cards
        self._results = [stored.result for some in placed.values() for stored in some]
        official = {column.name for column in self.columns if column.official}
        places = official | {suite.name for suite in self.suites}
        models = {stored.result.model for some in placed.values() for stored in some}
        known = gathered(cards, models, choice.published)
        self._claims = tuple(claim for claim in known if claim.name in places)

    def board(self, stand: Standings, pairs: tuple[Pair, ...], resampling: Resampling) -> Board:
        """The leaderboard with these standings."""
        made = tuple(
            row_of(name, cells, self.suites, stand, self._claims, self._cards)
            for name, cells in self.by_row.items()
        )
        measures = dict.fromkeys(name for column in self.columns for name in column.measures)
        show = self._choice.published is not None
        claimed = {claim.name for claim in self._claims} if show else set()
        claimed.add(self._choice.suite)
        return Board(
            measures=tuple(measures),
            columns=self.columns,
            suites=tuple(suite for suite in self.suites if _has_mean(suite, made, claimed)),
            rows=made,
            claims=self._claims,
            pairs=pairs,
            results=len(self._results),
            newest=max(result.conditions.time for result in self._results),
            resamples=resampling.resamples,
            published=show,
        )


def _pairs(board: Board, choice: Choice) -> list[tuple[str, str]]:
    """Names of the rows to compare, the better one of neighbours first."""
    known = [row.name for row in board.rows]
    for name in (name for pair in choice.pairs for name in pair):
        if name not in known:
            raise BenchError(
                f"the leaderboard has no row {name!r}",
                did_you_mean(name, known, f"rows: {', '.join(known)}"),
            )
    for a, b in choice.pairs:
        if a == b:
            raise BenchError(f"a pair names {a!r} twice", "name two rows of the leaderboard")
    place = board.headline(choice.measure)
    ranked = board.ranked(choice.measure)
    scored = [row.name for row in ranked if row.score_in(place, choice.measure)]
    neighbours = pairwise(scored) if choice.neighbours else ()
    return list(dict.fromkeys([*choice.pairs, *neighbours]))


def chosen(stored: Sequence[Evaluation], choice: Choice) -> list[Evaluation]:
    """Results on the collections that are to be shown.

    Raises:
        BenchError: there are none.
        BenchError: there is no such suite.
    """
    if not choice.suite:
        return list(stored)
    members = collections_of(choice.suite)
    inside = [entry for entry in stored if entry.result.protocol.collection in members]
    if not inside:
        raise BenchError(
            f"there are no results on the {len(members)} collections of {choice.suite}",
            f"python -m bench run {choice.suite} --model bm25",
        )
    return inside


def _wanted(column: CollectionColumn, choice: Choice) -> Sequence[str]:
    if choice.every_measure:
        return column.measures
    return [choice.measure or column.main_measure]


def _check_measure(measure: str, shown: Iterable[CollectionColumn]) -> None:
    known = dict.fromkeys(name for column in shown for name in column.measures)
    if measure and measure not in known:
        raise BenchError(f"no result has {measure}", f"measured are {', '.join(known)}")


def _column(name: str, some: Sequence[Evaluation]) -> CollectionColumn:
    results = [stored.result for stored in some]
    mains = [result.main_measure for result in results]
    main = max(dict.fromkeys(mains), key=mains.count)
    measures = dict.fromkeys(
        [main, *(measure for result in results for measure in result.measures)]
    )
    protocol = max(
        (result.protocol for result in results), key=lambda candidate: candidate.corpus_sha256
    )
    return CollectionColumn(
        name=name,
        collection=protocol.collection,
        main=name == protocol.collection,
        official=protocol.official,
        main_measure=main,
        measures=tuple(measures),
        queries=results[0].queries,
        documents=next(
            (result.documents for result in results if result.documents is not None), None
        ),
        title_track=protocol.title_track,
        protocol=protocol_facts(protocol),
        about=_about(protocol.collection),
    )


def _about(collection: str) -> dict[str, str]:
    if collection not in dataset_names():
        return {}
    facts = facts_for(collection)
    names = ("title", "licence", "citation", "homepage")
    return {name: text for name in names if (text := getattr(facts, name))}


def _suites(shown: Iterable[CollectionColumn], only: str) -> list[SuiteColumn]:
    """Suites with a mean: those asked for, or all with a member that was measured."""
    measured = {column.collection: column.main_measure for column in shown if column.main}
    names = suite_names()
    if only:
        within = set(collections_of(only))
        inner = [name for name in names if name != only and within.issuperset(collections_of(name))]
        names = (only, *inner)
    suites = []
    for suite in (suite_for(name) for name in names):
        members = tuple(suite_weights(suite.name))
        mains = {measured[name] for name in members if name in measured}
        if suite.mean and mains:
            main = mains.pop() if len(mains) == 1 else ""
            suites.append(
                SuiteColumn(
                    name=suite.name,
                    title=suite.title,
                    main_measure=main,
                    members=suite.members,
                    collections=members,
                )
            )
    return suites


def _has_mean(suite: SuiteColumn, made: Iterable[Row], wanted: Collection[str]) -> bool:
    means = (mean for row in made for mean in row.means.get(suite.name, {}).values())
    return suite.name in wanted or any(mean.score for mean in means)
