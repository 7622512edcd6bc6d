"""A picture for each axis of an experiment, with published figures beside ours."""

import re
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.experiments.plan import AxisFound
from bench.experiments.report_record import Report, RowFound, RowOnCollection
from reports.plots.style import BLUE, GREY, VERMILION, legend_below, sample, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE_LETTERS, LABEL_LETTERS = 12, 12  # of an inch, of the place of a point
MARKER_LETTERS = 6  # that a marker in a legend takes


def draw(report: Report, folder: Path) -> list[tuple[str, str]]:
    """Draw every axis that has a score; returns file (SVG, without its folder) and title."""
    drawn = []
    for axis in report.axes:
        points = _points(report, axis)
        panels = _panels(report, points)
        if not panels:
            continue
        width = max(3.6, 0.9 * len(points) + 1.4)
        svg, _ = save(
            folder / f"{report.name}-{_file_name(axis.title)}",
            (width * (len(panels) + bool(_published(axis))), 4.2),
            partial(_fill, report=report, axis=axis, points=points, panels=panels),
            grid=True,
        )
        drawn.append((svg.name, axis.title))
    return drawn


def _points(report: Report, axis: AxisFound) -> list[tuple[str, RowFound]]:
    rows = {row.name: row for row in report.rows}
    return [(point.label, rows[point.row]) for point in axis.points]


def _panels(report: Report, points: Sequence[tuple[str, RowFound]]) -> list[str]:
    """The mean where there is one, else each collection on which anything was scored."""
    means = [name for name in report.collections if report.is_mean(name)]
    return [name for name in means or report.collections if any(row.at(name) for _, row in points)]


def _published(axis: AxisFound) -> str:
    """The first measure with published figures; "" for none."""
    measures = dict.fromkeys(name for point in axis.points for name in point.published)
    return next(iter(measures), "")


def _fill(
    figure: "Figure",
    report: Report,
    axis: AxisFound,
    points: Sequence[tuple[str, RowFound]],
    panels: Sequence[str],
) -> None:
    theirs = _published(axis)
    panel_axes = figure.subplots(1, len(panels) + bool(theirs), squeeze=False)[0]
    against = next((row for row in report.rows if row.name == axis.against), report.rows[0])
    for axes, name in zip(panel_axes, panels, strict=False):
        _draw_rows(axes, points, name, against)
        _draw_reference(axes, against, name)
        axes.set_title("mean of the collections" if report.is_mean(name) else name, fontsize=9)
    if theirs:
        values = [point.published.get(theirs) for point in axis.points]
        known = [(x, value) for x, value in enumerate(values) if value is not None]
        panel_axes[-1].plot(*zip(*known, strict=True), "s--", color=VERMILION, lw=1)
        panel_axes[-1].set_title(f"published: {report.published_on}", fontsize=9)
        panel_axes[-1].set_ylabel(theirs)
    for axes in panel_axes:
        labels = [textwrap.fill(label, LABEL_LETTERS) for label, _ in points]
        axes.set_xticks(range(len(points)), labels)
        axes.set_xlim(-0.5, len(points) - 0.5)
        axes.set_xlabel(axis.title)
    title = f"{report.title or report.name}: {axis.title}"
    letters = int(TITLE_LETTERS * figure.get_figwidth())
    figure.suptitle(textwrap.fill(title, letters), fontsize=10)
    _explain(figure, [row for _, row in points], panels, against)


def _explain(
    figure: "Figure", rows: Sequence[RowFound], panels: Sequence[str], against: RowFound
) -> None:
    """A legend of what is drawn, and of nothing else."""
    seeds = max(len(row.of_seeds(name)) for row in rows for name in panels)
    entries = [sample("score" if seeds < 2 else "mean over seeds", marker="o", color=BLUE)]
    if seeds > 1:
        entries.append(sample("score of each seed", marker="_", ms=10, color=GREY))
    if any((on := row.at(name)) and _interval(row, on, against) for row in rows for name in panels):
        told = f"95 % interval of the difference to {against.name}"
        letters = int(TITLE_LETTERS * figure.get_figwidth()) - MARKER_LETTERS
        told = textwrap.fill(told, letters)
        entries.append(sample(told, marker="|", ms=12, mew=1.5, color=BLUE))
    entries.append(sample(f"score of {against.name}", linestyle=":", color=GREY))
    legend_below(figure, 1 if figure.get_figwidth() < 6 else 2, entries)


def _draw_rows(
    axes: "Axes", points: Sequence[tuple[str, RowFound]], name: str, against: RowFound
) -> None:
    """Means, each with the interval of its difference from the row that the axis is against."""
    for x, (_, row) in enumerate(points):
        on = row.at(name)
        if on is None or on.score is None:
            axes.text(x, 0.5, "gap", transform=axes.get_xaxis_transform(), ha="center")
            continue
        seeds = row.of_seeds(name)
        for score in seeds if len(seeds) > 1 else ():
            axes.plot(x, score, "_", color=GREY, ms=10, zorder=1)
        axes.plot(x, on.score.mean, "o", color=BLUE, zorder=3)
        if interval := _interval(row, on, against):
            axes.vlines(x, *interval, color=BLUE, lw=1.5, zorder=2)
    axes.set_ylabel(next(on.measure for _, row in points if (on := row.at(name))))


def _draw_reference(axes: "Axes", against: RowFound, name: str) -> None:
    """A line at the row that the others change one field of: a difference is from this line."""
    on = against.at(name)
    if on is not None and on.score is not None:
        axes.axhline(on.score.mean, color=GREY, lw=1, ls=":", zorder=0)


def _interval(row: RowFound, on: RowOnCollection, against: RowFound) -> tuple[float, float] | None:
    """The interval of the difference to ``against``, moved to where this row's mean is."""
    found = on.difference
    if on.score is None or found is None or row.against != against.name:
        return None
    if found.low is None or found.high is None:
        return None
    base = on.score.mean - found.mean
    return base + found.low, base + found.high


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
