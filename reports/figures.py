"""How every picture looks, and how it is saved: as SVG and PNG, the same bytes each time.

matplotlib is the extra ``plots``: imported when something is drawn.
"""

import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation.failures import naming
from foundation.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fill = Callable[["Figure"], None]

# Okabe and Ito, "Color universal design" (2008), in an order whose neighbours differ most.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
BLUE, VERMILION, BLACK = COLOURS[0], COLOURS[5], COLOURS[6]
GREY = "#7F7F7F"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "font.size": 10,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "retrieval-bench",
}
PNG_DPI = 150


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def look(place: int) -> dict[str, Any]:
    """Colour and marker of a line, by its number among the lines; they repeat after seven."""
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def save(
    stem: Path, size: tuple[float, float], fill: Fill, *, grid: bool = False, dpi: int = PNG_DPI
) -> list[Path]:
    """Write a picture as ``stem`` with .svg and .png; returns the two files.

    Args:
        size: width and height in inches.
        fill: what draws into the figure.
        grid: whether axes have lines behind what is drawn.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    svg, png = (stem.with_name(f"{stem.name}{kind}") for kind in (".svg", ".png"))
    with matplotlib.rc_context({**STYLE, "axes.grid": grid}):  # type: ignore[arg-type, unused-ignore]
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        fill(figure)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        figure.set_layout_engine("none")  # it keeps the places that were found
        with naming(stem):
            svg.write_text(printable(drawn.getvalue()), encoding="utf-8")  # names hold anything
            figure.savefig(png, dpi=dpi)
    return [svg, png]
