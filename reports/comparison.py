"""Comparisons of models as Markdown tables that also read well in a terminal."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from bench.comparing.comparison import ChangedQueries, ChangedQuery, ShownDocument
from bench.comparing.pairs import Comparison, ComparisonRow, FieldDifference
from bench.comparing.settling import Holes
from bench.comparing.slices import SliceComparison
from bench.comparing.statistics import Difference, Resampling
from foundation.errors import format_names
from reports import format as fmt
from reports.table import Column, Row, Table, bullets, escape


def comparison_table(comparison: Comparison) -> str:
    """Return ``comparison`` as Markdown: a row for each collection and suite, then notes."""
    a, b = comparison.a, comparison.b
    parts = [escape(f"difference = {a} − {b}. {_finding(comparison)}")]
    parts.append(comparison_rows(comparison, means=True).markdown())
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
    rows = [row for row in comparison.all_rows if row.paired]
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


def fields(*names: str) -> dict[str, Callable[[Any], Any]]:
    """Return values for programs that are attributes of a row."""
    return {name: attrgetter(name) for name in names}


PAIRED_COLUMNS: dict[str, Column[Difference]] = {
    column.header: column
    for column in (
        Column("difference", attrgetter("difference"), fmt.signed),
        Column("95 % interval", lambda pair: pair, fmt.paired_interval, fields("low", "high")),
        Column("p", attrgetter("p"), fmt.p_value),
        Column(
            "p (Holm)", attrgetter("p_adjusted"), fmt.p_value, {"p_holm": attrgetter("p_adjusted")}
        ),
        Column("p (maxT)", attrgetter("p_adjusted"), fmt.p_value, fields("p", "p_adjusted")),
        Column(
            "win / tie / loss",
            lambda pair: pair,
            fmt.win_tie_loss,
            fields("wins", "ties", "losses"),
        ),
        Column("effect", attrgetter("effect"), lambda value: fmt.signed(value, 2)),
        Column("detectable", attrgetter("detectable"), fmt.score),
    )
}


def paired_columns(of: Callable[[Row], Difference | None], *headers: str) -> list[Column[Row]]:
    """Return the `PAIRED_COLUMNS` with these ``headers``; ``of`` returns None for a gap."""
    return [PAIRED_COLUMNS[header].through(of) for header in headers]


def row_columns(a: str, b: str, *names: str) -> list[Column[Any]]:
    """Return columns of a `PairedRow` by their ``names``, of which a and b are its mean scores.

    Their headers are the ``names``, and ``a`` and ``b`` for the mean scores.
    """
    columns: dict[str, Column[Any]] = {
        "collection": Column("collection", attrgetter("on")),
        "measure": Column("measure", attrgetter("measure")),
        "queries": Column("queries", attrgetter("queries"), fmt.count),
        "a": _mean_column(a, "a"),
        "b": _mean_column(b, "b"),
        "difference": Column("difference", attrgetter("difference"), fmt.signed),
    }
    of_pairs = [name for name in names if name not in columns]
    columns |= zip(of_pairs, paired_columns(attrgetter("paired"), *of_pairs), strict=True)
    return [columns[name] for name in names]


def comparison_rows(comparison: Comparison, *, means: bool = False) -> Table[ComparisonRow]:
    """Return a table with a row for each collection, then with ``means`` for each suite."""
    a, b = comparison.a, comparison.b
    scores = ("measure", "queries", "a", "b", "difference", "95 % interval", "p", "p (Holm)")
    columns: list[Column[ComparisonRow]] = [
        Column("collection", _row_name),
        *row_columns(a, b, *scores),
        _better_column(a, b),
        *row_columns(a, b, "win / tie / loss", "effect", "detectable"),
    ]
    return Table(comparison.all_rows if means else comparison.collections, columns)


def slice_rows(compared: SliceComparison) -> Table[ComparisonRow]:
    """Return a table with a row for each slice of one pair of models, the largest loss first."""
    scores = ("measure", "queries", "a", "b", "difference", "95 % interval", "p (maxT)")
    columns: list[Column[ComparisonRow]] = [
        Column(compared.field, lambda row: row.value, fmt.short_text),
        *row_columns(compared.a, compared.b, "collection", *scores),
        _better_column(compared.a, compared.b),
    ]
    return Table(compared.slices, columns)


def slices_text(compared: SliceComparison) -> str:
    """Return the slices of one pair of models as a Markdown table with its heading and legend."""
    heading = f"Slices by {compared.field}, {compared.a} − {compared.b}:"
    note = "p (maxT): corrected for all slices, collections and pairs by joint sign flips"
    return "\n\n".join([escape(heading), slice_rows(compared).markdown(), note])


def _mean_column(model: str, side: str) -> Column[Any]:
    """Return the column of the mean scores of ``model``, which is the ``side`` a or b of a row."""
    mean, in_domain = attrgetter(f"mean_{side}"), attrgetter(f"in_domain_{side}")
    shown = fmt.score_in_domain
    return Column(model, lambda row: (mean(row), in_domain(row)), shown, {model: mean})


def _better_column(a: str, b: str) -> Column[Any]:
    names = {"a": a, "b": b}
    return Column(
        "better",
        lambda row: names.get(row.verdict, "neither") if row.paired else "",
        data={"better": lambda row: names.get(row.verdict, "")},
    )


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
