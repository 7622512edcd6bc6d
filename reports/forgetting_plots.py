"""Checkpoints of successive trainings by collections, as a heat map.

matplotlib is the extra ``plots``: imported when something is drawn.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.compare.transfer import Forgetting
from foundation.arrays import Float64Array
from reports.figures import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSS_TO_GAIN = "PuOr"  # orange and purple are told apart with any colour vision (ColorBrewer)
DARK = 0.6  # of the colour scale, beyond which white text is easier to read


def draw(found: Forgetting, path: Path) -> list[Path]:
    """Draw as ``path`` with .svg and .png; returns the files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stem = path.with_suffix("") if path.suffix in (".svg", ".png") else path
    columns = len(found.trained) + len(found.also)
    size = (3.4 + 1.15 * columns, 2.6 + 0.55 * len(found.rows))
    return save(stem, size, lambda figure: heat_map(figure, found))


def heat_map(figure: "Figure", found: Forgetting) -> None:
    """Scores as numbers; colours say how far each is from the column's first row.

    A frame marks what the checkpoint was just trained on: what is lower below it was forgotten.
    """
    axes = figure.subplots()
    names = [*found.trained, *found.also]
    values = np.array([[row.levels[name].value for name in names] for row in found.rows])
    changes = values - values[0]
    limit = max(float(np.abs(changes).max()), 1e-3)
    image = axes.imshow(changes, cmap=LOSS_TO_GAIN, vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(found.rows)), [row.checkpoint for row in found.rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _write(axes, values, np.abs(changes) / limit)
    _frame(axes, len(found.trained), 1 if found.base else 0)
    axes.set_title(f"{found.measure}; frame: just trained on", loc="left", fontsize=10)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label(f"change from {found.rows[0].checkpoint}", fontsize=9)
    figure.supxlabel(_summary(found), fontsize=9)


def _write(axes: "Axes", values: Float64Array, shades: Float64Array) -> None:
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if shades[row, column] > DARK else "black"
        axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour, fontsize=9)


def _frame(axes: "Axes", trained: int, above: int) -> None:
    from matplotlib.patches import Rectangle

    for place in range(trained):
        corner = (place - 0.47, place + above - 0.47)
        axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, ec="black", lw=2))


def _summary(found: Forgetting) -> str:
    told = []
    for name, transfers in (("backward", found.backward), ("forward", found.forward)):
        if transfers is not None:
            mean = transfers.mean
            limits = "" if mean.low is None else f" ({mean.low:+.3f} to {mean.high:+.3f})"
            told.append(f"{name} transfer {mean.difference:+.3f}{limits}")
    return "\n".join(told)
