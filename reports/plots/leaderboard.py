"""A leaderboard as pictures: a heat map, quality against speed and steps, and differences."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.boards.records import AnyColumn, Board, Pair, Row, Score
from bench.comparing.statistics import Difference
from reports import format as fmt
from reports.plots.heat_map import HeatMap, draw_heat_map, fit, place_labels, short_names
from reports.plots.style import (
    BLUE,
    GREY,
    INK,
    Fill,
    hollow,
    legend_below,
    plain_logarithms,
    render,
    sample,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Size = tuple[float, float]  # inches
Drawing = tuple[str, str, Callable[[], dict[str, bytes]]]  # name, title, contents by ending
SpeedPoint = tuple[Row, float, Score]  # tokens per second
Line = tuple[str, Difference]  # label, difference

SIZE = (8.0, 5.0)  # inches
CELL = (0.42, 0.24)  # of a heat map, which has the size that it needs
PNG_DPI = 120  # a heat map of hundreds of rows is large


def pictures(
    board: Board, measure: str, asked: Collection[tuple[str, str]] = ()
) -> Iterator[Drawing]:
    """Name, title and a function that draws, of each picture that the board has something for.

    Args:
        asked: names of pairs that have a picture of their own.
    """
    for name, title, size, fill in _fills(board, measure, asked):
        yield name, title, partial(render, size, fill, dpi=PNG_DPI)


def _fills(
    board: Board, measure: str, asked: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str, Size, Fill]]:
    headline = board.headline(measure)
    ranked = board.ranked(measure)
    shown = [place for place in board.places if any(row.score_in(place, measure) for row in ranked)]
    title = "Scores, shaded within each column"
    yield "heatmap", title, SIZE, lambda figure: heat_map(figure, ranked, shown, measure)
    points = speed_points(ranked, headline, measure)
    if len(points) > 1:
        yield (
            "speed",
            f"Quality ({fmt.place(headline.name)}) against speed",
            SIZE,
            lambda figure: quality_and_speed(figure, points, headline, measure),
        )
    lines = lines_of_neighbours(board, measure)
    if lines:
        title = f"Each model minus the next one on {fmt.place(headline.name)}"
        yield "neighbours", title, *_forest(lines, title)
    for number, pair in enumerate(board.pairs, start=1):
        if pair.versus and (pair.a, pair.b) in asked:
            title = f"{pair.a} − {pair.b}"
            yield f"differences-{number}", title, *_forest(lines_of(pair.versus), title)


def _forest(lines: Sequence[Line], title: str) -> tuple[Size, Fill]:
    """Size of a forest plot, and what draws it."""
    widest = max(len(label) for label, _ in lines)
    size = 6 + 0.07 * min(widest, 90), 2.0 + 0.26 * len(lines)
    return size, lambda figure: differences(figure, lines, title)


def heat_map(
    figure: "Figure", rows: Sequence[Row], places: Sequence[AnyColumn], measure: str
) -> None:
    """Rows by columns; a column's lowest score is darkest, its highest lightest; a gap is empty.

    Where all scores of a column are the same, none is the best or the worst: they are grey.
    """
    scores = [[row.score_in(place, measure) for place in places] for row in rows]
    values = np.array([[score.value if score else np.nan for score in line] for line in scores])
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    spread = np.where(high > low, high - low, np.nan)
    content = HeatMap(
        rows=[row.name for row in rows],
        columns=[fmt.place(place.name) for place in places],
        values=values,
        shades=(values - low) / spread,
        limits=(0, 1),
        colours="cividis",  # the same order to all kinds of colour vision, and in grey
        digits=2,
        cell=CELL,
    )
    bar = draw_heat_map(figure, content, "score within its column")
    bar.set_ticks([0, 1], labels=["lowest", "highest"])
    fit(figure, content)


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
    place_labels(axes, list(zip(names, speeds, values, strict=True)), fontsize=8)


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


def lines_of_neighbours(board: Board, measure: str) -> list[Line]:
    """A line for each row and the next one of the headline, as far as they were compared."""
    headline = board.headline(measure)
    ranked = [row.name for row in board.ranked(measure)]
    by_pair: Mapping[tuple[str, str], Pair] = {(pair.a, pair.b): pair for pair in board.pairs}
    lines = []
    for names in pairwise(ranked):
        versus = by_pair[names].versus if names in by_pair else ()
        lines += [(" − ".join(names), on) for on in versus if on.on == headline.name]
    return lines
