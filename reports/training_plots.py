"""Loss curves as pictures, PNG and SVG.

matplotlib is the extra ``plots``: imported when something is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrievers.training.curve import LossPoint

# Okabe and Ito, "Color universal design" (2008).
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
STYLE: dict[str, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 10,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "training",
}
PNG_DPI = 150


def draw_losses(curve: Sequence[LossPoint], path: Path) -> list[Path]:
    """Draw each loss against the steps; returns the files.

    Args:
        curve: at least one point; a loss that some points lack has a gap there.
        path: of the pictures, without a suffix.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for point in curve for name in point.losses))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.5))
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for place, name in enumerate(names):
            axes.plot(
                [point.step for point in curve],
                [point.losses.get(name, float("nan")) for point in curve],
                color=COLOURS[place % len(COLOURS)],
                label=name.replace("_", " "),
                marker="o" if len(curve) == 1 else None,
            )
        axes.set_xlabel("step")
        axes.set_ylabel("loss, mean since the point before")
        axes.legend()
        figure.savefig(path.with_suffix(".png"), dpi=PNG_DPI)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return [path.with_suffix(".png"), path.with_suffix(".svg")]
