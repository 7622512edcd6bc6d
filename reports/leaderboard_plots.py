"""Pictures of a leaderboard's decisions: differences with intervals, and quality against steps."""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from bench.leaderboard.records import Board, Column, Pair, Row, Score, SuiteColumn, Versus
from reports.figures import BLUE, GREY, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Place = Column | SuiteColumn
Line = tuple[str, Versus]  # label, difference
Step = tuple[int, Score]

LEVEL = 0.05
WIDTH = 60  # characters of a label


def differences(figure: "Figure", lines: Sequence[Line], title: str, axis: str) -> None:
    """A forest plot: each difference as a dot on its 95 % interval, the first line at the top.

    Filled and blue is what can be told from zero at the 5 % level; the rest is hollow and grey.
    """
    axes = figure.subplots()
    axes.axvline(0, color="black", lw=0.8)
    axes.grid(axis="x", alpha=0.3)
    for height, (_, one) in enumerate(reversed(lines)):
        clear = (one.paired.p if one.p_holm is None else one.p_holm) <= LEVEL
        colour = BLUE if clear else GREY
        if one.paired.low is not None and one.paired.high is not None:
            axes.plot([one.paired.low, one.paired.high], [height, height], color=colour, lw=2)
        fill = colour if clear else "white"
        axes.plot(one.paired.difference, height, "o", color=colour, mfc=fill, ms=6)
    labels = [_cut(label) for label, _ in reversed(lines)]
    axes.set_yticks(range(len(lines)), labels, fontsize=8)
    axes.set_ylim(-0.7, len(lines) - 0.3)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(axis)


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def lines_of_pair(pair: Pair) -> list[Line]:
    """A line for each suite and collection that both rows have."""
    return [(f"{one.place}, {one.measure}", one) for one in pair.versus]


def lines_of_neighbours(board: Board, measure: str) -> list[Line]:
    """A line for each row and the next one of the headline, as far as they were compared."""
    headline = board.headline(measure)
    ranked = [row.name for row in board.ranked(headline, measure)]
    by_pair: Mapping[tuple[str, str], Pair] = {(pair.a, pair.b): pair for pair in board.pairs}
    found = []
    for names in pairwise(ranked):
        versus = by_pair[names].versus if names in by_pair else ()
        found += [(" − ".join(names), one) for one in versus if one.place == headline.name]
    return found


def trainings(rows: Sequence[Row], place: Place, measure: str) -> dict[str, list[Step]]:
    """Scores by step of each training that has two or more checkpoints in a place."""
    shown = measure or place.main_measure
    known = [
        (row.training, row.step, score)
        for row in rows
        if row.step is not None and (score := row.score(place.name, shown))
    ]
    known.sort(key=lambda one: one[:2])
    found = {
        name: [(step, score) for _, step, score in some]
        for name, some in groupby(known, key=lambda one: one[0])
    }
    return {name: steps for name, steps in found.items() if len(steps) > 1}


def quality_and_steps(
    figure: "Figure", found: Mapping[str, Sequence[Step]], place: Place, measure: str
) -> None:
    """A line for each training, with the 95 % interval of each checkpoint."""
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    for number, (name, steps) in enumerate(found.items()):
        _curve(axes, name, steps, number)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("training step")
    axes.set_ylabel(f"{place.name}, {measure or place.main_measure}")
    axes.legend(fontsize=8, frameon=False)


def _curve(axes: "Axes", name: str, steps: Sequence[Step], number: int) -> None:
    style = look(number)
    for step, score in steps:
        if score.low is not None and score.high is not None:
            axes.plot(
                [step, step], [score.low, score.high], color=style["color"], alpha=0.4, lw=1.5
            )
    values = [score.value for _, score in steps]
    axes.plot([step for step, _ in steps], values, label=name, **style)
