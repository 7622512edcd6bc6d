"""Comparisons of models as Markdown tables that also read well in a terminal."""

from collections.abc import Iterator, Sequence

from bench.comparing.comparison import ChangedQueries, ChangedQuery, ShownDocument
from bench.comparing.pairs import Comparison, ComparisonRow, FieldDifference
from bench.comparing.settling import Holes
from bench.comparing.slices import SliceComparison, SliceRow
from bench.comparing.statistics import Resampling
from foundation.errors import format_names
from reports import format as fmt
from reports.table import Column, Table, bullets, escape


def comparison_table(comparison: Comparison) -> str:
    """Return ``comparison`` as Markdown: a row for each collection and suite, then notes."""
    a, b = comparison.a, comparison.b
    rows: list[ComparisonRow] = [*comparison.collections, *comparison.suites]
    parts = [escape(f"difference = {a} − {b}. {_finding(comparison)}")]
    parts.append(Table(rows, _columns(a, b)).markdown())
    if notes := list(_notes(comparison)):
        parts.append(bullets(map(escape, notes)))
    if comparison.recipes:
        parts.append(settings_table(comparison.recipes, a, b))
    return "\n\n".join(parts)


def settings_table(differences: Sequence[FieldDifference], a: str, b: str) -> str:
    """Return settings and files in which the models ``a`` and ``b`` differ, as Markdown."""
    columns: list[Column[FieldDifference]] = [
        Column("different settings", lambda difference: difference.field),
        Column(a, lambda difference: difference.a or "-", fmt.short_text),
        Column(b, lambda difference: difference.b or "-", fmt.short_text),
    ]
    return Table(differences, columns).markdown()


def _finding(comparison: Comparison) -> str:
    """Return a sentence on which model is better, for each answer."""
    rows = [row for row in (*comparison.collections, *comparison.suites) if row.paired]
    answers = {
        "a": f"{comparison.a} is better",
        "b": f"{comparison.b} is better",
        "neither": "There is no significant difference",
    }
    sentences = []
    for verdict, answer in answers.items():
        if names := [_row_name(row) for row in rows if row.verdict == verdict]:
            sentences.append(f"{answer} on {format_names(names)}.")
    return " ".join(sentences) or "They share no collection."


def comparison_data(comparison: Comparison) -> Table[ComparisonRow]:
    """Return a table with a row for each collection of ``comparison``."""
    better = {"a": comparison.a, "b": comparison.b, "neither": ""}
    columns: list[Column[ComparisonRow]] = [
        Column("collection", lambda row: row.on),
        Column("measure", lambda row: row.measure),
        Column("queries", lambda row: row.queries),
        Column(comparison.a, lambda row: row.mean_a),
        Column(comparison.b, lambda row: row.mean_b),
        Column("difference", lambda row: row.paired and row.paired.difference),
        Column("low", lambda row: row.paired and row.paired.low),
        Column("high", lambda row: row.paired and row.paired.high),
        Column("p", lambda row: row.paired and row.paired.p),
        Column("p_holm", lambda row: row.paired and row.paired.p_adjusted),
        Column("better", lambda row: better[row.verdict]),
    ]
    return Table(comparison.collections, columns)


def _columns(a: str, b: str) -> list[Column[ComparisonRow]]:
    better = {"a": a, "b": b, "neither": "neither"}
    return [
        Column("collection", _row_name),
        Column("measure", lambda row: row.measure),
        Column("queries", lambda row: row.queries, fmt.count),
        Column(a, lambda row: (row.mean_a, row.in_domain_a), fmt.score_in_domain),
        Column(b, lambda row: (row.mean_b, row.in_domain_b), fmt.score_in_domain),
        Column("difference", lambda row: row.paired and row.paired.difference, fmt.signed),
        Column("95 % interval", lambda row: row.paired, fmt.paired_interval),
        Column("p", lambda row: row.paired and row.paired.p, fmt.p_value),
        Column("p (Holm)", lambda row: row.paired and row.paired.p_adjusted, fmt.p_value),
        Column("better", lambda row: better[row.verdict] if row.paired else ""),
        Column("win / tie / loss", lambda row: row.paired, fmt.win_tie_loss),
        Column("effect", lambda row: row.paired and row.paired.effect, lambda v: fmt.signed(v, 2)),
        Column("detectable", lambda row: row.paired and row.paired.detectable, fmt.score),
    ]


def slices_text(compared: SliceComparison) -> str:
    """Return the slices of one pair of models as a Markdown table, the largest loss first."""
    better = {"a": compared.a, "b": compared.b, "neither": "neither"}
    columns: list[Column[SliceRow]] = [
        Column(compared.field, lambda row: row.value, fmt.short_text),
        Column("collection", lambda row: row.on),
        Column("queries", lambda row: row.queries, fmt.count),
        Column(compared.a, lambda row: row.mean_a, fmt.score),
        Column(compared.b, lambda row: row.mean_b, fmt.score),
        Column("difference", lambda row: row.paired and row.paired.difference, fmt.signed),
        Column("95 % interval", lambda row: row.paired, fmt.paired_interval),
        Column("p (maxT)", lambda row: row.paired and row.paired.p_adjusted, fmt.p_value),
        Column("better", lambda row: better[row.verdict]),
    ]
    heading = f"Slices by {compared.field}, {compared.a} − {compared.b}:"
    note = "p (maxT): corrected for all slices, collections and pairs by joint sign flips"
    return "\n\n".join([escape(heading), Table(compared.slices, columns).markdown(), note])


def slices_data(compared: SliceComparison) -> Table[SliceRow]:
    """Return a table with a row for each slice of one pair of models, for programs."""
    better = {"a": compared.a, "b": compared.b, "neither": ""}
    columns: list[Column[SliceRow]] = [
        Column("collection", lambda row: row.on),
        Column(compared.field, lambda row: row.value),
        Column("measure", lambda row: row.measure),
        Column("queries", lambda row: row.queries),
        Column(compared.a, lambda row: row.mean_a),
        Column(compared.b, lambda row: row.mean_b),
        Column("difference", lambda row: row.paired and row.paired.difference),
        Column("low", lambda row: row.paired and row.paired.low),
        Column("high", lambda row: row.paired and row.paired.high),
        Column("p", lambda row: row.paired and row.paired.p),
        Column("p_adjusted", lambda row: row.paired and row.paired.p_adjusted),
        Column("better", lambda row: better[row.verdict]),
    ]
    return Table(compared.slices, columns)


def _row_name(row: ComparisonRow) -> str:
    weighted, suite = "weighted " * row.weighted, fmt.display_name(row.on)
    return f"{weighted}mean of {suite}, {row.members} sets" if row.members else row.on


def _notes(comparison: Comparison) -> Iterator[str]:
    for row in comparison.collections:
        yield from (f"{row.on}: missing: {gap}" for gap in row.missing)
        if row.official is False:
            yield f"{row.on}: not the published collection; not in the mean of a suite"
        if row.overlay:
            yield f"{row.on}: imported judgements count, too (overlay {row.overlay})"
        sides = (
            (comparison.a, row.latency_a, row.fewest_a),
            (comparison.b, row.latency_b, row.fewest_b),
        )
        for name, latency, fewest in sides:
            if fewest is not None:
                counted = f"and {row.measure} counts more"
                yield f"{row.on}: {name} returned at fewest {fewest:,} documents, {counted}"
            if latency:
                yield f"{row.on}: latency of {name}: {fmt.latency(latency)}"
    for suite in comparison.suites:
        if suite.missing:
            missing = f"{len(suite.missing)} of {suite.members} missing"
            yield f"{fmt.display_name(suite.on)}: no mean: {missing}: {format_names(suite.missing)}"
    pairs = filter(None, (row.paired for row in comparison.collections))
    if any("(few)" in fmt.paired_interval(pair) for pair in pairs):
        yield "(few): too few queries changed for a reliable interval"


def legend(resampling: Resampling, pairs: int) -> str:
    """Return the meaning of the columns for so many ``pairs``, and the settings, a line each."""
    family = f"the collections of all {pairs:,} pairs" if pairs > 1 else "the collections"
    mean = "of a mean: for the pairs" if pairs > 1 else "of a mean: not corrected"
    return "\n".join(
        [
            fmt.intervals_legend(resampling.resamples, resampling.seed),
            fmt.tests_legend(f"{family} ({mean})"),
            "better: significant at 5 %, on a collection by p (Holm); effect: mean difference / "
            "its standard deviation",
            fmt.DETECTABLE_LEGEND,
        ]
    )


def holes_text(holes: Sequence[Holes]) -> str:
    """Return what unjudged documents can change, a line for each pair and collection."""
    return f"Unjudged documents:\n\n{bullets(escape(str(each)) for each in holes)}"


def changes_table(changes: ChangedQueries) -> str:
    """Return the most changed queries in ``changes``, with relevant documents and both ranks."""
    heading = f"{changes.collection}, {changes.a} and {changes.b}: "
    if not changes.queries:
        return escape(f"{heading}no query changed, by {changes.measure}")
    shown = f"{len(changes.queries):,} of {changes.changed:,} changed queries"
    heading += f"{shown}, by {changes.measure}"
    without = [f"ids only, without texts and grades: {changes.without}"] if changes.without else []
    queries = [_query(query, changes) for query in changes.queries]
    return "\n\n".join([*map(escape, [heading, *without]), *queries])


def _query(query: ChangedQuery, changes: ChangedQueries) -> str:
    text = f": {fmt.short_text(query.text)}" if query.text else ""
    lines = [
        f"query {query.query_id}{text}",
        f"{changes.a} {fmt.score(query.score_a)}, {changes.b} {fmt.score(query.score_b)} "
        f"({fmt.signed(query.score_a - query.score_b)})",
    ]
    if query.answers:
        lines.append(f"answers: {fmt.short_text('; '.join(query.answers))}")
    columns: list[Column[ShownDocument]] = [
        Column("document", lambda document: document.doc_id),
        Column("grade", lambda document: document.grade, fmt.count),
        Column(f"rank in {changes.a}", lambda document: document.rank_a or "-", "{}".format),
        Column(f"rank in {changes.b}", lambda document: document.rank_b or "-", "{}".format),
        Column("text", lambda document: document.text, fmt.short_text),
    ]
    head = "\n".join(map(escape, lines))
    return f"{head}\n\n{Table(query.documents, columns).markdown()}"
