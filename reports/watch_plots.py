"""The curve of a training as a picture: quality against steps, with intervals.

matplotlib is the extra ``plots``: without it nothing is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.monitor.quality_curve import Curve, Point
from reports.figures import BLACK, COLOURS, GREY, MARKERS, VERMILION, can_plot, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 6  # collections beside the headline that have a line of their own


def draw(curve: Curve, path: Path) -> list[Path]:
    """Draw as ``path`` with .svg and .png; returns the files, none without matplotlib."""
    if not can_plot():
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    return save(path, (8.0, 4.8), lambda figure: training_curve(figure, curve), grid=True)


def training_curve(figure: "Figure", curve: Curve) -> None:
    """A line for each collection, and the headline's with its interval and the best marked."""
    axes = figure.subplots()
    others = [name for name in curve.collections if name != curve.headline][:SHOWN]
    for place, name in enumerate(others, start=1):
        _line(axes, curve.points, name, place)
    _band(axes, curve.points, curve.headline)
    _line(axes, curve.points, curve.headline, 0, lw=2.2, zorder=4)
    if curve.baseline is not None:
        level = curve.baseline.levels[curve.headline].value
        label = f"{curve.baseline.checkpoint} (baseline)"
        axes.axhline(level, color=GREY, ls="--", lw=1.2, label=label)
    _mark_best(axes, curve)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("training step")
    axes.set_ylabel(f"{curve.measure} (band: 95 % over queries)")
    axes.set_title(f"{curve.training}: {len(curve.points)} checkpoints", loc="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)


def _line(axes: "Axes", points: Sequence[Point], name: str, place: int, **look: Any) -> None:
    steps = [point.step for point in points]
    values = [point.levels[name].value for point in points]
    style = {"lw": 1.2, "ms": 4.5, "label": name, **look}
    # The headline's place is 0, and the last colour is black.
    axes.plot(steps, values, color=COLOURS[place - 1], marker=MARKERS[place], **style)


def _band(axes: "Axes", points: Sequence[Point], name: str) -> None:
    levels = [point.levels[name] for point in points]
    low = [one.value if one.low is None else one.low for one in levels]
    high = [one.value if one.high is None else one.high for one in levels]
    steps = [point.step for point in points]
    axes.fill_between(steps, low, high, color=BLACK, alpha=0.12, lw=0)
    axes.vlines(steps, low, high, color=BLACK, alpha=0.35, lw=1)


def _mark_best(axes: "Axes", curve: Curve) -> None:
    """A star on the best one; those that cannot be told apart from it are hollow."""
    if curve.selection is None:
        return
    chosen = curve.selection
    hollow = {"mfc": "white", "mec": BLACK, "ms": 7, "label": "cannot be told from the best"}
    star = {
        "mfc": VERMILION,
        "mec": "white",
        "ms": 15,
        "marker": "*",
        "label": f"best: {chosen.best}",
    }
    for names, look in ((chosen.inseparable, hollow), ((chosen.best,), star)):
        points = [point for point in curve.points if point.checkpoint in names]
        if points:
            steps = [point.step for point in points]
            values = [point.levels[curve.headline].value for point in points]
            style: dict[str, Any] = {"marker": "o", "ls": "none", "zorder": 5, **look}
            axes.plot(steps, values, **style)
