"""Names in pictures, and heat maps whose cells have a size of their own."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING, Any

import numpy as np

from foundation.arrays import Float64Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from matplotlib.transforms import BboxBase


MOST = 44  # letters of a name beside a heat map or a forest plot
WORSE = 1000  # more than there are labels: covered text is worse than a text near two points
# Where a text may stand beside its point: offset in points, side that faces the point.
OFFSETS = [
    ((x * far, y * far), side, height)
    for far in (1.0, 2.2, 3.4)
    for x, y, side, height in (
        (6, 5, "left", "bottom"),
        (-6, -5, "right", "top"),
        (6, -5, "left", "top"),
        (-6, 5, "right", "bottom"),
        (0, 8, "center", "bottom"),
        (0, -8, "center", "top"),
    )
]


def short_names(names: Sequence[str], most: int = MOST) -> list[str]:
    """Names of at most ``most`` letters, cut in the middle; more where two would be the same."""
    short = {name: _cut(name, most) for name in names}
    times = Counter(short.values())
    alike = [name for name, cut in short.items() if times[cut] > 1]
    if alike:
        short.update(zip(alike, short_names(alike, 2 * most), strict=True))
    return [short[name] for name in names]


def _cut(name: str, most: int) -> str:
    if len(name) <= most:
        return name
    end = most // 2
    return f"{name[: most - end - 1]}…{name[-end:]}"


def place_labels(axes: "Axes", labels: Sequence[tuple[str, float, float]], **style: Any) -> None:
    """Write each text beside its point, where it covers no other and is nearest to its own point.

    Call it last: it looks at where the points are.

    Args:
        labels: text and coordinates of the point that it names.
    """
    figure = axes.get_figure(root=True)
    if figure is None or not labels:
        return
    figure.draw_without_rendering()
    points = [tuple(axes.transData.transform((x, y))) for _, x, y in labels]
    placed: list[BboxBase] = []
    for (text, x, y), own in zip(labels, points, strict=True):
        if not text:
            continue
        note = axes.annotate(text, (x, y), OFFSETS[0][0], textcoords="offset points", **style)
        note.set_in_layout(False)
        choices = []
        for number, (offset, side, height) in enumerate(OFFSETS):
            note.set(position=offset, ha=side, va=height)
            box = note.get_window_extent()
            faults = WORSE * sum(box.overlaps(other) for other in placed)
            faults += sum(_distance(box, point) < _distance(box, own) for point in points)
            faults += WORSE**2 * (not _holds(figure.bbox, box))
            choices.append((faults, number))
        offset, side, height = OFFSETS[min(choices)[1]]
        note.set(position=offset, ha=side, va=height)
        placed.append(note.get_window_extent())


def _distance(box: "BboxBase", point: Sequence[float]) -> float:
    """Pixels from a point to a box; 0 inside."""
    across = max(box.x0 - point[0], 0, point[0] - box.x1)
    up = max(box.y0 - point[1], 0, point[1] - box.y1)
    return hypot(across, up)


def _holds(frame: "BboxBase", box: "BboxBase") -> bool:
    return bool(
        frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
    )


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
