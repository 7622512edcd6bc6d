"""The curve of a training as a picture: quality against steps, with intervals.

matplotlib is the extra ``plots``: without it nothing is drawn.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.watching.curve import Curve, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color universal design" (2008); the headline is the first, in black.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BEST = "#D55E00"
SHOWN = 6  # collections beside the headline that have a line of their own
STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 10,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "watch",
}
PNG_DPI = 150


def draw(curve: Curve, path: Path) -> list[Path]:
    """Draw as ``path`` with .svg and .png; returns the files, none without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}{kind}") for kind in (".svg", ".png")]
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type, unused-ignore]
        figure = Figure(figsize=(8.0, 4.8))
        FigureCanvasAgg(figure)
        training_curve(figure, curve)
        figure.savefig(files[0], metadata={"Date": None})
        figure.set_layout_engine("none")  # it keeps the places that were found
        figure.savefig(files[1], dpi=PNG_DPI)
    return files


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
        axes.axhline(level, color="#7F7F7F", ls="--", lw=1.2, label=label)
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
    axes.plot(steps, values, color=COLOURS[place % 7], marker=MARKERS[place % 7], **style)


def _band(axes: "Axes", points: Sequence[Point], name: str) -> None:
    levels = [point.levels[name] for point in points]
    low = [one.value if one.low is None else one.low for one in levels]
    high = [one.value if one.high is None else one.high for one in levels]
    steps = [point.step for point in points]
    axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.12, lw=0)
    axes.vlines(steps, low, high, color=COLOURS[0], alpha=0.35, lw=1)


def _mark_best(axes: "Axes", curve: Curve) -> None:
    """A star on the best one; those that cannot be told apart from it are hollow."""
    if curve.selection is None:
        return
    chosen = curve.selection
    hollow = {"mfc": "white", "mec": COLOURS[0], "ms": 7, "label": "cannot be told from the best"}
    star = {"mfc": BEST, "mec": "white", "ms": 15, "marker": "*", "label": f"best: {chosen.best}"}
    for names, look in ((chosen.inseparable, hollow), ((chosen.best,), star)):
        points = [point for point in curve.points if point.checkpoint in names]
        if points:
            steps = [point.step for point in points]
            values = [point.levels[curve.headline].value for point in points]
            style: dict[str, Any] = {"marker": "o", "ls": "none", "zorder": 5, **look}
            axes.plot(steps, values, **style)
