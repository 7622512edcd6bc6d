"""A leaderboard as pictures, each as SVG and PNG, in colours that colour-blind people tell apart.

matplotlib is the extra ``plots``: imported when something is drawn.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.leaderboard.records import Board, Column, Row, Score, SuiteColumn
from foundation.arrays import Float64Array
from reports.figures import BLUE, GREY, Fill, save
from reports.leaderboard_plots import (
    Line,
    differences,
    lines_of_neighbours,
    lines_of_pair,
    quality_and_steps,
    trainings,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Place = Column | SuiteColumn
Picture = tuple[str, str, tuple[float, float], Fill]  # name, title, size in inches, what fills it

SHADES = "cividis"  # the same order to all kinds of colour vision, and in grey
PNG_DPI = 120  # a heat map of hundreds of rows is large
NUMBERED = 40  # columns or rows up to which the cells of a heat map hold numbers


def draw(
    board: Board, measure: str, site: Path, asked: Collection[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """Draw into ``plots`` below a site; returns file (SVG) and title of each.

    Args:
        asked: names of pairs that have a picture of their own.
    """
    folder = site / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, title, size, fill in [*_pictures(board, measure), *_of_pairs(board, asked)]:
        save(folder / name, size, fill, dpi=PNG_DPI)
        drawn.append((f"plots/{name}.svg", title))
    return drawn


def _pictures(board: Board, measure: str) -> Iterator[Picture]:
    headline = board.headline(measure)
    ranked = board.ranked(headline, measure)
    every: list[Place] = [*board.suites, *board.columns]
    shown = [place for place in every if _values(ranked, place, measure)]
    size = (3 + 0.42 * len(shown), 2.2 + 0.24 * len(ranked))
    title = "Scores, shaded within each column"
    yield "heatmap", title, size, lambda figure: heat_map(figure, ranked, shown, measure)
    points = speed_points(ranked, headline, measure)
    if len(points) > 1:
        title = f"Quality ({headline.name}) against speed"
        yield (
            "speed",
            title,
            (8.0, 5.0),
            lambda figure: quality_and_speed(figure, points, headline, measure),
        )
    lines = lines_of_neighbours(board, measure)
    if lines:
        title = f"Each model minus the next one on {headline.name}"
        yield "neighbours", title, _forest_size(lines), _forest(lines, title)
    curves = trainings(ranked, headline, measure)
    if curves:
        yield (
            "steps",
            f"Quality ({headline.name}) against training steps",
            (8.0, 5.0),
            lambda figure: quality_and_steps(figure, curves, headline, measure),
        )


def _of_pairs(board: Board, asked: Collection[tuple[str, str]]) -> Iterator[Picture]:
    for number, pair in enumerate(board.pairs, start=1):
        lines = lines_of_pair(pair)
        if lines and (pair.a, pair.b) in asked:
            title = f"{pair.a} − {pair.b}"
            yield f"differences-{number}", title, _forest_size(lines), _forest(lines, title)


def _forest(lines: Sequence[Line], title: str) -> Fill:
    axis = "difference with 95 % interval; filled: told from zero at 5 % (Holm over collections)"
    return lambda figure: differences(figure, lines, title, axis)


def _forest_size(lines: Sequence[Line]) -> tuple[float, float]:
    widest = max(len(label) for label, _ in lines)
    return 6 + 0.07 * min(widest, 60), 1.3 + 0.26 * len(lines)


def _score(row: Row, place: Place, measure: str) -> Score | None:
    return row.score(place.name, measure or place.main_measure)


def _values(rows: Sequence[Row], place: Place, measure: str) -> list[float]:
    scores = (_score(row, place, measure) for row in rows)
    return [score.value for score in scores if score]


def heat_map(figure: "Figure", rows: Sequence[Row], places: Sequence[Place], measure: str) -> None:
    """Rows by columns; a column's worst score is darkest, its best lightest; gaps are white."""
    axes = figure.subplots()
    scores = [[_score(row, place, measure) for place in places] for row in rows]
    values = np.array([[one.value if one else np.nan for one in line] for line in scores])
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    spread = np.where(high > low, high - low, 1.0)
    image = axes.imshow((values - low) / spread, cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(places)), [place.name for place in places], rotation=90, fontsize=8)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if max(len(rows), len(places)) <= NUMBERED:
        _write_numbers(axes, values, (values - low) / spread)
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 12 / len(rows)), pad=0.01)
    bar.set_ticks([0, 1], labels=["worst", "best"], fontsize=8)


def _write_numbers(axes: "Axes", values: Float64Array, shades: Float64Array) -> None:
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "black" if shades[row, column] > 0.55 else "white"
            text = f"{value:.2f}".removeprefix("0")
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def speed_points(rows: Sequence[Row], place: Place, measure: str) -> list[tuple[Row, Score]]:
    """Rows with a score and a speed, of the machine that most of them were timed on."""
    timed = [
        (row, score)
        for row in rows
        if row.tokens_per_s is not None and (score := _score(row, place, measure))
    ]
    machines = [row.speed_device for row, _ in timed]
    return [one for one in timed if one[0].speed_device == max(machines, key=machines.count)]


def quality_and_speed(
    figure: "Figure", points: Sequence[tuple[Row, Score]], place: Place, measure: str
) -> None:
    """Up and to the right is better; models on the Pareto front are named."""
    axes = figure.subplots()
    _log_scale(axes)
    axes.grid(alpha=0.3)
    front = pareto([(row.tokens_per_s or 0.0, score.value) for row, score in points])
    for number, (row, score) in enumerate(points):
        colour = BLUE if number in front else GREY
        marker = "o" if number in front else "."
        x = row.tokens_per_s or 0.0
        if score.low is not None and score.high is not None:
            axes.plot([x, x], [score.low, score.high], color=colour, alpha=0.4, lw=1.2, zorder=1)
        axes.plot(x, score.value, marker, color=colour, zorder=2)
    best = [points[number] for number in front]
    axes.plot(
        [row.tokens_per_s or 0.0 for row, _ in best],
        [score.value for _, score in best],
        color=BLUE,
        lw=1,
        drawstyle="steps-pre",
        zorder=1,
    )
    for row, score in best:
        axes.annotate(
            row.name,
            (row.tokens_per_s or 0.0, score.value),
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xlabel(f"tokens/s of encoding ({points[0][0].speed_device})")
    axes.set_ylabel(f"{place.name}, {measure or place.main_measure}")


def _log_scale(axes: "Axes") -> None:
    """Plain numbers: the usual labels of a log scale are formulas, which names must not be."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which points no other beats in both, by rising first coordinate; of equal ones the first."""
    order = sorted(range(len(points)), key=lambda one: (-points[one][0], -points[one][1], one))
    front: list[int] = []
    for one in order:
        if not front or points[one][1] > points[front[-1]][1]:
            front.append(one)
    return front[::-1]
