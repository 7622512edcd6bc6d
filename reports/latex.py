"""Tables of scores for papers, in LaTeX with booktabs.

A score is bold only if it is significantly better than the others of its column, in a leaderboard
than the next best. Marks follow a score: daggers for significance, an asterisk for collections that
a model was trained on. Captions name the test and its correction.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.boards.leaderboard_record import Leaderboard, ModelRow, ScoreColumn
from bench.comparing.pairs import Comparison, ComparisonRow
from bench.experiments.report_record import Effect, Report, RowResult
from foundation.errors import format_count, to_one_line
from reports import format as fmt
from reports.leaderboard import (
    DAGGERS,
    GROUP_TEST,
    daggers,
    describe_daggers,
    is_in_domain,
    label_of,
)

NO_LIGATURE = "\u200b"
LIGATURE = re.compile(r"(?<=[-`'?!,])(?=[-`'?!,])")  # as -- and ?`
# Characters that LaTeX reads as commands, or that its standard fonts lack.
SPECIAL = str.maketrans({letter: f"\\{letter}" for letter in "&%$#_{}"}) | str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "−": "$-$",
        "±": r"$\pm$",
        "–": "--",
        "…": r"\ldots{}",
        "*": r"$^*$",
        "†": r"$^\dagger$",
        "‡": r"$^\ddagger$",
        "§": r"$^\S$",
        "¶": r"$^\P$",
        "[": "{[}",  # a bracket after the end of a line is a length
        NO_LIGATURE: "{}",
    }
)


def escape_latex(text: str) -> str:
    """Escape ``text`` for LaTeX, on one line. Daggers and asterisks become superscripts."""
    return LIGATURE.sub(NO_LIGATURE, to_one_line(text)).translate(SPECIAL)


class LatexCell(NamedTuple):
    """A score, or None if there is none, the text after it, and whether the score is bold."""

    score: float | None = None
    after: str = "–"
    bold: bool = False

    def latex(self) -> str:
        """Return the cell in LaTeX."""
        score = "" if self.score is None else f"{self.score:.3f}"
        return (rf"\textbf{{{score}}}" if self.bold else score) + _after_score(self.after)


GAP = LatexCell()


def table_of_scores(
    names: Sequence[str], columns: Mapping[str, Sequence[LatexCell]], caption: str, label: str
) -> str:
    """Return a table in LaTeX.

    Args:
        names: name of each row.
        columns: a cell of each row by header. A line break in a header makes a second line.
        caption: caption, to be escaped.
        label: follows ``tab:``.
    """
    heads = [["", ""], *(header.partition("\n")[::2] for header in columns)]
    rows = zip(names, *columns.values(), strict=True)
    lines = [[escape_latex(name), *(cell.latex() for cell in cells)] for name, *cells in rows]
    label = re.sub(r"[^A-Za-z0-9-]+", "-", label)
    first, second = ([escape_latex(head[place]) for head in heads] for place in (0, 1))
    headers = [first, second] if any(second) else [first]
    body = [" & ".join(line) + r" \\" for line in [*headers, *lines]]
    body.insert(len(headers), r"\midrule")
    return "\n".join(
        [
            *(r"\begin{table}", r"\centering", r"\setlength{\belowcaptionskip}{4pt}"),
            *(rf"\caption{{{escape_latex(caption)}}}", rf"\label{{tab:{label}}}"),
            *(rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule", *body),
            *(r"\bottomrule", r"\end{tabular}", r"\end{table}", ""),
        ]
    )


def _after_score(text: str) -> str:
    """Escape the text after a score. Its marks have no width, so that digits are aligned."""
    marks = text[len(text.rstrip("*" + DAGGERS)) :]
    shown = escape_latex(text.removesuffix(marks).replace("-", "−"))
    return shown + (rf"\rlap{{{escape_latex(marks)}}}" if marks else "")


def board_latex(board: Leaderboard, measure: str) -> str:
    """Return measured scores of ``board`` by ``measure``: models by collections."""
    rows = board.ranked(measure)
    columns = [one for one in board.all_columns if any(row.score_in(one, measure) for row in rows)]
    measures = {measure or column.main_measure for column in columns}
    bare = {label_of(column).rpartition("/")[2] for column in columns}

    def header(column: ScoreColumn) -> str:
        label = label_of(column)
        name = label.rpartition("/")[2] if len(bare) == len(columns) else label
        return name if len(measures) == 1 else f"{name}\n{measure or column.main_measure}"

    leaders = {column.name: _sole_leader(rows, column, measure) for column in columns}

    def cell(row: ModelRow, column: ScoreColumn) -> LatexCell:
        score = row.score_in(column, measure)
        marks = "*" * is_in_domain(row, column, measure) + daggers(board, row, column, measure)
        return LatexCell(score.value, marks, row is leaders[column.name]) if score else GAP

    cells = {header(column): [cell(row, column) for row in rows] for column in columns}
    marks = {letter for scores in cells.values() for one in scores for letter in one.after}
    caption = [
        f"{measures.pop() if len(measures) == 1 else 'Scores'} of {len(rows):,} models.",
        f"A bold score is significantly better than the next best ({GROUP_TEST})."
        if any(leaders.values())
        else "",
        describe_daggers(board),
    ]
    if "*" in marks:
        caption.append("* marks collections that the model was trained on.")
    names = [row.name for row in rows]
    return table_of_scores(names, cells, " ".join(filter(None, caption)), "leaderboard")


def _sole_leader(rows: Sequence[ModelRow], column: ScoreColumn, measure: str) -> ModelRow | None:
    """Return the only row in the first of several groups of a column, or None."""
    scores = (row.score_in(column, measure) for row in rows)
    groups = [score and score.group for score in scores]
    has_others = any(group and group > 1 for group in groups)
    return rows[groups.index(1)] if has_others and groups.count(1) == 1 else None


def _of_pairs(pairs: int) -> str:
    return f" of all {pairs:,} pairs" if pairs > 1 else ""


def comparisons_latex(comparisons: Sequence[Comparison]) -> str:
    """Return one table: the scores of a single pair, or the differences of several."""
    if len(comparisons) == 1:
        return comparison_latex(comparisons[0])

    def cell(row: ComparisonRow | None) -> LatexCell:
        if row is None or not row.paired:
            return GAP
        difference, interval = fmt.signed(row.paired.difference, 3), fmt.interval(row.paired, 3)
        dagger = "†" * (row.verdict in ("a", "b"))
        return LatexCell(after=f"{difference} ({interval}){dagger}")

    by_header = [_rows_by_header(one) for one in comparisons]
    headers = dict.fromkeys(header for rows in by_header for header in rows)
    columns = {header: [cell(rows.get(header)) for rows in by_header] for header in headers}
    names = [f"{one.a} − {one.b}" for one in comparisons]
    caption = (
        "Differences with 95 % intervals by bootstrap over queries. † marks a significant one "
        "(paired randomisation test over queries, p at most .05, Holm-corrected over the "
        f"collections{_of_pairs(comparisons[0].pairs)})."
    )
    return table_of_scores(names, columns, caption, "differences")


def _rows_by_header(comparison: Comparison) -> dict[str, ComparisonRow]:
    return {f"{fmt.display_name(row.on)}\n{row.measure}": row for row in comparison.all_rows}


def comparison_latex(comparison: Comparison) -> str:
    """Return ``comparison``: the two models and their difference by collections and suites."""
    a, b = comparison.a, comparison.b

    def cells(row: ComparisonRow) -> list[LatexCell]:
        sides = (row.mean_a, row.verdict == "a"), (row.mean_b, row.verdict == "b")
        scores = [
            GAP if mean is None else LatexCell(mean, "†" * best, best) for mean, best in sides
        ]
        if not row.paired:
            return [*scores, GAP, GAP, GAP]
        pair = row.paired
        p = "" if pair.p_adjusted is None else fmt.p_value(pair.p_adjusted)
        more = fmt.signed(pair.difference, 3), fmt.interval(pair, 3), p
        return [*scores, *(LatexCell(after=text) for text in more)]

    columns = {header: cells(row) for header, row in _rows_by_header(comparison).items()}
    caption = (
        f"{a} compared with {b}. Bold and † mark the significantly better model (paired "
        "randomisation test over queries, p at most .05, Holm-corrected over the collections"
        f"{_of_pairs(comparison.pairs)}); intervals by bootstrap over queries."
    )
    names = [a, b, "difference", "95 % interval", "p (Holm)"]
    return table_of_scores(names, columns, caption, f"{a}-{b}")


def report_latex(report: Report) -> str:
    """Return the rows of ``report`` by collections, their mean first, and the factors' effects."""
    seeds = len(report.seeds) if report.trains else 1

    best = {name: _distinguished(report, name) for name in report.collections}

    def cell(row: RowResult, name: str) -> LatexCell:
        on = row.on_collection(name)
        if on is None or on.score is None:
            return GAP
        half = fmt.half_width(on.score, 3)
        if seeds > sum(bool(cell.scores) for cell in row.cells) == 1:
            half = " (one seed)"
        dagger = "†" * (on.verdict in ("better", "worse"))
        return LatexCell(on.score.value, half + dagger, row is best[name])

    def measure(name: str) -> str:
        return next((on.measure for row in report.rows if (on := row.on_collection(name))), "")

    headers = {f"{name}\n{measure(name)}": name for name in reversed(report.collections)}
    columns = {header: [cell(row, name) for row in report.rows] for header, name in headers.items()}
    test = "t test over seeds and queries" if seeds > 1 else "paired test over queries"
    over = f", mean over {seeds} seeds ± 95 %" if seeds > 1 else ""
    caption = (
        f"{report.title or report.name}{over}. "
        "† marks a significant difference from the row that it was compared with, "
        f"usually {report.rows[0].name} ({test}, p at most .05, Holm-corrected over the rows)."
    )
    if any(best.values()):
        caption += " A bold score is significantly better than all others of its column."
    scores = (on.score for row in report.rows for on in row.on if on.score)
    if any(score.seeds_sd is not None and score.high is None for score in scores):
        caption += f" {fmt.NOTHING_VARIES}."
    names = [row.name for row in report.rows]
    table = table_of_scores(names, columns, caption, report.name)
    return table + (f"\n{_effects_latex(report, headers, test)}" if report.effects else "")


def _effects_latex(report: Report, headers: Mapping[str, str], test: str) -> str:
    """Return the effects of factors, with a column for each collection in ``headers``."""

    def cell(effect: Effect, name: str) -> LatexCell:
        on = effect.on_collection(name)
        if on is None or on.difference is None:
            return GAP
        found = on.difference
        shown = fmt.signed(found.value, 3) + fmt.half_width(found, 3)
        return LatexCell(after=shown + "†" * (on.verdict in ("better", "worse")))

    columns = {
        header: [cell(effect, name) for effect in report.effects]
        for header, name in headers.items()
    }
    names = [
        f"interaction {each.change}" if each.is_interaction else each.change
        for each in report.effects
    ]
    caption = (
        f"{report.title or report.name}: effects of the factors ± 95 %, over "
        f"{format_count(len(report.seeds), 'seed', 'seeds')}. † marks an effect that differs "
        f"significantly from 0 ({test}, p at most .05, Holm-corrected over the effects)."
    )
    if report.has_three_factors:
        caption += " Interactions of three or more factors are not shown."
    return table_of_scores(names, columns, caption, f"{report.name}-effects")


def _distinguished(report: Report, name: str) -> RowResult | None:
    """Return the row that is significantly better than all others, or None."""
    scored = [
        (on.score.value, row, on)
        for row in report.rows
        if (on := row.on_collection(name)) and on.score
    ]
    if len(scored) < 2:
        return None
    _, top, top_on = max(scored, key=lambda each: each[0])
    is_better = (
        (row.against == top.name and on.verdict == "worse")
        or (top.against == row.name and top_on.verdict == "better")
        for _, row, on in scored
        if row is not top
    )
    return top if all(is_better) else None
