"""A leaderboard as text for programs: CSV and LaTeX."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from bench.boards.records import AnyColumn, Board, CollectionColumn, Mean, Row, SuiteColumn
from reports.format import score, written
from reports.leaderboard.ranking import (
    RECIPE,
    claimed_scores,
    heading,
    legend,
    score_cell,
    system_name,
)
from reports.table import Bold, Column, Italic, Table, columns_of, table_of

NOTHING = "--"  # TeX makes a dash of it
CSV_FIELDS = (
    *("model", "row", "kind", "name", "measure", "value", "low", "high", "group", "in_domain"),
    *("zero_shot", "missing", "published", "source", "judged_at_10", "tie_low", "tie_high"),
    *("tokens_per_s", "search_ms", "parameters", "adapter_parameters", "official", "title_track"),
    *RECIPE,
)


def figures(board: Board, measure: str) -> Table[Sequence[Any]]:
    """A row for each score."""
    records = [
        *(record for row in board.ranked(measure) for record in _records(board, row, measure)),
        *(_claim_records(board) if board.published else ()),
    ]
    return table_of(CSV_FIELDS, [[record.get(name) for name in CSV_FIELDS] for record in records])


def scores(board: Board, measure: str) -> Table[Row]:
    """A row for each model, the best first; a column for each place, None for a gap."""
    headline = board.headline(measure)
    by_header = {heading(place, measure): place for place in board.places}

    def value(row: Row, header: str) -> float | None:
        return own.value if (own := row.score_in(by_header[header], measure)) else None

    columns: list[Column[Row]] = [
        Column("model", lambda row: row.name),
        Column("group", lambda row: (own := row.score_in(headline, measure)) and own.group),
        *columns_of(by_header, value),
    ]
    return Table(board.ranked(measure), columns)


def _records(board: Board, row: Row, measure: str) -> Iterator[dict[str, object]]:
    recipe: dict[str, object] = {name: row.recipe.get(name, "") for name in RECIPE}
    if row.parameters:
        recipe["parameters"] = row.parameters.total
        recipe["adapter_parameters"] = row.parameters.adapter
    for place in board.places:
        own = row.score_in(place, measure)
        known = {
            **{"model": row.model, "row": row.name, "name": place.name, **recipe},
            "measure": measure or place.main_measure,
            **(msgspec.structs.asdict(own) if own else {}),
        }
        if isinstance(place, CollectionColumn):
            if own:
                yield {**known, "kind": "collection", **_cell_record(row, place)}
        elif mean := row.mean(place, measure):
            yield {**known, "kind": "suite", **_suite_record(mean, place)}


def _claim_records(board: Board) -> Iterator[dict[str, object]]:
    """Every claim of other systems, whatever measure is shown."""
    for claim in (claim for system in board.systems() for claim in system):
        yield {
            "model": claim.model,
            "kind": "copied claim" if claim.second_hand else "claim",
            "name": claim.name,
            "measure": claim.measure,
            "published": claim.value,
            "source": claim.source,
        }


def _suite_record(mean: Mean, place: SuiteColumn) -> dict[str, object]:
    return {
        "in_domain": _yes(mean.score is not None and mean.zero_shot_members < len(place.members)),
        "zero_shot": mean.zero_shot,
        "missing": " ".join(mean.missing),
    }


def _cell_record(row: Row, place: CollectionColumn) -> dict[str, object]:
    cell = row.cells[place.name]
    names = ("judged_at_10", "tie_low", "tie_high", "tokens_per_s", "search_ms")
    return {
        **{name: getattr(cell, name) for name in names},
        "in_domain": _yes(cell.in_domain),
        "official": _yes(place.official),
        "title_track": place.title_track,
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def latex(board: Board, measure: str) -> str:
    """A booktabs table; models are columns where they are fewer than what they are scored on.

    Bold is every score in the first group; an asterisk marks in-domain scores.
    """
    shown = board.places
    grid = [["", *(heading(place, measure) for place in shown)]]
    grid += [
        [row.name, *(_cell(row, place, measure) for place in shown)]
        for row in board.ranked(measure)
    ]
    for system in board.systems() if board.published else ():
        if own := claimed_scores(board, system, measure):
            claims = [score(own.get(place.name)) or NOTHING for place in shown]
            grid.append([Italic(system_name(system)), *claims])
    if len(grid) < len(grid[0]):
        grid = [list(column) for column in zip(*grid, strict=True)]
    headers, *rows = grid
    names, *cells = table_of(headers, rows).columns
    scores = [replace(column, format=written) for column in cells]
    notes = "".join(f"% {note}\n" for note in _latex_notes(board))
    return notes + Table(rows, [names, *scores]).latex()


def _latex_notes(board: Board) -> list[str]:
    claims = ["italic: claims, not measured"] if board.published else []
    return [
        *claims,
        r"needs \usepackage{booktabs}",
        "bold: cannot be told apart from the best at the 5 % level; *: trained on it",
        *legend(board),
    ]


def _cell(row: Row, place: AnyColumn, measure: str) -> str:
    own = row.score_in(place, measure)
    text = score_cell(row, place, measure) if own else NOTHING
    return Bold(text) if own and own.group == 1 else text
