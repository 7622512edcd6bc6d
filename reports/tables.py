"""Results as tables for people: Markdown that also reads well in a terminal."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from textwrap import indent

from bench.evaluate.estimate import Estimate
from bench.evaluate.suites import Gap, SuiteMean
from bench.results.result import Result, Timings
from datasets_cfg.verify import Finding
from reports.markdown import plain, table

NAMED = 3  # members of a suite that are named when they are missing
Published = Mapping[tuple[str, str, str], float]  # (model, collection, measure) -> score


def collection_table(results: Sequence[Result], published: Published) -> str:
    """All models on one collection, main measure first, with what qualifies it."""
    first = results[0]
    rows = [_row(result, published) for result in results]
    names = dict.fromkeys(name for row in rows for name in row)
    headers = [name for name in names if any(row.get(name) for row in rows)]
    cells = [[row.get(name, "") for name in headers] for row in rows]
    return f"{plain(_heading(first))}\n\n{table(headers, cells, 'lr')}"


def _heading(result: Result) -> str:
    protocol = result.protocol
    parts = [f"{result.queries:,} queries"]
    if result.documents is not None:
        parts.append(f"{result.documents:,} documents")
    parts += [protocol.version, f"{protocol.split} split", f"depth {protocol.depth}"]
    if protocol.title_track:
        parts.append(f"{protocol.title_track} track")
    if protocol.exclude_self:
        parts.append("own document of a query excluded")
    if not protocol.official:
        parts.append("NOT the published collection")
    return f"{protocol.collection}: {', '.join(part for part in parts if part)}"


def _row(result: Result, published: Published) -> dict[str, str]:
    collection, main = result.protocol.collection, result.main_measure
    official = result.protocol.official  # else what was published is of other data
    claimed = published.get((result.model, collection, main)) if official else None
    further = {name: _score(value) for name, value in result.measures.items() if name != main}
    return {
        "model": result.model + (" (in-domain)" if result.in_domain else ""),
        main: _score(result.measures[main]),
        **further,
        "ties": _range(result.tie_low, result.tie_high),
        "judged@10": _score(result.judged_at_10),
        "published": _score(claimed),
        "index": result.index if result.index != "flat" else "",
        "index recall": ", ".join(f"{k[7:]}: {v:.3f}" for k, v in result.index_recall.items()),
        "unanswered": str(result.unanswered or ""),
    }


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _range(low: float | None, high: float | None) -> str:
    """The range that tie-breaking could give, where it shows in four digits."""
    if low is None or _score(low) == _score(high):
        return ""
    return f"{_score(low)}–{_score(high)}"


def means_table(means: Sequence[tuple[str, SuiteMean]], published: Published) -> str:
    """Means of suites by model; one that is not complete is a gap that says what is missing."""
    headers = ["suite", "mean of", "model", "mean", "zero-shot mean", "published", "missing"]
    cells = [
        [
            mean.suite,
            f"{mean.measure}, {mean.members} sets" + (", weighted" if mean.weighted else ""),
            model,
            _score(mean.value),
            f"{_score(mean.zero_shot)} ({mean.zero_shot_members} sets)"
            if mean.zero_shot is not None
            else "",
            _score(published.get((model, mean.suite, mean.measure))),
            _gap(mean),
        ]
        for model, mean in means
    ]
    return table(headers, cells, "lr")


def gaps_table(gaps: Sequence[Gap]) -> str:
    """Evaluations that are missing, and why."""
    headers = ["not evaluated", "model", "because"]
    return table(headers, [[gap.collection, gap.model, gap.reason] for gap in gaps], "l")


def _gap(mean: SuiteMean) -> str:
    """Which members have no score of the published collection; the first few by name."""
    if not mean.missing:
        return ""
    named = [*mean.missing[:NAMED], "…"] if len(mean.missing) > NAMED else mean.missing
    return f"{len(mean.missing)} of {mean.members}: {', '.join(named)}"


def estimates_table(rows: Sequence[Estimate]) -> str:
    """What each model on each collection will cost, and all together."""
    headers = ["collection", "model", "documents", "to encode", "tokens", "encode", "search"]
    headers += ["memory", "disk"]
    cells = [
        [
            row.collection,
            row.model,
            f"{row.documents:,}",
            f"{row.to_encode:,}",
            f"{_at_most(row)}{row.tokens:,}",
            f"{_at_most(row)}{duration(row.encode_s)}",
            duration(row.search_s),
            size(row.memory_bytes),
            f"{_at_most(row)}{size(row.disk_bytes)}",
        ]
        for row in rows
    ]
    cells.append(
        [
            "together",
            "",
            f"{sum(row.documents for row in rows):,}",
            f"{sum(row.to_encode for row in rows):,}",
            f"{sum(row.tokens for row in rows):,}",
            duration(sum(row.encode_s for row in rows)),
            duration(sum(row.search_s for row in rows)),
            size(max(row.memory_bytes for row in rows)),
            size(sum(row.disk_bytes for row in rows)),
        ]
    )
    return table(headers, cells, "lr")


def _at_most(row: Estimate) -> str:
    return "≤ " if row.upper_bound else ""


def time_line(timings: Timings) -> str:
    """Where the time went, in one line, the longest first."""
    spent = {**timings.busy_s, "score": timings.score_s}
    parts = [
        f"{name} {seconds:.1f} s"
        for name, seconds in sorted(spent.items(), key=lambda item: -item[1])
        if seconds >= 0.05
    ]
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds below two minutes, else hours and minutes: ``1:05:00``."""
    return f"{seconds:.1f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


def size(number: float) -> str:
    """Bytes in decimal units: ``1.5 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def findings_table(name: str, findings: Sequence[Finding]) -> str:
    """What the checks of one collection found."""
    if not findings:
        return f"{name}: nothing peculiar"
    lines = "\n".join(finding_lines(finding) for finding in findings)
    return f"{name}:\n{indent(lines, '  ')}"


def finding_lines(finding: Finding, name: str = "") -> str:
    """One finding, with the collection's name where it does not stand above it."""
    examples = f" ({', '.join(finding.examples)})" if finding.examples else ""
    what = f"{name}: {finding.what}" if name else finding.what
    count = f": {finding.count:,}" if examples or finding.count > 1 else ""
    line = f"{finding.severity}: {what}{count}{examples}"
    return f"{line}\n  {finding.suggestion}" if finding.suggestion else line
