"""Names in pictures: short enough, and beside their points without touching."""

from collections import Counter
from collections.abc import Sequence
from math import hypot
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
