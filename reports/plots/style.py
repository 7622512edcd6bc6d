"""Style of all pictures, saved as SVG and PNG with the same bytes each time."""

import importlib.util
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation import files as whole
from foundation.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Fill = Callable[["Figure"], None]

INK, PAPER = "#1b2129", "#fefefe"  # text and axes; the ground that they stand on
# Okabe and Ito, "Color universal design" (2008), in an order whose neighbours differ most.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", INK)
BLUE, VERMILION = COLOURS[0], COLOURS[5]
GREY = "#7f7f7f"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# The same colours where the ground is dark: those that would not stand out are lighter.
DARK = {INK: "#e6eaef", PAPER: "#14181d", BLUE: "#3b8fd9", "#56b4e9": "#9fd8f7", GREY: "#a3adb8"}
STYLE: dict[str, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "grid.alpha": 0.3,
    "font.size": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "retrieval-bench",
}
PNG_DPI = 150


def can_plot() -> bool:
    """Return True where matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def load_library() -> None:
    """Import what draws, where it is installed; for a command that goes on after Ctrl-C.

    matplotlib cannot be imported again where Ctrl-C broke off its import.
    """
    if can_plot():
        importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_agg")


def hollow(colour: str = INK) -> dict[str, Any]:
    """Style of a marker of which only the edge is drawn."""
    return {"markerfacecolor": PAPER, "markeredgecolor": colour}


def sample(label: str, **style: Any) -> "Line2D":
    """An entry of a legend for what no single line stands for."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"linestyle": "none", **style})


def legend_below(figure: "Figure", columns: int = 2, entries: Sequence["Line2D"] = ()) -> None:
    """Write the legend under the axes: of all lines with a label, then of further entries."""
    known = dict.fromkeys(
        handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]
    )
    figure.legend(handles=[*known, *entries], loc="outside lower center", ncols=columns)


LETTERS = 44  # of a name beside a forest plot


def short_names(names: Sequence[str], most: int = LETTERS) -> list[str]:
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


def name_points(axes: "Axes", labels: Sequence[tuple[str, float, float]]) -> None:
    """Write a name beside each point, from its coordinates."""
    for name, x, y in labels:
        axes.annotate(name, (x, y), (6, 5), textcoords="offset points", fontsize=8)


def plain_logarithms(axis: "Axis") -> None:
    """Ticks at 1, 2 and 5 of each power of ten, written out: the usual labels are formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def render(size: tuple[float, float], fill: Fill, *, grid: bool = False) -> dict[str, bytes]:
    """Draw a picture; returns its contents by the ending of the file: .svg, -dark.svg and .png.

    Args:
        size: width and height in inches.
        fill: draws into the figure.
        grid: True for lines behind what is drawn.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    vectors, pixels = io.StringIO(), io.BytesIO()
    with matplotlib.rc_context({**STYLE, "axes.grid": grid}):  # type: ignore[arg-type, unused-ignore]
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        fill(figure)
        figure.savefig(vectors, format="svg", metadata={"Date": None})
        figure.set_layout_engine("none")  # it keeps the places that were computed
        figure.savefig(pixels, format="png", dpi=PNG_DPI)
    light = printable(vectors.getvalue())  # names hold anything
    return {
        ".svg": light.encode(),
        "-dark.svg": darkened(light).encode(),
        ".png": pixels.getvalue(),
    }


def darkened(svg: str) -> str:
    """The same picture for a dark ground."""
    return re.sub(r"(?<=: )#[0-9a-f]{6}", lambda match: DARK.get(match[0], match[0]), svg)


def save(stem: Path, size: tuple[float, float], fill: Fill, *, grid: bool = False) -> list[Path]:
    """Write a picture as ``stem`` with .svg and .png; returns the two files.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: it cannot be written.
    """
    drawn = render(size, fill, grid=grid)
    files = [stem.with_name(f"{stem.name}{ending}") for ending in (".svg", ".png")]
    for path, ending in zip(files, (".svg", ".png"), strict=True):
        with whole.replacing(path) as file:
            file.write(drawn[ending])
    return files
