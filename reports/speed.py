"""Tables of a speed report: Markdown that reads well in a terminal."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.speed.speed_report import (
    IndexCurve,
    IndexPoint,
    QueryLatency,
    SpeedReport,
    Spread,
    ToolComparison,
    ToolTiming,
)
from foundation.machine import format_size
from reports import format as fmt
from reports.table import Column, Table, columns_for, escape

TimedTool = tuple[ToolComparison, ToolTiming]


def speed_tables(report: SpeedReport) -> str:
    """Return all results of ``report`` as tables, below a line about model and machine."""
    return "\n\n".join([escape(_heading(report)), *_sections(report)])


def _sections(report: SpeedReport) -> Iterator[str]:
    if report.encoding:
        yield encoding_table(report.encoding)
    if report.latency:
        yield latency_table(report.latency)
    if report.indexes:
        yield indexes_table(report.indexes)
    if report.races:
        yield race_table(report.races)
    phased = [one for one in (*report.encoding, *report.races) if one.tools[0].phases_s]
    if phased:
        yield phases_table(phased)


def _heading(report: SpeedReport) -> str:
    conditions = report.conditions
    commit = conditions.commit[:12] + (" with changes" if conditions.dirty else "")
    parts = [
        report.model,
        conditions.device,
        report.processor,
        f"{report.torch_threads} threads",
        report.recipe.precision,
        *filter(None, [report.recipe.compression.label]),
        f"commit {commit}" if commit else f"version {conditions.bench}",
        f"load {report.load:.1f} before it began",
    ]
    return f"{', '.join(parts)}. Median [quartiles] of {report.repeats} after one uncounted"


def phases_table(comparisons: Sequence[ToolComparison]) -> str:
    """Return a table of our seconds by phase in ``comparisons``."""
    title = "Our phases in seconds; those that run beside each other overlap"
    names = dict.fromkeys(
        name for comparison in comparisons for name in comparison.tools[0].phases_s
    )
    columns: list[Column[ToolComparison]] = [
        Column("documents", lambda comparison: comparison.name),
        *columns_for(names, lambda row, name: row.tools[0].phases_s.get(name), spread),
        Column("total, wall-clock", lambda comparison: comparison.tools[0].wall_s, spread),
    ]
    return _titled(title, Table(comparisons, columns))


def encoding_table(comparisons: Sequence[ToolComparison]) -> str:
    """Return a table of documents and tokens per second in ``comparisons``, by length and tool."""
    columns: list[Column[TimedTool]] = [
        Column("documents", lambda row: row[0].name),
        Column("tool", lambda row: _tool(row[1])),
        Column("count", lambda row: row[0].documents, fmt.count),
        Column("mean length", lambda row: _mean_length(row[0])),
        Column("p95", lambda row: row[0].p95, fmt.count),
        Column("documents/s", lambda row: row[0].documents / row[1].wall_s.median, fmt.count),
        Column("tokens/s", lambda row: row[0].tokens / row[1].wall_s.median, fmt.count),
    ]
    return _compared(
        "Encoding, texts to vectors in memory, tools in alternation", comparisons, columns
    )


def _compared(
    title: str, comparisons: Sequence[ToolComparison], columns: Sequence[Column[TimedTool]]
) -> str:
    """Return a table of all tools in each comparison, with times and our speed-up."""
    rows = [(comparison, tool) for comparison in comparisons for tool in comparison.tools]
    timings: list[Column[TimedTool]] = [
        Column("wall, s", lambda row: row[1].wall_s, spread),
        Column("processor, s", lambda row: row[1].processor_s, spread),
        Column("largest difference", lambda row: f"{row[1].difference:.1e}", fmt.numeric),
        Column("our speed-up", lambda row: _speedup(row[1]), fmt.numeric),
    ]
    return _titled(title, Table(rows, [*columns, *timings]))


def _mean_length(comparison: ToolComparison) -> str:
    return f"{comparison.tokens / comparison.documents:.1f} {comparison.counted_in}"


def _speedup(tool: ToolTiming) -> str:
    if not tool.agrees:
        return "results differ"
    return "" if tool.ratio is None else f"{tool.ratio:.2f} x"


def latency_table(rows: Sequence[QueryLatency]) -> str:
    """Return a table of the latencies in ``rows``."""
    first = rows[0]
    title = (
        f"One query at a time ({len(first.samples_ms):,} of them), exact search over "
        f"{first.rows:,} vectors, k = {first.k}"
    )
    columns: list[Column[QueryLatency]] = [
        Column("", lambda row: row.what),
        Column("p50, ms", lambda row: row.p50_ms, fmt.fixed_digits(2)),
        Column("p95, ms", lambda row: row.p95_ms, fmt.fixed_digits(2)),
    ]
    return _titled(title, Table(rows, columns))


def indexes_table(curve: IndexCurve) -> str:
    """Return a table of speed against recall in ``curve``, with build time and size."""
    title = (
        f"{curve.queries:,} queries in one call over {curve.rows:,} x {curve.dim} vectors "
        f"({curve.vectors}); `flat` is exact search of this program, the others are FAISS"
    )
    columns: list[Column[IndexPoint]] = [
        Column("index", lambda row: row.index),
        Column(f"recall@{curve.k}", lambda row: row.recall, fmt.score),
        Column("queries/s", lambda row: row.queries_per_s, partial(spread, digits=0)),
        Column("build, s", lambda row: row.build_s, fmt.fixed_digits(2)),
        Column("size", lambda row: row.index_bytes, format_size),
    ]
    return _titled(title, Table(curve.points, columns))


def race_table(races: Sequence[ToolComparison]) -> str:
    """Return a table of ``races`` from process start to scores, without ratios if scores differ."""
    rounds = len(races[0].tools[0].wall_s.samples)
    title = (
        f"From end to end, fresh processes and caches, {rounds} round{'s' * (rounds > 1)}, "
        f"{races[0].measure} that agree within {races[0].tolerance}"
    )
    columns: list[Column[TimedTool]] = [
        Column("collection", lambda row: row[0].name),
        Column("documents", lambda row: row[0].documents, fmt.count),
        Column("queries", lambda row: row[0].queries, fmt.count),
        Column("tool", lambda row: _tool(row[1])),
        Column(races[0].measure, lambda row: row[1].score, fmt.fixed_digits(5)),
    ]
    return _compared(title, races, columns)


def _tool(tool: ToolTiming) -> str:
    first, _, rest = tool.tool.partition(" ")
    return " ".join(filter(None, (first, tool.version, rest)))


def spread(of: Spread, digits: int = 3) -> str:
    """Format median and quartiles ``of`` samples with ``digits``, or a single sample as itself."""
    median, q1, q3 = map(fmt.fixed_digits(digits), (of.median, of.q1, of.q3))
    return median if len(of.samples) == 1 else f"{median} [{q1}–{q3}]"


def _titled(title: str, table: Table[Any]) -> str:
    return f"{escape(title)}:\n\n{table.markdown()}"
