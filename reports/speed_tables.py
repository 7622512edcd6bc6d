"""A speed report as tables for people: Markdown that also reads well in a terminal."""

from collections.abc import Iterator, Sequence

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
from reports.markdown import plain, table
from reports.tables import size


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
        f"peak memory of this process (VmHWM, mapped files included) {size(report.peak_bytes)}"
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
    cells = [[name, _spread(spent), f"{spent.median / whole.median:.0%}"] for name, spent in rows]
    cells.append(["all, on the wall", _spread(whole), "100%"])
    return _titled(title, ["phase", "seconds", "of the whole"], cells)


def throughput_table(rows: Sequence[Throughput]) -> str:
    """Documents and tokens a second, by length and tool."""
    headers = ["documents", "tool", "count", "mean length", "p95", "seconds"]
    headers += ["documents/s", "tokens/s", "our speed-up", "largest difference"]
    cells = [
        [
            row.lengths.name,
            _tool(row.tool, row.version),
            f"{row.lengths.documents:,}",
            f"{row.lengths.mean:.1f} {row.lengths.counted_in}",
            f"{row.lengths.p95:.0f}",
            _spread(row.seconds),
            f"{row.documents_per_s:,.0f}",
            f"{row.tokens_per_s:,.0f}",
            _speedup(row),
            "" if row.difference is None else f"{row.difference:.1e}",
        ]
        for row in rows
    ]
    return _titled("Encoding, texts to vectors in memory, tools by turns", headers, cells)


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
    cells = [[row.what, f"{row.p50_ms:.2f}", f"{row.p95_ms:.2f}"] for row in rows]
    return _titled(title, ["", "p50, ms", "p95, ms"], cells)


def indexes_table(rows: Sequence[IndexPoint]) -> str:
    """Speed against recall, with what an index costs to build and keep."""
    first = rows[0]
    title = (
        f"{first.queries:,} queries in one call over {first.rows:,} x {first.dim} vectors "
        f"({first.vectors}); `flat` is exact search of this program, the others are FAISS"
    )
    headers = ["index", f"recall@{first.k}", "queries/s", "build, s", "size"]
    cells = [
        [
            row.index,
            f"{row.recall:.4f}",
            _spread(row.queries_per_s, 0),
            f"{row.build_s:.2f}",
            size(row.index_bytes),
        ]
        for row in rows
    ]
    return _titled(title, headers, cells)


def growth_table(rows: Sequence[Growth]) -> str:
    """Fitted exponents, with a straight line beside them."""
    title = "How cost grows: cost = constant x size ^ exponent, fitted to medians"
    headers = ["cost", "against", "at", "sizes", "exponent", "standard error", "straight line"]
    cells = [
        [
            row.y,
            row.x,
            row.at,
            f"{row.sizes[0]:,.0f} to {row.sizes[-1]:,.0f}",
            f"{row.exponent:.3f}",
            "" if row.error is None else f"{row.error:.3f}",
            f"{row.base:.4g} + {row.per_x:.4g} each",
        ]
        for row in rows
    ]
    return _titled(title, headers, cells)


def race_table(race: Race) -> str:
    """Tools from process start to scores; no ratio where scores differ."""
    kept = "" if race.limit is None else ", the first ones only: no published score"
    rounds = len(race.runs[0].scores)
    title = (
        f"{race.collection} from end to end, fresh processes and caches, {rounds} "
        f"round{'s' * (rounds > 1)}: {race.documents:,} documents, {race.queries:,} queries{kept}"
    )
    headers = ["tool", race.measure, "wall, s", "peak memory (VmHWM)", "our time / theirs"]
    cells = [_racer(run, race) for run in race.runs]
    return f"{_titled(title, headers, cells)}\n\n{_verdict(race)}"


def _racer(run: RaceRun, race: Race) -> list[str]:
    scores = " ".join(dict.fromkeys(f"{score:.5f}" for score in run.scores))
    ratio = "" if run.ratio is None else f"{run.ratio:.3f}"
    tool = _tool(run.tool, run.version)
    return [tool, scores, _spread(run.wall_s), size(run.peak_bytes), ratio]


def _verdict(race: Race) -> str:
    if not race.agree:
        return f"Scores differ by more than {race.tolerance}: no ratio."
    if race.ratio is None:
        return "Nobody to compare with: name tools with --against."
    return f"Scores agree within {race.tolerance}; {race.ratio:.3f} of the fastest other's time."


def _tool(name: str, version: str) -> str:
    first, _, rest = name.partition(" ")
    return " ".join(filter(None, (first, version, rest)))


def _spread(spread: Spread, digits: int = 3) -> str:
    """Median and quartiles; of one sample, itself."""
    if len(spread.samples) == 1:
        return f"{spread.median:,.{digits}f}"
    return f"{spread.median:,.{digits}f} [{spread.q1:,.{digits}f}–{spread.q3:,.{digits}f}]"


def _titled(title: str, headers: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return f"{plain(title)}:\n\n{table(headers, cells, 'lr')}"
