"""A speed report as pictures."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.speed.records import Contest, Contestant, IndexCurve, IndexPoint, Phases, SpeedReport
from reports.plots.heat_map import place_labels
from reports.plots.style import (
    BLUE,
    GREY,
    INK,
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


def draw(report: SpeedReport, folder: Path) -> list[Path]:
    """Draw what was measured; returns the files."""
    pictures = _pictures(report)
    return [path for name, fill in pictures for path in save(folder / name, SIZE, fill, grid=True)]


def _pictures(report: SpeedReport) -> Iterator[tuple[str, Fill]]:
    if report.encoding:
        yield "throughput", lambda figure: throughput_by_length(figure, report)
    if curve := report.indexes:
        yield "recall", lambda figure: speed_and_recall(figure, curve)
    if phases := report.phases:
        yield "phases", lambda figure: phase_bars(figure, phases)


def throughput_by_length(figure: "Figure", report: SpeedReport) -> None:
    """Tokens a second against the mean length, a line a tool, with quartiles.

    Texts of one length are joined by lines; real ones, which mix lengths, are hollow.
    """
    axes = figure.subplots()
    for place, tool in enumerate(own.tool for own in report.encoding[0].tools):
        rows = [(contest, contest.tools[place]) for contest in report.encoding]
        equal = [row for row in rows if row[0].p95 * row[0].documents == row[0].tokens]
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
    where = f"{report.conditions.device}, {report.processor}, {report.torch_threads} threads"
    axes.set_title(f"Encoding with {report.model}: {where}")
    legend_below(
        figure, 2, [sample("hollow: real texts, of mixed lengths", marker="o", **hollow())]
    )


def _points(
    axes: "Axes", rows: Sequence[tuple[Contest, Contestant]], style: dict[str, Any]
) -> None:
    if rows:
        x = [contest.tokens / contest.documents for contest, _ in rows]
        spent = np.array([(own.wall_s.q3, own.wall_s.median, own.wall_s.q1) for _, own in rows])
        low, y, high = np.array([[contest.tokens] for contest, _ in rows]).T / spent.T
        axes.errorbar(x, y, yerr=[y - low, high - y], capsize=3, **style)


def speed_and_recall(figure: "Figure", curve: IndexCurve) -> None:
    """Queries a second against recall: up and to the right is better."""
    axes = figure.subplots()
    axes.set_yscale("log")
    names = []
    for place, kind in enumerate(dict.fromkeys(map(_kind, curve.points))):
        own = sorted((one for one in curve.points if _kind(one) == kind), key=lambda p: p.recall)
        axes.plot(
            [point.recall for point in own],
            [point.queries_per_s.median for point in own],
            **series_style(place),
            label=f"{kind} ({own[0].build_s:.1f} s to build, {own[0].index_bytes / 1e6:.0f} MB)",
        )
        names += [
            (point.index.partition("?")[2], point.recall, point.queries_per_s.median)
            for point in own
        ]
    plain_logarithms(axes.yaxis)
    axes.margins(x=0.15, y=0.1)
    axes.set_xlabel(f"recall@{curve.k} of the exact neighbours")
    axes.set_ylabel(f"queries/s, {curve.queries:,} in one call")
    axes.set_title(f"{curve.rows:,} x {curve.dim}: {curve.vectors}")
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
    error = [(spent.median - spent.q1, spent.q3 - spent.median) for _, spent in rows]
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
