"""A speed report as tables for people: Markdown that also reads well in a terminal."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.speed.records import (
    Contest,
    Contestant,
    IndexCurve,
    IndexPoint,
    Latency,
    Phases,
    SpeedReport,
    Spread,
)
from reports import format as fmt
from reports.table import Column, Table, plain


def speed_tables(report: SpeedReport) -> str:
    """Everything that was measured, a table each, after what it was measured on."""
    return "\n\n".join([plain(_heading(report)), *_sections(report)])


def _sections(report: SpeedReport) -> Iterator[str]:
    if report.phases:
        yield phases_table(report.phases)
    if report.encoding:
        yield encoding_table(report.encoding)
    if report.latency:
        yield latency_table(report.latency)
    if report.indexes:
        yield indexes_table(report.indexes)
    yield from map(race_table, report.races)


def _heading(report: SpeedReport) -> str:
    conditions = report.conditions
    commit = conditions.commit[:12] + (" with changes" if conditions.dirty else "")
    parts = [
        report.model,
        conditions.device,
        report.processor,
        f"{report.torch_threads} threads",
        report.recipe.dtype,
        f"commit {commit}" if commit else f"version {conditions.bench}",
        f"load {report.load:.1f} before it began",
    ]
    return f"{', '.join(parts)}. Median [quartiles] of {report.repeats} after one uncounted"


def phases_table(phases: Phases) -> str:
    """Where the time of whole evaluations goes."""
    title = (
        f"Whole evaluations of {phases.documents:,} documents and {phases.queries:,} queries of "
        f"{phases.collection} ({phases.tokens:,} tokens); the first, with imports, "
        f"{phases.cold_s:.2f} s. Phases may run beside each other"
    )
    whole = phases.wall_s
    rows = sorted(phases.busy_s.items(), key=lambda item: -item[1].median)
    columns: list[Column[tuple[str, Spread]]] = [
        Column("phase", lambda row: row[0]),
        Column("seconds", lambda row: row[1], spread),
        Column("of the whole", lambda row: f"{row[1].median / whole.median:.0%}", fmt.written),
    ]
    return _titled(title, Table([*rows, ("all, on the wall", whole)], columns))


def encoding_table(contests: Sequence[Contest]) -> str:
    """Documents and tokens a second, by length and tool."""
    rows = [(contest, tool) for contest in contests for tool in contest.tools]
    columns: list[Column[tuple[Contest, Contestant]]] = [
        Column("documents", lambda row: row[0].name),
        Column("tool", lambda row: _tool(row[1])),
        Column("count", lambda row: row[0].documents, fmt.count),
        Column("mean length", lambda row: _mean_length(row[0])),
        Column("p95", lambda row: row[0].p95, fmt.count),
        Column("documents/s", lambda row: row[0].documents / row[1].wall_s.median, fmt.count),
        Column("tokens/s", lambda row: row[0].tokens / row[1].wall_s.median, fmt.count),
        *_timings(lambda row: row[1]),
    ]
    return _titled("Encoding, texts to vectors in memory, tools by turns", Table(rows, columns))


def _mean_length(contest: Contest) -> str:
    return f"{contest.tokens / contest.documents:.1f} {contest.counted_in}"


def _timings(tool_of: Any) -> list[Column[Any]]:
    """Columns that every contest has: times, and how many times as long as ours they are."""
    return [
        Column("wall, s", lambda row: tool_of(row).wall_s, spread),
        Column("processor, s", lambda row: tool_of(row).processor_s, spread),
        Column("largest difference", lambda row: f"{tool_of(row).difference:.1e}", fmt.written),
        Column("our speed-up", lambda row: _speedup(tool_of(row)), fmt.written),
        Column("of the processor", lambda row: _times(tool_of(row).processor_ratio), fmt.written),
    ]


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} x"


def _speedup(tool: Contestant) -> str:
    return _times(tool.ratio) if tool.agrees else "results differ"


def latency_table(rows: Sequence[Latency]) -> str:
    """One query at a time."""
    first = rows[0]
    title = (
        f"One query at a time ({len(first.samples_ms):,} of them), exact search over "
        f"{first.rows:,} vectors, k = {first.k}"
    )
    columns: list[Column[Latency]] = [
        Column("", lambda row: row.what),
        Column("p50, ms", lambda row: row.p50_ms, fmt.fixed(2)),
        Column("p95, ms", lambda row: row.p95_ms, fmt.fixed(2)),
    ]
    return _titled(title, Table(rows, columns))


def indexes_table(curve: IndexCurve) -> str:
    """Speed against recall, with what an index costs to build and keep."""
    title = (
        f"{curve.queries:,} queries in one call over {curve.rows:,} x {curve.dim} vectors "
        f"({curve.vectors}); `flat` is exact search of this program, the others are FAISS"
    )
    columns: list[Column[IndexPoint]] = [
        Column("index", lambda row: row.index),
        Column(f"recall@{curve.k}", lambda row: row.recall, fmt.score),
        Column("queries/s", lambda row: row.queries_per_s, partial(spread, digits=0)),
        Column("build, s", lambda row: row.build_s, fmt.fixed(2)),
        Column("size", lambda row: row.index_bytes, fmt.size),
    ]
    return _titled(title, Table(curve.points, columns))


def race_table(race: Contest) -> str:
    """Tools from process start to scores; no ratio where scores differ."""
    rounds = len(race.tools[0].wall_s.samples)
    title = (
        f"{race.name} from end to end, fresh processes and caches, {rounds} "
        f"round{'s' * (rounds > 1)}: {race.documents:,} documents, {race.queries:,} queries"
    )
    columns: list[Column[Contestant]] = [
        Column("tool", _tool),
        Column(race.measure, lambda tool: tool.score, fmt.fixed(5)),
        *_timings(lambda tool: tool),
    ]
    return f"{_titled(title, Table(race.tools, columns))}\n\n{_verdict(race)}"


def _verdict(race: Contest) -> str:
    if not race.agree:
        return f"Scores differ by more than {race.tolerance}: no winner."
    others = [tool.ratio for tool in race.tools if tool.ratio is not None]
    if not others:
        return "Nobody to compare with: name tools with --against."
    return f"Scores agree within {race.tolerance}; the fastest other takes {min(others):.2f} x."


def _tool(tool: Contestant) -> str:
    first, _, rest = tool.tool.partition(" ")
    return " ".join(filter(None, (first, tool.version, rest)))


def spread(of: Spread, digits: int = 3) -> str:
    """Median and quartiles; of one sample, itself."""
    median, q1, q3 = map(fmt.fixed(digits), (of.median, of.q1, of.q3))
    return median if len(of.samples) == 1 else f"{median} [{q1}–{q3}]"


def _titled(title: str, table: Table[Any]) -> str:
    return f"{plain(title)}:\n\n{table.markdown()}"
