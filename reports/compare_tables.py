"""Comparisons of models as tables: Markdown that also reads well in a terminal."""

from collections.abc import Iterator, Sequence

from bench.compare.changed import ChangedQuery, Changes, RankedDocument
from bench.compare.compare import Comparison, OnCollection, OnSuite
from bench.compare.statistics import Paired, Resampling
from foundation.printable import one_line
from reports.markdown import plain, table

TEXT_WIDTH = 80
NAMED = 3  # members of a suite that are named when they are missing
HEADERS = (
    "queries",
    "difference",
    "95 % interval",
    "p",
    "p (Holm)",
    "better",
    "win / tie / loss",
    "effect",
    "detectable",
)


def comparison_table(comparison: Comparison) -> str:
    """Two models: a row for each collection and suite, then what qualifies the figures."""
    a, b = comparison.a, comparison.b
    headers = ["collection", "measure", "queries", a, b, *HEADERS[1:]]
    cells = [_collection_row(row, a, b) for row in comparison.collections]
    cells += [_suite_row(row, a, b) for row in comparison.suites]
    parts = [plain(f"{a} - {b}: above 0, {a} is better"), table(headers, cells, "lr")]
    if notes := list(_notes(comparison)):
        parts.append("\n".join(f"- {plain(note)}" for note in notes))
    if comparison.recipes:
        rows = [[one.field, _cut(one.a) or "-", _cut(one.b) or "-"] for one in comparison.recipes]
        parts.append(table(["what differs in the recipes", a, b], rows, "lr"))
    return "\n\n".join(parts)


def _collection_row(row: OnCollection, a: str, b: str) -> list[str]:
    return [
        row.collection + (" (forced)" if row.protocol else ""),
        row.measure,
        f"{row.queries:,}",
        _score(row.mean_a) + (" (in-domain)" if row.in_domain_a else ""),
        _score(row.mean_b) + (" (in-domain)" if row.in_domain_b else ""),
        *_paired(row.paired, row.p_holm, {"a": a, "b": b}.get(row.verdict, "")),
    ]


def _suite_row(row: OnSuite, a: str, b: str) -> list[str]:
    return [
        f"{'weighted ' if row.weighted else ''}mean of {row.suite}, {row.members} sets"
        + (" (forced)" if row.forced else ""),
        row.measure,
        "",
        _score(row.mean_a),
        _score(row.mean_b),
        *_paired(row.paired, None, {"a": a, "b": b}.get(row.verdict, "")),
    ]


def _paired(found: Paired | None, p_holm: float | None, better: str) -> list[str]:
    """Cells from the difference on; empty ones for a gap."""
    if found is None:
        return [""] * (len(HEADERS) - 1)
    return [
        f"{found.difference:+.4f}",
        _interval(found),
        _p(found.p),
        "" if p_holm is None else _p(p_holm),
        better or "cannot tell",
        f"{found.wins:,} / {found.ties:,} / {found.losses:,}",
        "" if found.effect is None else f"{found.effect:+.2f}",
        _score(found.detectable),
    ]


def _interval(found: Paired) -> str:
    if found.low is None:
        return "" if found.changed else "no query changed"
    return f"{found.low:+.4f} to {found.high:+.4f}" + (" (few)" if found.few else "")


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.00005 else f"{value:.0e}"


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _notes(comparison: Comparison) -> Iterator[str]:
    for row in comparison.collections:
        yield from (f"{row.collection}: missing: {gap}" for gap in row.missing)
        if not row.official:
            yield f"{row.collection}: not the published collection; not in the mean of a suite"
        if row.protocol:
            fields = [f"{one.field} {one.a or '-'} and {one.b or '-'}" for one in row.protocol]
            yield f"{row.collection}: FORCED across protocols: {', '.join(fields)}"
        if row.left_out:
            yield f"{row.collection}: {row.left_out:,} queries that not all models have left out"
    for suite in comparison.suites:
        if suite.missing:
            more = ["…"] if len(suite.missing) > NAMED else []
            named = ", ".join([*suite.missing[:NAMED], *more])
            missing = f"{len(suite.missing)} of {suite.members} missing"
            yield f"{suite.suite}: no mean: {missing}: {named}"
    if any("(few)" in _interval(row.paired) for row in comparison.collections if row.paired):
        yield "(few): too few queries changed for an interval that can be relied on"


def legend(resampling: Resampling) -> str:
    """What the columns are, in one line each."""
    count, seed = resampling.resamples, resampling.seed
    return "\n".join(
        [
            f"interval: bootstrap over the queries of each collection, {count:,} resamples, "
            f"seed {seed}",
            "p: paired randomisation (sign flips); Holm: corrected for the collections of a pair",
            "better: by p at 5 %, on a collection after Holm; effect: mean difference / its "
            "standard deviation",
            "detectable: the true difference that would be found 80 times in 100",
        ]
    )


def changes_table(changes: Changes) -> str:
    """The queries that changed most: what is relevant, and both rankings side by side."""
    heading = f"{changes.collection}, {changes.a} and {changes.b}: "
    if not changes.queries:
        return plain(f"{heading}no query changed, by {changes.measure}")
    shown = f"{len(changes.queries):,} of {changes.changed:,} changed queries"
    heading += f"{shown}, by {changes.measure}"
    without = [f"ids only, no texts and grades: {changes.without}"] if changes.without else []
    queries = [_query(query, changes) for query in changes.queries]
    return "\n\n".join([*map(plain, [heading, *without]), *queries])


def _query(query: ChangedQuery, changes: Changes) -> str:
    text = f": {_cut(query.text)}" if query.text else ""
    scores = (
        f"{changes.a} {query.score_a:.4f}, {changes.b} {query.score_b:.4f} "
        f"({query.score_a - query.score_b:+.4f})"
    )
    parts = [f"{plain(f'query {query.query_id}{text}')}\n{plain(scores)}"]
    if query.answers:
        parts[0] += f"\n{plain('answers: ' + _cut('; '.join(query.answers)))}"
    if query.judged:
        parts.append(_judged(query, changes))
    parts.append(_rankings(query, changes))
    return "\n\n".join(parts)


def _judged(query: ChangedQuery, changes: Changes) -> str:
    headers = ["relevant", "grade", f"rank in {changes.a}", f"rank in {changes.b}", "text"]
    cells = [
        [
            document.doc_id,
            str(document.grade),
            _rank(document.rank_a),
            _rank(document.rank_b),
            _cut(document.text) or "(not in this corpus)",
        ]
        for document in query.judged
    ]
    more = f"\nand {query.more_judged:,} more relevant documents" if query.more_judged else ""
    return table(headers, cells, "lrrrl") + more


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)


def _rankings(query: ChangedQuery, changes: Changes) -> str:
    depth = max(len(query.top_a), len(query.top_b))
    cells = [
        [str(rank + 1), _ranked(query.top_a, rank), _ranked(query.top_b, rank)]
        for rank in range(depth)
    ]
    return table(["rank", changes.a, changes.b], cells, "lr")


def _ranked(top: Sequence[RankedDocument], rank: int) -> str:
    if rank >= len(top):
        return ""
    grade = "" if top[rank].grade is None else f" (grade {top[rank].grade})"
    return top[rank].doc_id + grade


def _cut(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= TEXT_WIDTH else f"{line[: TEXT_WIDTH - 1]}…"
