"""The losses of a finished training, in two figures and as pictures."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.plots.style import can_plot
from reports.plots.training import draw_losses
from retrievers.training.engine.curve import LossPoint, read_curve


@dataclass(frozen=True)
class Losses:
    """Of a finished training.

    Attributes:
        first, last: points of the curve.
        pictures: files; none without matplotlib.
    """

    first: LossPoint
    last: LossPoint
    pictures: tuple[str, ...]

    def __str__(self) -> str:
        return f"loss {self.first.losses['loss']:.3f} -> {self.last.losses['loss']:.3f}"

    def as_json(self) -> dict[str, Any]:
        """Fields of the command's document."""
        return {
            "losses": {"first": self.first, "last": self.last},
            "pictures": self.pictures,
        }


def losses_of(curve_file: Path) -> Losses:
    """Read the curve of a training and draw it as ``losses`` beside its file."""
    curve = read_curve(curve_file)
    pictures: list[Path] = []
    if can_plot():
        pictures = draw_losses(curve, curve_file.with_name("losses"))
    else:
        print("no pictures: pip install 'retrieval-bench[plots]'", file=sys.stderr)
    return Losses(curve[0], curve[-1], tuple(map(str, pictures)))


def resumed(at: int) -> str:
    """A remark for a training that was resumed at this step; "" for one that began."""
    return f", resumed at {at:,}" if at else ""
