"""A leaderboard as text for programs: CSV and LaTeX."""

from collections.abc import Iterator

from bench.leaderboard.records import Board, Column, Mean, Row, Score, SuiteColumn
from foundation.printable import one_line
from reports.csv_table import csv_table
from reports.leaderboard.ranking import (
    RECIPE,
    Place,
    claimed_scores,
    heading,
    number,
    places,
    shown_cells,
    system_name,
)

CSV_FIELDS = (
    "model",
    "row",
    "kind",
    "name",
    "measure",
    "value",
    "low",
    "high",
    "group",
    "in_domain",
    "zero_shot",
    "missing",
    "published",
    "source",
    "judged_at_10",
    "tie_low",
    "tie_high",
    "tokens_per_s",
    "search_ms",
    "parameters",
    "adapter_parameters",
    "official",
    "title_track",
    *RECIPE,
)
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def comma_separated(board: Board, measure: str) -> str:
    """A line for each score, nothing rounded."""
    ranked = board.ranked(board.headline(measure), measure)
    records = [
        *(one for row in ranked for one in _records(board, row, measure)),
        *(_claim_records(board) if board.published else ()),
    ]
    return csv_table(CSV_FIELDS, ([one.get(name) for name in CSV_FIELDS] for one in records))


def _records(board: Board, row: Row, measure: str) -> Iterator[dict[str, object]]:
    recipe: dict[str, object] = {name: row.recipe.get(name, "") for name in RECIPE}
    if row.parameters:
        recipe["parameters"] = row.parameters.total
        recipe["adapter_parameters"] = row.parameters.adapter
    for place in places(board):
        shown = board.measure_of(place, measure)
        known = {"model": row.model, "row": row.name, "name": place.name, "measure": shown}
        if isinstance(place, SuiteColumn):
            mean = row.means.get(place.name, {}).get(shown)
            if mean:
                yield {**known, **recipe, "kind": "suite", **_suite_record(mean, place)}
        elif score := row.score(place.name, shown):
            record = _score_record(score) | _cell_record(row, place)
            yield {**known, **recipe, "kind": "collection", **record}


def _claim_records(board: Board) -> Iterator[dict[str, object]]:
    """Every claim of other systems, whatever measure is shown."""
    for one in (one for some in board.systems() for one in some):
        yield {
            "model": one.model,
            "kind": "copied claim" if one.second_hand else "claim",
            "name": one.name,
            "measure": one.measure,
            "published": one.value,
            "source": one.source,
        }


def _score_record(score: Score) -> dict[str, object]:
    names = ("value", "low", "high", "group", "published", "source")
    return {name: getattr(score, name) for name in names}


def _suite_record(mean: Mean, place: SuiteColumn) -> dict[str, object]:
    return {
        **(_score_record(mean.score) if mean.score else {}),
        "in_domain": _yes(mean.score is not None and mean.zero_shot_members < len(place.members)),
        "zero_shot": mean.zero_shot,
        "missing": " ".join(mean.missing),
    }


def _cell_record(row: Row, place: Column) -> dict[str, object]:
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
    ranked = board.ranked(board.headline(measure), measure)
    shown = places(board)
    cells = [[_bold(board, row, place, measure) for place in shown] for row in ranked]
    models = [_tex(row.name) for row in ranked]
    headings = [_tex(heading(board, place, measure)) for place in shown]
    if board.published:
        for some in board.systems():
            own = claimed_scores(board, some, measure)
            if own:
                models.append(rf"\textit{{{_tex(system_name(some))}}}")
                values = (own.get(place.name) for place in shown)
                cells.append(["--" if one is None else number(one) for one in values])
    if len(models) < len(headings):
        models, headings = headings, models
        cells = [list(column) for column in zip(*cells, strict=True)]
    lines = [" & ".join([name, *line]) + r" \\" for name, line in zip(models, cells, strict=True)]
    head = " & ".join(["", *headings]) + r" \\"
    begin = rf"\begin{{tabular}}{{l{'r' * len(headings)}}}"
    middle = [r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
    return "\n".join([f"% {line}" for line in _latex_notes(board)] + [begin, *middle, _END]) + "\n"


_END = r"\end{tabular}"


def _latex_notes(board: Board) -> list[str]:
    claims = ["italic: claims, not measured"] if board.published else []
    return [
        *claims,
        r"needs \usepackage{booktabs}",
        "bold: cannot be told apart from the best at the 5 % level "
        f"(paired sign flips, {board.resamples:,} resamples, Holm); *: trained on it",
    ]


def _bold(board: Board, row: Row, place: Place, measure: str) -> str:
    score = row.score(place.name, board.measure_of(place, measure))
    text = shown_cells(board, row, place, measure)[0] if score else "--"
    return rf"\textbf{{{text}}}" if score and score.group == 1 else text


def _tex(text: str) -> str:
    """A name that TeX prints as it is."""
    return "".join(_LATEX.get(sign, sign) for sign in one_line(text))
