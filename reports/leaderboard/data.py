"""Data of a leaderboard's pages, as values for JSON: names once, scores as short lists."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.boards.records import (
    Board,
    Cell,
    CollectionColumn,
    Mean,
    OnQueries,
    Pair,
    Row,
    Score,
    SuiteColumn,
)
from bench.comparing.changed import Changes
from bench.comparing.statistics import Difference
from reports import format as fmt
from reports.leaderboard.ranking import legend, lowest_judged

DIGITS = 6  # more than is ever shown
DOT_DIGITS = 3

Plot = tuple[str, str]  # path below the site, without its ending; title
Numbers = Mapping[str, Mapping[str, int]]  # of queries that are named, by column and id


@dataclass(frozen=True)
class Pages:
    """Paths below the site, without extension, in the order of the board."""

    models: Sequence[str]
    collections: Sequence[str]
    pairs: Sequence[str]
    queries: Sequence[str]


def board_data(board: Board, measure: str, pages: Pages, plots: Sequence[Plot]) -> dict[str, Any]:
    """All that is shown on more than one page; scores as lists, sources by number."""
    scores = [score for row in board.rows for score in _scores(row)]
    claimed = [*(score.source for score in scores), *(claim.source for claim in board.claims)]
    sources = {text: number for number, text in enumerate(dict.fromkeys(claimed))}
    places = [_suite(suite, board) for suite in board.suites]
    places += [
        _collection(column, page, queries)
        for column, page, queries in zip(
            board.columns, pages.collections, pages.queries, strict=True
        )
    ]
    for number, place in enumerate(places):
        place["id"] = number
    return {
        "measure": measure,
        "measures": board.measures,
        "results": board.results,
        "newest": board.newest,
        "legend": legend(board),
        "sources": list(sources),
        "places": places,
        "rows": [
            _row(board, row, page, sources)
            for row, page in zip(board.rows, pages.models, strict=True)
        ],
        "claims": [
            msgspec.structs.asdict(claim) | {"source": sources[claim.source]}
            for claim in board.claims
        ],
        "pairs": [
            {"rows": _rows_of(board, pair), "page": f"{page}.html"}
            for pair, page in zip(board.pairs, pages.pairs, strict=True)
        ],
        "published": board.published,
        "plots": [{"name": name, "title": title} for name, title in plots],
    }


def _scores(row: Row) -> Iterable[Score]:
    for cell in row.cells.values():
        yield from cell.scores.values()
    for means in row.means.values():
        yield from (mean.score for mean in means.values() if mean.score)


def _suite(suite: SuiteColumn, board: Board) -> dict[str, Any]:
    measures = dict.fromkeys(key for row in board.rows for key in row.means.get(suite.name, ()))
    return {
        "kind": "suite",
        "name": fmt.place(suite.name),
        "title": suite.title,
        "main": suite.main_measure,
        "measures": list(measures),
        "members": suite.members,
        "collections": suite.collections,
        "official": True,
        "main_protocol": True,
        "track": "",
    }


def _collection(column: CollectionColumn, page: str, queries: str) -> dict[str, Any]:
    return {
        "kind": "collection",
        "name": column.name,
        "collection": column.collection,
        "title": column.about.get("title", ""),
        "page": f"{page}.html",
        "script": f"{queries}.js",
        "main": column.main_measure,
        "measures": column.measures,
        "official": column.official,
        "main_protocol": column.main,
        "track": column.title_track,
        "queries": column.queries,
        "documents": column.documents,
        "protocol": column.protocol,
        "about": column.about,
    }


def _row(board: Board, row: Row, page: str, sources: dict[str, int]) -> dict[str, Any]:
    first = len(board.suites)
    cells = {
        first + number: _cell(row.cells[column.name], sources)
        for number, column in enumerate(board.columns)
        if column.name in row.cells
    }
    means = {
        number: _mean(row.means[suite.name], sources)
        for number, suite in enumerate(board.suites)
        if row.means.get(suite.name)
    }
    return {
        "name": row.name,
        "model": row.model,
        "title": row.title,
        "page": f"{page}.html",
        "recipe": row.recipe,
        "trainedOn": row.trained_on,
        "speed": _rounded(row.tokens_per_s),
        "device": row.speed_device,
        "parameters": [row.parameters.total, row.parameters.adapter] if row.parameters else None,
        "judged": _rounded(lowest_judged(row)),
        "cells": means | cells,
    }


def _cell(cell: Cell, sources: dict[str, int]) -> dict[str, Any]:
    return {
        "s": {name: _score(score, sources) for name, score in cell.scores.items()},
        "d": int(cell.in_domain),
        "j": _rounded(cell.judged_at_10),
        "t": [_rounded(cell.tie_low), _rounded(cell.tie_high)],
        "r": cell.index_recall,
        "u": cell.unanswered,
        "v": _rounded(cell.tokens_per_s),
        "m": _rounded(cell.search_ms),
    }


def _mean(by_measure: dict[str, Mean], sources: dict[str, int]) -> dict[str, Any]:
    return {
        "s": {key: _score(mean.score, sources) for key, mean in by_measure.items() if mean.score},
        "z": {
            key: [_rounded(mean.zero_shot), mean.zero_shot_members]
            for key, mean in by_measure.items()
            if mean.score
        },
        "g": {key: mean.missing for key, mean in by_measure.items() if mean.missing},
    }


def _score(score: Score, sources: dict[str, int]) -> list[Any]:
    numbers = [_rounded(value) for value in (score.value, score.low, score.high)]
    return [*numbers, score.group, score.published, sources[score.source]]


def model_data(board: Board, row: Row) -> dict[int, Any]:
    """Facts and warnings that only the page of one model shows, by number of place."""
    return {
        number: {"facts": cell.facts, "warnings": cell.warnings}
        for number, column in enumerate(board.columns, len(board.suites))
        if (cell := row.cells.get(column.name))
    }


def _rows_of(board: Board, pair: Pair) -> list[int]:
    """Numbers of the two rows."""
    names = [row.name for row in board.rows]
    return [names.index(pair.a), names.index(pair.b)]


def pair_data(board: Board, pair: Pair, named: Numbers) -> dict[str, Any]:
    """Two rows, a list for each place that they share, and what is known of its queries."""
    places = [*(suite.name for suite in board.suites), *(column.name for column in board.columns)]
    return {
        "rows": _rows_of(board, pair),
        "versus": [
            [places.index(versus.on), versus.measure, *_difference(versus)]
            for versus in pair.versus
            if versus.on in places
        ],
        "queries": {places.index(on.place): _queries(on, named) for on in pair.queries},
    }


def _queries(on: OnQueries, named: Numbers) -> dict[str, Any]:
    numbers = named[on.place]
    return {
        "dots": [
            [
                round(dot.a, DOT_DIGITS),
                round(dot.b, DOT_DIGITS),
                dot.count,
                [numbers[query] for query in dot.queries],
            ]
            for dot in on.dots
        ],
        "changes": _changes(on.changes) if on.changes else None,
        "withoutRankings": on.without_rankings,
    }


def _changes(changes: Changes) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(changes)
    return {name: record[name] for name in ("changed", "without", "queries")}


def named_queries(board: Board) -> dict[str, dict[str, int]]:
    """A number for each query that a dot of any pair names, by column."""
    named: dict[str, dict[str, int]] = {}
    for on in (on for pair in board.pairs for on in pair.queries):
        numbers = named.setdefault(on.place, {})
        for query in (query for dot in on.dots for query in dot.queries):
            numbers.setdefault(query, len(numbers))
    return named


def query_data(numbers: Mapping[str, int], texts: Mapping[str, str]) -> list[list[str]]:
    """Id and, where it is known, text of each query, in the order of their numbers."""
    return [[query, texts[query]] if query in texts else [query] for query in numbers]


def _difference(found: Difference) -> list[Any]:
    limits = [_rounded(found.low), _rounded(found.high)]
    tests = [found.p, found.p_adjusted]
    counts = [found.wins, found.ties, found.losses]
    return [_rounded(found.difference), *limits, *tests, *counts, _rounded(found.detectable)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
