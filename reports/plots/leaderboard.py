"""Results as pictures: quality against speed, and differences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.boards.records import AnyColumn, Board, Row, Score
from bench.comparing.statistics import Difference
from reports import format as fmt
from reports.plots.style import (
    BLUE,
    GREY,
    INK,
    hollow,
    legend_below,
    name_points,
    plain_logarithms,
    render,
    sample,
    short_names,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawing = tuple[str, str, Callable[[], dict[str, bytes]]]  # name, title, contents by ending
SpeedPoint = tuple[Row, float, Score]  # tokens per second
Line = tuple[str, Difference]  # label, difference

SIZE = (8.0, 5.0)  # inches


def pictures(board: Board, measure: str) -> Iterator[Drawing]:
    """Name, title and a function that draws, of each picture that the board has something for."""
    headline = board.headline(measure)
    if len(points := speed_points(board.ranked(measure), headline, measure)) > 1:
        draw = partial(quality_and_speed, points=points, place=headline, measure=measure)
        title = f"Quality ({fmt.place(headline.name)}) against speed"
        yield "speed", title, partial(render, SIZE, draw)


def speed_points(rows: Sequence[Row], place: AnyColumn, measure: str) -> list[SpeedPoint]:
    """Rows with a speed and a score, of the machine that most of them were timed on."""
    timed = [
        (row, row.tokens_per_s, score)
        for row in rows
        if row.tokens_per_s is not None and (score := row.score_in(place, measure))
    ]
    machines = [row.speed_device for row, _, _ in timed]
    return [point for point in timed if point[0].speed_device == max(machines, key=machines.count)]


def quality_and_speed(
    figure: "Figure", points: Sequence[SpeedPoint], place: AnyColumn, measure: str
) -> None:
    """Up and to the right is better; models on the Pareto front are named."""
    axes = figure.subplots()
    axes.set_xscale("log")
    plain_logarithms(axes.xaxis)
    axes.grid(alpha=0.3)
    front = pareto([(speed, score.value) for _, speed, score in points])
    for number, (_, speed, score) in enumerate(points):
        colour, marker = (BLUE, "o") if number in front else (GREY, ".")
        _interval(axes, speed, score, colour)
        axes.plot(speed, score.value, marker, color=colour, zorder=2)
    best = [points[number] for number in front]
    names = short_names([row.name for row, _, _ in best])
    speeds, values = [speed for _, speed, _ in best], [score.value for _, _, score in best]
    axes.plot(speeds, values, color=BLUE, lw=1, drawstyle="steps-pre", zorder=1)
    axes.set_xlabel(f"tokens/s of encoding ({points[0][0].speed_device})")
    axes.set_ylabel(f"{fmt.place(place.name)}, {measure or place.main_measure}")
    entries = [
        sample("no other is both better and faster", marker="o", color=BLUE),
        sample("others", marker=".", color=GREY),
        sample("95 % interval", marker="|", ms=12, color=GREY),
    ]
    legend_below(figure, 3, entries)
    name_points(axes, list(zip(names, speeds, values, strict=True)))


def _interval(axes: "Axes", x: float, score: Score, colour: str) -> None:
    if score.low is not None and score.high is not None:
        axes.plot([x, x], [score.low, score.high], color=colour, alpha=0.4, lw=1.4, zorder=1)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Points that no other beats in both, by rising first coordinate; of equal ones the first."""
    order = sorted(range(len(points)), key=lambda number: (*(-x for x in points[number]), number))
    front: list[int] = []
    for number in order:
        if not front or points[number][1] > points[front[-1]][1]:
            front.append(number)
    return front[::-1]


def differences(figure: "Figure", lines: Sequence[Line], title: str) -> None:
    """A forest plot: each difference as a dot on its 95 % interval, the first line at the top.

    Filled and blue is what can be told from zero at the 5 % level; the rest is hollow and grey.
    """
    axes = figure.subplots()
    axes.axvline(0, color=INK, lw=0.8)
    axes.grid(axis="x", alpha=0.3)
    for height, (_, pair) in enumerate(reversed(lines)):
        clear = pair.significant
        colour = BLUE if clear else GREY
        if pair.low is not None and pair.high is not None:
            axes.plot([pair.low, pair.high], [height, height], color=colour, lw=2)
        axes.plot(pair.difference, height, "o", ms=6, **_dot(clear))
    labels = [" − ".join(short_names(label.split(" − "))) for label, _ in reversed(lines)]
    axes.set_yticks(range(len(lines)), labels, fontsize=8)
    axes.set_ylim(-0.7, len(lines) - 0.3)
    axes.set_title(short_names([title], 90)[0])
    axes.set_xlabel("difference with its 95 % interval")
    told = "significant at 5 % (p of Holm over a pair's collections)"
    entries = [
        sample(told, marker="o", **_dot(True)),
        sample("not significant", marker="o", **_dot(False)),
    ]
    legend_below(figure, 2, entries)


def _dot(clear: bool) -> dict[str, Any]:
    return {"color": BLUE} if clear else {"color": GREY, **hollow(GREY)}


def lines_of(differences: Iterable[Difference]) -> list[Line]:
    """A line for each suite and collection."""
    return [(f"{fmt.place(each.on)}, {each.measure}", each) for each in differences]
