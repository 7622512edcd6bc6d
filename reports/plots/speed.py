"""A speed report as pictures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.speed.records import Growth, IndexPoint, Phases, SpeedReport, Spread, Throughput
from reports.plots.labels import place_labels
from reports.plots.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    Fill,
    hollow,
    legend_below,
    plain_logarithms,
    sample,
    save,
    series_style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (7.5, 4.5)  # inches


def draw(report: SpeedReport, earlier: Sequence[SpeedReport], folder: Path) -> list[Path]:
    """Draw what was measured; returns the files.

    Args:
        earlier: reports of other times, oldest first, for the history; those of another machine,
            processor, device or number of threads are left out: their timings do not compare.
    """
    same = [other for other in earlier if _where(other) == _where(report) and other.throughput]
    pictures = _pictures(report, same)
    return [path for name, fill in pictures for path in save(folder / name, SIZE, fill, grid=True)]


def _pictures(report: SpeedReport, earlier: Sequence[SpeedReport]) -> Iterator[tuple[str, Fill]]:
    if report.throughput:
        yield "throughput", lambda figure: throughput_by_length(figure, report)
    if report.indexes:
        yield "recall", lambda figure: speed_and_recall(figure, report.indexes)
    if report.phases:
        phases = report.phases
        yield "phases", lambda figure: phase_bars(figure, phases)
    if report.growth:
        yield "growth", lambda figure: growth_lines(figure, report.growth)
    if earlier and report.throughput:
        yield "history", lambda figure: history(figure, [*earlier, report])


def throughput_by_length(figure: "Figure", report: SpeedReport) -> None:
    """Tokens a second against the mean length, a line a tool, with quartiles.

    Texts of one length are joined by lines; real ones, which mix lengths, are hollow.
    """
    axes = figure.subplots()
    for place, tool in enumerate(dict.fromkeys(row.tool for row in report.throughput)):
        rows = [row for row in report.throughput if row.tool == tool]
        equal = [row for row in rows if row.lengths.p50 == row.lengths.p95 == row.lengths.mean]
        mixed = [row for row in rows if row not in equal]
        style = series_style(place)
        _points(axes, equal, {**style, "label": tool})
        _points(axes, mixed, {**style, **hollow(style["color"]), "ls": "none"})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mean length of a document, tokens")
    axes.set_ylabel("tokens/s (median, quartiles)")
    axes.set_title(f"Encoding with {report.model}: {_machine(report)}")
    legend_below(
        figure, 2, [sample("hollow: real texts, of mixed lengths", marker="o", **hollow())]
    )


def _points(axes: "Axes", rows: Sequence[Throughput], style: dict[str, Any]) -> None:
    if rows:
        x, y, error = _rates(rows)
        axes.errorbar(x, y, yerr=error, capsize=3, **style)


def _rates(rows: Sequence[Throughput]) -> tuple[list[float], list[float], list[list[float]]]:
    """Mean lengths, tokens a second, and how far its quartiles are below and above."""
    y = [row.tokens_per_s for row in rows]
    low = [row.tokens_per_s - row.lengths.tokens / row.seconds.q3 for row in rows]
    high = [row.lengths.tokens / row.seconds.q1 - row.tokens_per_s for row in rows]
    return [row.lengths.mean for row in rows], y, [low, high]


def speed_and_recall(figure: "Figure", points: Sequence[IndexPoint]) -> None:
    """Queries a second against recall: up and to the right is better."""
    axes = figure.subplots()
    axes.set_yscale("log")
    first = points[0]
    names = []
    for place, kind in enumerate(dict.fromkeys(_kind(point) for point in points)):
        own = sorted((point for point in points if _kind(point) == kind), key=lambda p: p.recall)
        axes.plot(
            [point.recall for point in own],
            [point.queries_per_s.median for point in own],
            **series_style(place),
            label=f"{kind} ({own[0].build_s:.1f} s to build, {own[0].index_bytes / 1e6:.0f} MB)",
        )
        settings = [point.index.partition("?")[2] for point in own]
        names += [
            (setting, point.recall, point.queries_per_s.median)
            for setting, point in zip(settings, own, strict=True)
        ]
    plain_logarithms(axes.yaxis)
    axes.margins(x=0.15, y=0.1)
    axes.set_xlabel(f"recall@{first.k} of the exact neighbours")
    axes.set_ylabel(f"queries/s, {first.queries:,} in one call")
    axes.set_title(f"{first.rows:,} x {first.dim}: {first.vectors}")
    legend_below(figure)
    place_labels(axes, names, fontsize=8, color=INK)


def _kind(point: IndexPoint) -> str:
    kind = point.index.partition("?")[0]
    return {"flat": "exact search of this program", "Flat": "FAISS flat"}.get(kind, kind)


def phase_bars(figure: "Figure", phases: Phases) -> None:
    """Seconds of each phase, the longest on top, beside the whole evaluation."""
    axes = figure.subplots()
    rows = sorted(phases.busy_s.items(), key=lambda item: item[1].median)
    rows.append(("all, on the wall", phases.wall_s))
    colours = [BLUE] * (len(rows) - 1) + [GREY]
    values = [spent.median for _, spent in rows]
    error = [_below_and_above(spent) for _, spent in rows]
    axes.barh([name for name, _ in rows], values, color=colours, height=0.65)
    axes.errorbar(
        values, range(len(rows)), xerr=np.transpose(error), fmt="none", color=INK, capsize=3
    )
    for place, (_, spent) in enumerate(rows):
        axes.annotate(
            f"{spent.median:.3g} s",
            (spent.q3, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds (median, quartiles); phases may run beside each other")
    title = f"{phases.documents:,} documents of {phases.collection}, {phases.tokens:,} tokens"
    axes.set_title(title)


def growth_lines(figure: "Figure", rows: Sequence[Growth]) -> None:
    """Cost against size in logarithms, with the fitted power."""
    width = 3 if len(rows) > 2 else len(rows)
    height = -(-len(rows) // width)
    figure.set_size_inches(4 * width, 3.4 * height)
    panels = figure.subplots(height, width, squeeze=False).ravel()
    for axes, row in zip(panels, rows, strict=False):
        _growth(axes, row)
    for axes in panels[len(rows) :]:
        axes.set_axis_off()


def _growth(axes: "Axes", row: Growth) -> None:
    y = [cost.median for cost in row.costs]
    error = np.transpose([_below_and_above(cost) for cost in row.costs])
    axes.errorbar(row.sizes, y, yerr=error, fmt="o", color=BLUE, capsize=3)
    x = np.geomspace(row.sizes[0], row.sizes[-1], 50)
    said = "" if row.error is None else f" ± {row.error:.2f}"
    label = f"exponent {row.exponent:.2f}{said}"
    axes.plot(x, row.constant * x**row.exponent, color=ORANGE, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(min(y) / 2, max(y) * 2)
    axes.set_xticks(row.sizes, [f"{size:,.0f}" for size in row.sizes])
    axes.xaxis.minorticks_off()
    plain_logarithms(axes.yaxis)
    axes.set_xlabel(row.x)
    axes.set_ylabel(row.y)
    axes.set_title(row.at, loc="left", fontsize=8)
    axes.legend(loc="upper left")


def history(figure: "Figure", reports: Sequence[SpeedReport]) -> None:
    """Our tokens a second in report after report, a line for each length of documents."""
    axes = figure.subplots()
    ours = [_own(report) for report in reports]
    for place, name in enumerate(dict.fromkeys(name for rows in ours for name in rows)):
        at = [number for number, rows in enumerate(ours) if name in rows]
        _, y, error = _rates([ours[number][name] for number in at])
        axes.errorbar(at, y, yerr=error, capsize=3, label=name, **series_style(place))
    axes.set_xticks(range(len(reports)), [_when(report) for report in reports], fontsize=8)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens/s (median, quartiles)")
    axes.set_title(f"{reports[-1].model}: {_machine(reports[-1])}")
    legend_below(figure)


def _own(report: SpeedReport) -> dict[str, Throughput]:
    ours = report.throughput[0].tool
    return {row.lengths.name: row for row in report.throughput if row.tool == ours}


def _when(report: SpeedReport) -> str:
    conditions = report.conditions
    mark = "+" if conditions.dirty else ""
    return f"{conditions.commit[:7] or conditions.bench}{mark}\n{conditions.time[:10]}"


def _where(report: SpeedReport) -> tuple[object, ...]:
    """Conditions that two timings must share to be compared."""
    conditions = report.conditions
    return (
        report.model,
        report.fingerprint,
        report.processor,
        report.torch_threads,
        conditions.machine,
        conditions.device,
    )


def _machine(report: SpeedReport) -> str:
    return f"{report.conditions.device}, {report.processor}, {report.torch_threads} threads"


def _below_and_above(spread: Spread) -> tuple[float, float]:
    return spread.median - spread.q1, spread.q3 - spread.median
