"""Loss curves as pictures, SVG and PNG.

matplotlib is the extra ``plots``: imported when something is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reports.figures import COLOURS, save
from retrievers.training.engine.curve import LossPoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_losses(curve: Sequence[LossPoint], path: Path) -> list[Path]:
    """Draw each loss against the steps; returns the files.

    Args:
        curve: at least one point; a loss that some points lack has a gap there.
        path: of the pictures, without a suffix.

    Raises:
        ImportError: matplotlib is not installed.
    """
    return save(path, (7.5, 4.5), lambda figure: losses(figure, curve), grid=True)


def losses(figure: "Figure", curve: Sequence[LossPoint]) -> None:
    """A line for each loss, what is minimised in black."""
    axes = figure.subplots()
    names = list(dict.fromkeys(name for point in curve for name in point.losses))
    for place, name in enumerate(names):
        axes.plot(
            [point.step for point in curve],
            [point.losses.get(name, float("nan")) for point in curve],
            color=COLOURS[(place - 1) % len(COLOURS)],  # the last is black
            label=name.replace("_", " "),
            marker="o" if len(curve) == 1 else None,
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss, mean since the point before")
    axes.legend()
