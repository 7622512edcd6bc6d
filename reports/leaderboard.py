"""A leaderboard as Markdown, as an HTML page, and as data for programs."""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

import msgspec

from bench.boards.leaderboard_record import (
    Claim,
    CollectionColumn,
    Leaderboard,
    ModelRow,
    Score,
    ScoreColumn,
    SuiteColumn,
)
from reports import format as fmt
from reports.comparison import slices_text
from reports.table import Column, Table, bullets, columns_for, escape, make_table

SystemClaims = Sequence[Claim]  # claims of one system in one source

GROUP_TEST = (
    "paired randomisation test at the 5 % level, Holm-corrected for the pairs with the best model "
    "of a group"
)
DAGGERS = "†‡§¶"  # marks of significance
RECIPE = (
    *("pooling", "max_query_tokens", "max_document_tokens", "dtype", "store_dtype"),
    *("dimensions", "precision", "rescore", "index"),
)
PROTOCOL = ("version", "split", "title_track", "exclude_self", "depth")


def markdown(board: Leaderboard, measure: str) -> str:
    """Return ``board`` as Markdown by ``measure``: ranking, recipes, protocols, claims."""
    headline = board.headline(measure)
    ranked = board.ranked(measure)
    parts = [_ranking(board, ranked, headline, measure), _notes(board, headline)]
    parts += [_recipes(ranked), _protocols(board)]
    if claims := _published_table(board, ranked, measure):
        parts.append("Published scores, as printed in their sources:\n\n" + claims)
    if board.published:
        parts.append(_published_systems_table(board, measure))
    parts += [slices_text(one) for contrast in board.contrasts for one in contrast.slices]
    return "\n\n".join(parts)


def _ranking(
    board: Leaderboard, ranked: Sequence[ModelRow], headline: ScoreColumn, measure: str
) -> str:
    columns: list[Column[ModelRow]] = [
        Column("group", lambda row: (score := row.score_in(headline, measure)) and score.group),
        Column("model", lambda row: row.name),
        Column("95 % interval", lambda row: row.score_in(headline, measure), fmt.range_of),
    ]
    for column in board.all_columns:
        columns += _score_columns(board, column, measure)
    return Table(ranked, columns).markdown()


def _score_columns(board: Leaderboard, column: ScoreColumn, measure: str) -> list[Column[ModelRow]]:
    """Return the score column and, for a suite, the zero-shot mean."""
    scores: list[Column[ModelRow]] = [
        Column(
            heading(column, measure),
            lambda row: score_cell(row, column, measure) + daggers(board, row, column, measure),
            fmt.numeric,
        )
    ]
    if isinstance(column, SuiteColumn):
        scores.append(Column("zero-shot", lambda r: _zero_shot(r, column, measure), fmt.numeric))
    return scores


def heading(column: ScoreColumn, measure: str) -> str:
    """Return the name of ``column`` with the ``measure`` shown there."""
    return f"{label_of(column)} {measure or column.main_measure}".rstrip()


def label_of(column: ScoreColumn) -> str:
    """Return the short name of ``column``."""
    return column.label if isinstance(column, CollectionColumn) else fmt.display_name(column.name)


def daggers(board: Leaderboard, row: ModelRow, column: ScoreColumn, measure: str) -> str:
    """Return the marks of the baselines that ``row`` is significantly better than."""
    contrasts = board.contrasts_of(row.name)
    found = [
        one.on(column.name, measure or column.main_measure) if one else None
        for one in map(contrasts.get, board.baselines)
    ]
    marked = zip(DAGGERS, found, strict=False)
    return "".join(mark for mark, on in marked if on and on.verdict == "a")


def describe_daggers(board: Leaderboard) -> str:
    """Return a sentence on the marks, the test and its correction, or "" without baselines."""
    names = ", ".join(map(" ".join, zip(DAGGERS, board.baselines, strict=False)))
    test = (
        "paired randomisation test over queries, p at most .05 with Holm's correction over the "
        "collections of each pair"
    )
    return f"Significantly better than {names}: {test}." if names else ""


def score_cell(row: ModelRow, column: ScoreColumn, measure: str) -> str:
    """Format the score of ``row`` in ``column``: * if in-domain, members missing from a mean."""
    score = row.score_in(column, measure)
    if score is None:
        if isinstance(column, SuiteColumn) and (mean := row.mean(column, measure)):
            return f"{len(mean.missing)} of {len(column.members)} missing"
        return ""
    return fmt.score(score.value) + ("*" if is_in_domain(row, column, measure) else "")


def is_in_domain(row: ModelRow, column: ScoreColumn, measure: str) -> bool:
    """Return True if the model of ``row`` was trained on ``column`` or on a member of it."""
    if isinstance(column, CollectionColumn):
        return column.name in row.cells and row.cells[column.name].in_domain
    mean = row.mean(column, measure)
    return mean is not None and mean.zero_shot_members < len(column.members)


def _zero_shot(row: ModelRow, suite: SuiteColumn, measure: str) -> str:
    mean = row.mean(suite, measure)
    if mean is None or mean.score is None or mean.zero_shot is None:
        return ""
    return f"{fmt.score(mean.zero_shot)} ({mean.zero_shot_members})"


def _notes(board: Leaderboard, headline: ScoreColumn) -> str:
    notes = (
        f"Intervals and groups refer to {escape(fmt.display_name(headline.name))}. Models in a "
        "group do not differ significantly from its best model (5 % level). "
        "An asterisk marks scores on collections that the model was trained on; the zero-shot mean "
        "leaves them out, with the number of remaining collections in parentheses."
    )
    marks = escape(describe_daggers(board))
    return "\n\n".join(filter(None, [notes, marks, bullets(legend(board))]))


def legend(board: Leaderboard) -> list[str]:
    """Return the legend of the intervals and groups of ``board``."""
    differences = (
        "differences from the baseline: bold if significant, Holm-corrected over the collections "
        "of a pair; gate: the decision of `check` with its default limits"
    )
    return [
        fmt.intervals_legend(board.resamples),
        f"groups: {GROUP_TEST}",
        *([differences] if board.baselines else []),
    ]


def _recipes(ranked: Sequence[ModelRow]) -> str:
    """Return a table of recipe and speed of each row, without empty columns."""
    columns: list[Column[ModelRow]] = [
        Column("model", lambda row: row.name),
        *columns_for(RECIPE, lambda row, name: row.recipe.get(name)),
        Column(
            "parameters",
            lambda r: fmt.parameter_count(r.parameters.total) if r.parameters else "unknown",
            fmt.numeric,
        ),
        Column(
            "adapter parameters",
            lambda row: (row.parameters and row.parameters.adapter) or None,
            fmt.parameter_count,
        ),
        Column("bytes per document", lambda row: row.document_bytes, fmt.count),
        Column("lowest judged@10", lowest_judged, fmt.score),
        Column("tokens/s", lambda row: row.tokens_per_s or None, fmt.count),
        Column("machine", lambda row: row.speed_device),
    ]
    return Table(ranked, columns).drop_empty().markdown()


def lowest_judged(row: ModelRow) -> float | None:
    """Return Judged@10 on the collection on which it is lowest for ``row``."""
    judged = [cell.judged_at_10 for cell in row.cells.values() if cell.judged_at_10 is not None]
    return min(judged, default=None)


def _protocols(board: Leaderboard) -> str:
    """Return a table of each column's protocol, since different protocols are not comparable."""
    columns: list[Column[CollectionColumn]] = [
        Column(
            "collection", lambda on: on.label + " (not the published one)" * (on.official is False)
        ),
        Column("queries", lambda on: on.queries, fmt.count),
        Column("documents", lambda on: on.documents, fmt.count),
        *columns_for(PROTOCOL, lambda on, name: on.protocol.get(name)),
    ]
    return Table(board.columns, columns).markdown()


def _published_table(board: Leaderboard, ranked: Sequence[ModelRow], measure: str) -> str:
    """Return a table of published next to measured scores, or "" without published ones."""
    rows = [
        (row.name, column.name, measure or column.main_measure, score)
        for row in ranked
        for column in board.all_columns
        if (score := row.score_in(column, measure)) and score.published is not None
    ]
    columns: list[Column[tuple[str, str, str, Score]]] = [
        Column("model", lambda claim: claim[0]),
        Column("on", lambda claim: claim[1]),
        Column("measure", lambda claim: claim[2]),
        Column("measured", lambda claim: claim[3].value, fmt.score),
        Column("published", lambda claim: claim[3].published, fmt.score),
        Column(
            "difference", lambda claim: claim[3].value - (claim[3].published or 0.0), fmt.signed
        ),
        Column("source", lambda claim: claim[3].source),
    ]
    return Table(rows, columns).markdown() if rows else ""


def _published_systems_table(board: Leaderboard, measure: str) -> str:
    """Return a table of published scores of other systems.

    A published mean appears in the column of its suite.
    """
    claims = [
        (system, scores)
        for system in board.systems()
        if (scores := claimed_scores(board, system, measure))
    ]
    if not claims:
        return "There are no published scores of other systems on these collections."
    columns: list[Column[tuple[SystemClaims, dict[str, float]]]] = [
        Column("published system", lambda claim: system_name(claim[0])),
        *(
            _claims_column(column, measure)
            for column in board.all_columns
            if any(column.name in scores for _, scores in claims)
        ),
        Column("source", lambda claim: claim[0][0].source),
    ]
    notes = [f"{system_name(system)}: {system[0].note}" for system, _ in claims if system[0].note]
    explained = (
        "Published scores of other systems, not measured here. A mean is shown as printed, over "
        "the number of sets in its heading. (copied): read in somebody else's publication."
    )
    parts = [explained, Table(claims, columns).markdown(), *(f"{escape(note)}." for note in notes)]
    return "\n\n".join(parts)


def _claims_column(
    column: ScoreColumn, measure: str
) -> Column[tuple[SystemClaims, dict[str, float]]]:
    members = f" (mean of {len(column.members)})" if isinstance(column, SuiteColumn) else ""
    header = heading(column, measure) + members
    return Column(header, lambda claim: claim[1].get(column.name), fmt.score)


def claimed_scores(board: Leaderboard, system: SystemClaims, measure: str) -> dict[str, float]:
    """Return published scores of ``system`` by the ``measure`` of each column of ``board``."""
    wanted = {column.name: measure or column.main_measure for column in board.all_columns}
    return {claim.name: claim.value for claim in system if claim.measure == wanted[claim.name]}


def system_name(system: SystemClaims) -> str:
    """Return the name of ``system``, marked if its scores were copied from a second-hand source."""
    return system[0].model + (" (copied)" if system[0].second_hand else "")


def scores(board: Leaderboard, measure: str) -> Table[Sequence[Any]]:
    """Return a table of unrounded scores: models by rank, then published systems.

    Each column of the leaderboard is a column here, with None for a gap.
    """
    headline = board.headline(measure)
    rows: list[list[Any]] = []
    for row in board.ranked(measure):
        first, *others = [
            row.score_in(column, measure) for column in (headline, *board.all_columns)
        ]
        rows.append([row.name, first and first.group, *(one and one.value for one in others)])
    for system in board.systems() if board.published else ():
        if claims := claimed_scores(board, system, measure):
            claimed = (claims.get(column.name) for column in board.all_columns)
            rows.append([f"{system_name(system)} (published)", None, *claimed])
    return make_table(["model", "group", *(heading(p, measure) for p in board.all_columns)], rows)


SITE = files("reports") / "site"
SCRIPTS = ("page", "table", "index", "model", "collection")


def page(board: Leaderboard, measure: str) -> str:
    """Return an HTML page that contains its data, style and scripts, and loads nothing else.

    Names in results are not trusted: scripts set them only as text, and the content security policy
    forbids any other script.
    """
    theme, style = read_asset("theme.js"), read_asset("style.css")
    code = "\n".join([*(read_asset(f"{name}.js") for name in SCRIPTS), "start();"])
    return Template(read_asset("shell.html")).substitute(
        scripts=f"{csp_source(theme)} {csp_source(code)}",
        styles=csp_source(style),
        style=style,
        theme=theme,
        code=code,
        data=script_json({"board": board, "measure": measure, "legend": legend(board)}),
    )


def read_asset(name: str) -> str:
    """Read a file of the page in ASCII, so that no change of encoding invalidates its hash."""
    text = (SITE / name).read_text(encoding="utf-8")
    return text.encode("ascii", "backslashreplace").decode()  # escapes as JavaScript reads them


def csp_source(source: str) -> str:
    """Return the hash of a script or style for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def script_json(value: Any) -> str:
    """Return ``value`` as ASCII JSON that cannot end the script element around it."""
    text = json.dumps(msgspec.json.decode(msgspec.json.encode(value)))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
