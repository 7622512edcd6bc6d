"""A heat map whose cells have a size of their own: names take the room that they need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foundation.arrays import Float64Array
from reports.plots.labels import short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

ALONE = "#dcdcdc"  # a value without a shade, as nothing is there to compare it with
LIGHT = 0.45  # luminance, above which text is black
NUMBERED = 40  # columns or rows up to which cells hold numbers
ROOM = 6.0  # inches for names, until `fit`
BAR, GAP = 0.12, 0.1  # inches: height of the scale of colours, and its distance
LEAST = (2.4, 0.9)  # inches that all cells together take
LETTER = 0.08  # inches, of a name
WIDE = 0.6  # inches of a cell, from which names above it need not stand upright


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Content of a heat map.

    Attributes:
        rows, columns: their names.
        values: float64 ``(rows, columns)``, written into the cells; NaN for a gap, which is empty.
        shades: float64 ``(rows, columns)``, what the colours say; NaN for grey.
        limits: shades of the first and the last colour.
        colours: a scale of matplotlib.
        digits: of the numbers, after the point.
        cell: width and height in inches.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    values: Float64Array
    shades: Float64Array
    limits: tuple[float, float]
    colours: str
    digits: int
    cell: tuple[float, float]


def draw_heat_map(figure: "Figure", content: HeatMap, label: str) -> "Colorbar":
    """Draw it as the first axes of an empty figure; returns the scale of its colours.

    Args:
        label: of the scale.
    """
    from matplotlib.colors import ListedColormap

    width, height = _size(content)
    figure.set_size_inches(width + ROOM, height + ROOM)
    axes = figure.subplots()
    low, high = content.limits
    known = ~np.isnan(content.values)
    alone = np.where(known & np.isnan(content.shades), 0.0, np.nan)
    shades = np.where(known, content.shades, np.nan)
    image = axes.imshow(shades, cmap=content.colours, vmin=low, vmax=high, aspect="auto")
    axes.imshow(alone, cmap=ListedColormap([ALONE]), vmin=0, vmax=1, aspect="auto")
    _name(axes, content)
    if max(content.values.shape) <= NUMBERED:
        _write_numbers(axes, image, content)
    return _scale(axes, image, content, label)


def _scale(axes: "Axes", image: "ScalarMappable", content: HeatMap, label: str) -> "Colorbar":
    """A horizontal scale below the cells, of the same size in every picture."""
    width, height = _size(content)
    bounds = (0, -(GAP + BAR) / height, min(1, LEAST[0] / width), BAR / height)
    figure = axes.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(image, cax=axes.inset_axes(bounds), orientation="horizontal")
    bar.ax.tick_params(labelsize=8)
    bar.ax.locator_params(nbins=4)
    bar.set_label(label, fontsize=8, loc="left")
    return bar


def _name(axes: "Axes", content: HeatMap) -> None:
    names, rows = short_names(content.columns), short_names(content.rows)
    fitting = max(map(len, names)) * LETTER < content.cell[0]
    axes.set_xticks(
        range(len(names)),
        names,
        rotation=90 if content.cell[0] < WIDE else 0 if fitting else 25,
        rotation_mode="anchor",
        ha="center" if fitting else "left",
        va="center",
        fontsize=8,
    )
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)


def _write_numbers(axes: "Axes", image: "ScalarMappable", content: HeatMap) -> None:
    for (row, column), value in np.ndenumerate(content.values):
        if not np.isnan(value):
            shade = content.shades[row, column]
            red, green, blue, _ = image.to_rgba(shade) if not np.isnan(shade) else (0.9,) * 4
            light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > LIGHT**2.2
            text = f"{value:.{content.digits}f}"
            axes.text(
                column,
                row,
                text.removeprefix("0") if content.digits < 3 else text,
                ha="center",
                va="center",
                fontsize=7 if content.digits < 3 else 9,
                color="#000000" if light else "#ffffff",
            )


def _size(content: HeatMap) -> tuple[float, float]:
    """Width and height of all cells, in inches."""
    width, height = content.cell
    rows, columns = content.values.shape
    return max(width * columns, LEAST[0]), max(height * rows, LEAST[1])


def fit(figure: "Figure", content: HeatMap) -> None:
    """Resize a figure until each cell has its size. Call it last."""
    wanted = _size(content)
    for _ in range(4):  # the layout depends on the size
        figure.draw_without_rendering()
        box = figure.axes[0].get_position()
        width, height = figure.get_size_inches()
        figure.set_size_inches(
            width + wanted[0] - box.width * width, height + wanted[1] - box.height * height
        )
