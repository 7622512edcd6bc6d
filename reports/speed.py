"""A speed report as tables for people: Markdown that also reads well in a terminal."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.speed.records import (
    Growth,
    IndexPoint,
    Latency,
    Phases,
    Race,
    RaceRun,
    SpeedReport,
    Spread,
    Throughput,
)
from reports import format as fmt
from reports.markdown import plain
from reports.table import Column, Table


def speed_tables(report: SpeedReport) -> str:
    """Everything that was measured, a table each, after what it was measured on."""
    return "\n\n".join([plain(_heading(report)), *_sections(report)])


def _sections(report: SpeedReport) -> Iterator[str]:
    if report.phases:
        yield phases_table(report.phases)
    if report.throughput:
        yield throughput_table(report.throughput)
    if report.latency:
        yield latency_table(report.latency)
    if report.indexes:
        yield indexes_table(report.indexes)
    if report.growth:
        yield growth_table(report.growth)
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
    return (
        f"{', '.join(parts)}. Median [quartiles] of {report.repeats} after one uncounted; "
        f"peak memory of this process (VmHWM, mapped files included) {fmt.size(report.peak_bytes)}"
    )


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


def throughput_table(rows: Sequence[Throughput]) -> str:
    """Documents and tokens a second, by length and tool."""
    columns: list[Column[Throughput]] = [
        Column("documents", lambda row: row.lengths.name),
        Column("tool", lambda row: _tool(row.tool, row.version)),
        Column("count", lambda row: row.lengths.documents, fmt.count),
        Column("mean length", lambda row: f"{row.lengths.mean:.1f} {row.lengths.counted_in}"),
        Column("p95", lambda row: row.lengths.p95, fmt.count),
        Column("seconds", lambda row: row.seconds, spread),
        Column("processor, s", lambda row: row.processor_s, _known_spread),
        Column("documents/s", lambda row: row.documents_per_s, fmt.count),
        Column("tokens/s", lambda row: row.tokens_per_s, fmt.count),
        Column("of the peak", lambda row: row.peak_share, _percent),
        Column("our speed-up", _speedup, fmt.written),
        Column("of the processor", lambda row: row.processor_speedup, _times),
        Column("largest difference", lambda row: row.difference, _power_of_ten),
    ]
    return _titled("Encoding, texts to vectors in memory, tools by turns", Table(rows, columns))


def _known_spread(value: Spread | None) -> str:
    return "" if value is None else spread(value)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} x"


def _power_of_ten(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _speedup(row: Throughput) -> str:
    if not row.agrees:
        return "vectors differ"
    return "" if row.speedup is None else f"{row.speedup:.2f} x"


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


def indexes_table(rows: Sequence[IndexPoint]) -> str:
    """Speed against recall, with what an index costs to build and keep."""
    first = rows[0]
    title = (
        f"{first.queries:,} queries in one call over {first.rows:,} x {first.dim} vectors "
        f"({first.vectors}); `flat` is exact search of this program, the others are FAISS"
    )
    columns: list[Column[IndexPoint]] = [
        Column("index", lambda row: row.index),
        Column(f"recall@{first.k}", lambda row: row.recall, fmt.score),
        Column("queries/s", lambda row: row.queries_per_s, partial(spread, digits=0)),
        Column("build, s", lambda row: row.build_s, fmt.fixed(2)),
        Column("size", lambda row: row.index_bytes, fmt.size),
    ]
    return _titled(title, Table(rows, columns))


def growth_table(rows: Sequence[Growth]) -> str:
    """Fitted exponents, with a straight line beside them."""
    title = "How cost grows: cost = constant x size ^ exponent, fitted to medians"
    columns: list[Column[Growth]] = [
        Column("cost", lambda row: row.y),
        Column("against", lambda row: row.x),
        Column("at", lambda row: row.at),
        Column("sizes", lambda row: f"{row.sizes[0]:,.0f} to {row.sizes[-1]:,.0f}", fmt.written),
        Column("exponent", lambda row: row.exponent, fmt.fixed(3)),
        Column("standard error", lambda row: row.error, fmt.fixed(3)),
        Column("straight line", lambda row: f"{row.base:.4g} + {row.per_x:.4g} each", fmt.written),
    ]
    return _titled(title, Table(rows, columns))


def race_table(race: Race) -> str:
    """Tools from process start to scores; no ratio where scores differ."""
    kept = "" if race.limit is None else ", the first ones only: no published score"
    rounds = len(race.runs[0].scores)
    title = (
        f"{race.collection} from end to end, fresh processes and caches, {rounds} "
        f"round{'s' * (rounds > 1)}: {race.documents:,} documents, {race.queries:,} queries{kept}"
    )
    columns: list[Column[RaceRun]] = [
        Column("tool", lambda run: _tool(run.tool, run.version)),
        Column(race.measure, lambda run: run.scores, _different_scores),
        Column("wall, s", lambda run: run.wall_s, spread),
        Column("processor, s", lambda run: run.processor_s, _known_spread),
        Column("peak memory (VmHWM)", lambda run: run.peak_bytes, fmt.size),
        Column("our time / theirs", lambda run: run.ratio, fmt.fixed(3)),
        Column("of the processor", lambda run: run.processor_ratio, fmt.fixed(3)),
    ]
    return f"{_titled(title, Table(race.runs, columns))}\n\n{_verdict(race)}"


def _different_scores(scores: Sequence[float]) -> str:
    return " ".join(dict.fromkeys(f"{value:.5f}" for value in scores))


def _verdict(race: Race) -> str:
    if not race.agree:
        return f"Scores differ by more than {race.tolerance}: no ratio."
    if race.ratio is None:
        return "Nobody to compare with: name tools with --against."
    return f"Scores agree within {race.tolerance}; {race.ratio:.3f} of the fastest other's time."


def _tool(name: str, version: str) -> str:
    first, _, rest = name.partition(" ")
    return " ".join(filter(None, (first, version, rest)))


def spread(of: Spread, digits: int = 3) -> str:
    """Median and quartiles; of one sample, itself."""
    median, q1, q3 = map(fmt.fixed(digits), (of.median, of.q1, of.q3))
    return median if len(of.samples) == 1 else f"{median} [{q1}–{q3}]"


def _titled(title: str, table: Table[Any]) -> str:
    return f"{plain(title)}:\n\n{table.markdown()}"
