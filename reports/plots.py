"""Plots as SVG and PNG files, in colours that colour-blind people can distinguish.

matplotlib belongs to the extra ``plots`` and is imported on first use. The same record always gives
the same bytes.
"""

import importlib.util
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.boards.leaderboard_record import Leaderboard
from bench.comparing.slices import SliceComparison
from bench.comparing.statistics import Difference
from bench.cutoffs.cutoff_record import ScoreCutoff
from bench.deploying.deployment import Deployment
from bench.experiments.grid import AxisResult
from bench.experiments.report_record import Report, RowResult
from bench.monitor import Curve, CurvePoint
from bench.speed.speed_report import IndexCurve, IndexPoint
from bench.tuning.tuning_record import Tuning
from foundation import files as whole
from foundation.errors import BenchError, format_names, make_printable
from reports import format as fmt
from retrievers.training.engine.context import LossPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Draw = Callable[["Figure"], None]

INK, PAPER = "#1b2129", "#fefefe"  # text and axes; background
# Okabe and Ito, "Color universal design" (2008), in an order whose neighbours differ most.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", INK)
BLUE, VERMILION = COLOURS[0], COLOURS[5]
GREY = "#7f7f7f"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: dict[str, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
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
# Endings of figures, and what a file would state about the time otherwise.
FORMATS: dict[str, Any] = {".svg": {"Date": None}, ".png": None, ".pdf": {"CreationDate": None}}


def can_plot() -> bool:
    """Return True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def legend_entry(label: str, **style: Any) -> "Line2D":
    """Return a legend entry with a ``label`` and a ``style``, independent of any drawn line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"linestyle": "none", **style})


def legend_below(figure: "Figure", columns: int = 2, entries: Sequence["Line2D"] = ()) -> None:
    """Draw the legend of ``figure`` under the axes: labelled lines, then further ``entries``."""
    known = dict.fromkeys(
        handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]
    )
    figure.legend(handles=[*known, *entries], loc="outside lower center", ncols=columns)


def save(path: Path, size: tuple[float, float], fill: Draw) -> list[Path]:
    """Save the figure that ``fill`` draws to ``path``, and return the files.

    Without one of the endings in `FORMATS`, the files are ``path``.svg and ``path``.png. ``size``
    is width and height in inches.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = [path]
    if path.suffix not in FORMATS:
        files = [path.with_name(f"{path.name}{ending}") for ending in (".svg", ".png")]
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type, unused-ignore]
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        fill(figure)
        for file in files:
            name, content = file.suffix.removeprefix("."), io.BytesIO()
            figure.savefig(content, format=name, dpi=PNG_DPI, metadata=FORMATS[file.suffix])
            figure.set_layout_engine("none")  # keep the computed layout
            drawn = content.getvalue()
            if name == "svg":  # names in it may contain anything
                drawn = make_printable(drawn.decode()).encode()
            with whole.replace_file(file) as opened:
                opened.write(drawn)
    return files


def plot_differences(figure: "Figure", differences: Sequence[Difference], title: str) -> None:
    """Draw the forest plot of two models: each difference with its 95 % interval."""
    labels = [f"{fmt.display_name(pair.on)}, {pair.measure}" for pair in differences]
    _draw_forest(figure.subplots(), differences, labels, title)
    _explain_forest(figure, "Holm over a pair's collections")


def draw_slices(compared: Sequence[SliceComparison], path: Path) -> list[Path]:
    """Draw the differences on all slices into ``path``, one forest plot for each pair of models."""
    most = max(len(one.slices) for one in compared)

    def fill(figure: "Figure") -> None:
        panels = figure.subplots(1, len(compared), squeeze=False)[0]
        for axes, one in zip(panels, compared, strict=True):
            rows = [(row, row.paired) for row in one.slices]
            several = len({row.on for row in one.slices}) > 1
            labels = [
                fmt.short_text(f"{row.value} ({row.on})" if several else row.value, LABEL_WIDTH)
                for row, _ in rows
            ]
            measures = ", ".join(dict.fromkeys(row.measure for row in one.slices))
            title = f"{one.a} − {one.b} by {one.field}, {measures}"
            _draw_forest(axes, [test for _, test in rows if test], labels, title)
        _explain_forest(figure, "over all slices and collections")

    return save(path, (7.0 * len(compared), 2 + 0.25 * most), fill)


def _draw_forest(
    axes: "Axes", differences: Sequence[Difference], labels: Sequence[str], title: str
) -> None:
    """Draw each difference as a point with its 95 % interval, the first at the top.

    Significant differences (5 % level) are blue and filled, the others grey and hollow.
    """
    axes.axvline(0, color=INK, lw=0.8)
    axes.grid(axis="x", alpha=0.3)
    for height, pair in enumerate(reversed(differences)):
        clear = pair.significant
        colour = BLUE if clear else GREY
        if limits := fmt.limits(pair):
            axes.plot(limits, [height, height], color=colour, lw=2)
        axes.plot(pair.difference, height, "o", ms=6, **_marker_style(clear))
    axes.set_yticks(range(len(labels)), labels[::-1], fontsize=8)
    axes.set_ylim(-0.7, len(labels) - 0.3)
    axes.set_title(title)
    axes.set_xlabel("difference with its 95 % interval")


def _explain_forest(figure: "Figure", correction: str) -> None:
    """Draw the legend of forest plots, whose p-values have this ``correction``."""
    significant = f"significant at 5 % ({correction})"
    entries = [
        legend_entry(significant, marker="o", **_marker_style(True)),
        legend_entry("not significant", marker="o", **_marker_style(False)),
    ]
    legend_below(figure, 2, entries)


def _marker_style(clear: bool) -> dict[str, Any]:
    hollow = {"color": GREY, "markerfacecolor": PAPER, "markeredgecolor": GREY}
    return {"color": BLUE} if clear else hollow


LABEL_WIDTH = 40  # letters of a slice's label
TITLE_LETTERS, LABEL_LETTERS = 12, 12  # letters in an inch, letters below a point
MARKER_LETTERS = 6  # width of a legend's marker in letters


def draw_axes(report: Report, folder: Path) -> list[tuple[str, str]]:
    """Draw each axis of ``report`` into ``folder``, and return file name and title of each."""
    drawn = []
    for axis in report.axes:
        panels = _panels(report, _rows_of(report, axis))
        if not panels:
            continue
        width = max(3.6, 0.9 * len(axis.points) + 1.4)
        svg, _ = save(
            folder / f"{report.name}-{_file_name(axis.title)}",
            (width * len(panels), 4.2),
            partial(_draw_panels, report=report, axis=axis, panels=panels),
        )
        drawn.append((svg.name, axis.title))
    return drawn


def _rows_of(report: Report, axis: AxisResult) -> list[RowResult]:
    """Return the rows along an axis, in its order."""
    rows = {row.name: row for row in report.rows}
    return [rows[name] for name in axis.points.values()]


def _panels(report: Report, rows: Sequence[RowResult]) -> list[str]:
    """Return the mean if there is one, else each collection with a score."""
    names = list(filter(report.is_mean, report.collections)) or report.collections
    return [name for name in names if any(row.on_collection(name) for row in rows)]


def _draw_panels(figure: "Figure", report: Report, axis: AxisResult, panels: Sequence[str]) -> None:
    labels = [textwrap.fill(label, LABEL_LETTERS) for label in axis.points]
    panel_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, name in zip(panel_axes, panels, strict=True):
        for x, row in enumerate(_rows_of(report, axis)):
            _draw_row(axes, report, row, name, x)
        axes.set_title("mean of the collections" if report.is_mean(name) else name, fontsize=9)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set_xlabel(axis.title)
    letters = int(TITLE_LETTERS * figure.get_figwidth())
    title = f"{report.title or report.name}: {axis.title}"
    figure.suptitle(textwrap.fill(title, letters), fontsize=10)
    _draw_legend(figure, report, _rows_of(report, axis), panels)


def _draw_legend(
    figure: "Figure", report: Report, rows: Sequence[RowResult], panels: Sequence[str]
) -> None:
    """Draw a legend of the elements in the figure."""
    seeds = max(len(report.seed_scores(row, name)) for row in rows for name in panels)
    mean = "score" if seeds < 2 else "mean over seeds"
    entries = [legend_entry(mean, marker="o", color=BLUE)]
    if seeds > 1:
        entries.append(legend_entry("score of each seed", marker="_", ms=10, color=GREY))
    if any(_limits(row, name) for row in rows for name in panels):
        letters = int(TITLE_LETTERS * figure.get_figwidth()) - MARKER_LETTERS
        label = textwrap.fill("95 % interval of the mean (differences: see the table)", letters)
        entries.append(legend_entry(label, marker="|", ms=12, mew=1.5, color=BLUE))
    legend_below(figure, 1 if figure.get_figwidth() < 6 else 2, entries)


def _draw_row(axes: "Axes", report: Report, row: RowResult, name: str, x: float) -> None:
    """Draw the mean of a row at ``x``, its interval, and each seed's score."""
    on = row.on_collection(name)
    if on is None or on.score is None:
        axes.text(x, 0.5, "gap", transform=axes.get_xaxis_transform(), ha="center")
        return
    seeds = report.seed_scores(row, name)
    for score in seeds if len(seeds) > 1 else ():
        axes.plot(x, score, "_", color=GREY, ms=10, zorder=1)
    axes.plot(x, on.score.value, "o", color=BLUE, zorder=3)
    if interval := _limits(row, name):
        axes.vlines(x, *interval, color=BLUE, lw=1.5, zorder=2)
    axes.set_ylabel(on.measure)


def _limits(row: RowResult, name: str) -> tuple[float, float] | None:
    """Return the interval of the mean of a row, above 0 as all scores are."""
    on = row.on_collection(name)
    limits = fmt.limits(on.score if on else None)
    return (max(limits[0], 0.0), limits[1]) if limits else None


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def draw_indexes(curve: IndexCurve, title: str, path: Path) -> None:
    """Draw queries per second against recall into ``path``, a line for each kind of index."""
    kinds: dict[str, list[IndexPoint]] = {}
    for point in curve.points:
        kinds.setdefault(point.index.partition("?")[0], []).append(point)

    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.set_yscale("log")
        for place, (kind, points) in enumerate(kinds.items()):
            points.sort(key=lambda point: point.recall)
            spots = [(point.recall, point.queries_per_s.median) for point in points]
            label = "exact search" if kind == "flat" else kind
            axes.plot(*zip(*spots, strict=True), label=label, lw=1.2, **_point_style(place))
            for point, spot in zip(points, spots, strict=True):
                parameters, beside = point.index.partition("?")[2], (6.0, 2.0)
                axes.annotate(parameters, spot, beside, fontsize=7, textcoords="offset points")
        axes.margins(0.15, 0.1)
        _label_decades(axes.yaxis)
        axes.set_xlabel(f"recall@{curve.k}")
        axes.set_ylabel("queries per second")
        axes.set_title(f"{title}: {curve.rows:,} × {curve.dim}, {curve.vectors}")
        legend_below(figure, 3)

    save(path, (6.4, 4.4), fill)


COSTS = {"tokens_per_s": "tokens encoded per second", "document_bytes": "bytes per document"}


def draw_costs(board: Leaderboard, measure: str, path: Path) -> None:
    """Draw scores in the headline of ``board`` against speed and size of models into ``path``.

    The title names the models that have neither.
    """
    column = board.headline(measure)
    title = f"{fmt.display_name(column.name)} {measure or column.main_measure}".rstrip()
    ranked = [
        (row, score) for row in board.ranked(measure) if (score := row.score_in(column, measure))
    ]
    scored = [(row, score) for row, score in ranked if row.tokens_per_s or row.document_bytes]
    left_out = [row.name for row, _ in ranked if not (row.tokens_per_s or row.document_bytes)]
    styles = [_point_style(place) for place in range(len(scored))]
    known = {n: label for n, label in COSTS.items() if any(getattr(row, n) for row, _ in scored)}
    if not scored:
        hint = "Evaluate a model that encodes, with --cache-dir on an empty folder for its speed."
        raise BenchError(f"no result on {title} has a speed or vectors", hint)

    def fill(figure: "Figure") -> None:
        figure.subplots(1, len(known), sharey=True)
        for axes, (name, label) in zip(figure.axes, known.items(), strict=True):
            axes.set_xscale("log")
            for (row, score), style in zip(scored, styles, strict=True):
                if cost := getattr(row, name):
                    axes.plot(cost, score.value, **style)
                    if limits := fmt.limits(score):
                        axes.vlines(cost, *limits, color=style["color"])
            costs = [cost for row, _ in scored if (cost := getattr(row, name))]
            axes.set_xlim(min(costs) / 1.5, max(costs) * 1.5)
            _label_decades(axes.xaxis)
            axes.set_xlabel(label)
        figure.axes[0].set_ylabel(f"{title}, 95 % interval")
        if left_out:
            figure.suptitle(
                f"not shown, without speed or vectors: {format_names(left_out)}", fontsize="small"
            )
        names = zip(scored, styles, strict=True)
        legend_below(figure, 3, [legend_entry(row.name, **style) for (row, _), style in names])

    save(path, (8.4, 4.2), fill)


def draw_losses(curve: Sequence[LossPoint], path: Path) -> list[Path]:
    """Draw each loss against the training steps as ``path``.svg and .png. There may be gaps.

    A line is smoothed exponentially over a twentieth of the points, with those behind it.
    """
    import pandas as pd

    span = max(1, len(curve) // 20)

    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        for place, name in enumerate(dict.fromkeys(name for p in curve for name in p.losses)):
            losses = [point.losses.get(name, float("nan")) for point in curve]
            style = {**_point_style(place), "marker": "o" if len(curve) == 1 else None}
            label, steps = name.replace("_", " "), [point.step for point in curve]
            raw = pd.Series(losses)
            smoothed = raw.ewm(span=span).mean().where(raw.notna())
            axes.plot(steps, smoothed, label=label, **style)
            if span > 1:
                axes.plot(steps, losses, color=style["color"], lw=0.6, alpha=0.35)
        axes.set(xlabel="step", ylabel="loss" + ", smoothed" * (span > 1))
        axes.legend()

    return save(path, SIZE, fill)


def draw_deployment(done: Deployment, path: Path) -> None:
    """Draw the change of the score of each tested setting, down to its bound, against its costs.

    With several collections, it is the one with the highest bound.
    """
    before = done.baseline.tests if done.baseline else {}

    def fill(figure: "Figure") -> None:
        figure.subplots(1, 2, sharey=True)
        labels = ("bytes per document", "microseconds per query (median, one thread)")
        for column, (axes, label) in enumerate(zip(figure.axes, labels, strict=True)):
            axes.set_xscale("log")
            axes.axhline(-done.margin, color=VERMILION, lw=1, ls="--")
            for one in done.tested:
                if one.worst:
                    name, test = one.worst
                    change, cost = test.score - before[name].score, one.costs[column] * 1000**column
                    style = _marker_style(one.proved)
                    axes.plot(cost, change, "o", ms=6, **style)
                    axes.vlines(cost, -test.bound, change, color=style["color"])
                    if one == done.chosen:
                        axes.annotate(
                            one.name, (cost, change), (0, 8), textcoords="offset points", fontsize=8
                        )
            _label_decades(axes.xaxis)
            axes.set_xlabel(label)
        measures = ", ".join(dict.fromkeys(done.measures.values()))
        figure.axes[0].set_ylabel(f"change of {measures}, down to its 95 % bound")
        figure.axes[0].set_title(f"{done.model}: {', '.join(done.measures)}")
        entries = [
            legend_entry("proved", marker="o", **_marker_style(True)),
            legend_entry("not proved", marker="o", **_marker_style(False)),
            legend_entry("margin", color=VERMILION, linestyle="--"),
        ]
        legend_below(figure, 3, entries)

    save(path, (8.4, 4.2), fill)


def draw_cutoff(done: ScoreCutoff, path: Path) -> None:
    """Draw the kept share of each cut-off, down to its bound, against what still returns something.

    The chosen cut-off is a star.
    """

    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":")
        for place, one in enumerate(done.all_done):
            colour = COLOURS[place % len(COLOURS)]
            returning = [point.returning for point in one.curve]
            kept, proved = ([getattr(p, name) for p in one.curve] for name in ("kept", "proved"))
            axes.plot(returning, kept, color=colour, lw=1.5, label=one.name)
            axes.fill_between(returning, proved, kept, color=colour, alpha=0.15, lw=0)
            axes.axhline(one.keep, color=colour, lw=1, ls="--")
            if one.silent:
                axes.plot(1 - one.silent.value, one.kept, "*", color=colour, ms=14, zorder=4)
        axes.set_xlabel("queries without an answer that return something")
        axes.set_ylabel(f"relevant documents of the first {done.at} that remain")
        axes.set_title(f"{done.model}: what a cut-off keeps, and what it lets through")
        axes.set(xlim=(0, 1), ylim=(0, 1.03))
        entries = [
            legend_entry("chosen cut-off", marker="*", color=INK, ms=11),
            legend_entry("down to the 95 % bound", marker="s", color=INK, alpha=0.15, ms=9),
            legend_entry("share to keep", color=INK, linestyle="--"),
            legend_entry("as much lost as silenced", color=GREY, linestyle=":"),
        ]
        legend_below(figure, 3, entries)

    save(path, (6.4, 5.0), fill)


def draw_tuning(done: Tuning, path: Path) -> None:
    """Draw the gain of each tested setting, with its interval, against its cost."""
    known = done.baseline_costs is not None

    def fill(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.axhline(0, color=VERMILION, lw=1, ls="--")
        for one in done.settings:
            style = _marker_style(one.proved)
            axes.plot(one.cost, one.gain, "o", ms=6, **style)
            axes.vlines(one.cost, one.low, one.high, color=style["color"])
            if one == done.chosen:
                costs = [each.cost for each in done.settings]
                middle = (min(costs) + max(costs)) / 2
                axes.annotate(
                    one.name,
                    (one.cost, one.gain),
                    (-6, 8) if one.cost > middle else (6, 8),
                    textcoords="offset points",
                    ha="right" if one.cost > middle else "left",
                    fontsize=8,
                )
        axes.set_xlabel("milliseconds of a query" if known else "number of rankings")
        axes.set_ylabel(f"gain in {done.measure}, with its 95 % interval")
        axes.set_title(f"{done.on}: settings against {done.baseline}")
        entries = [
            legend_entry("proved better", marker="o", **_marker_style(True)),
            legend_entry("not proved", marker="o", **_marker_style(False)),
            legend_entry(done.baseline, color=VERMILION, linestyle="--"),
        ]
        legend_below(figure, 3, entries)

    save(path, SIZE, fill)


def _point_style(place: int) -> dict[str, Any]:
    colour = COLOURS[(place - 1) % len(COLOURS)]  # the first is black
    return {"color": colour, "marker": MARKERS[place % len(MARKERS)], "ms": 6}


def _label_decades(axis: "Axis") -> None:
    """Label a logarithmic axis at round numbers, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 5, 7)))
    axis.set_major_formatter("{x:,.0f}")
    axis.set_minor_formatter(NullFormatter())


SIZE = (8.0, 5.2)  # inches
SHOWN = 6  # collections with their own line, in addition to the headline


def draw_quality(curve: Curve, path: Path) -> list[Path]:
    """Draw ``curve`` against steps as ``path``.svg and .png, if matplotlib is installed."""
    if not can_plot():
        return []
    return save(path, SIZE, lambda figure: plot_quality(figure, curve))


def plot_quality(figure: "Figure", curve: Curve) -> None:
    """Plot a line for each collection in ``curve``, the headline's interval, and the best."""
    axes = figure.subplots()
    others = [name for name in curve.collections if name != curve.headline][:SHOWN]
    for place, name in enumerate(others, start=1):
        _line(axes, curve.points, name, place)
    _band(axes, curve.points, curve.headline)
    _line(axes, curve.points, curve.headline, 0, lw=2.2, zorder=4)
    _mark_best(axes, curve)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("training step")
    axes.set_ylabel(curve.measure)
    axes.set_title(f"{curve.training}: {len(curve.points)} checkpoints")
    label = f"95 % interval of {curve.headline}"
    band = legend_entry(label, marker="|", ms=12, color=INK, alpha=0.35)
    legend_below(figure, 3, [band])


def _line(axes: "Axes", points: Sequence[CurvePoint], name: str, place: int, **style: Any) -> None:
    steps = [point.step for point in points]
    values = [point.levels[name].value for point in points]
    style = {**_point_style(place), "lw": 1.2, "ms": 4.5, "label": name, **style}
    axes.plot(steps, values, **style)


def _band(axes: "Axes", points: Sequence[CurvePoint], name: str) -> None:
    levels = [point.levels[name] for point in points]
    low = [level.value if level.low is None else level.low for level in levels]
    high = [level.value if level.high is None else level.high for level in levels]
    steps = [point.step for point in points]
    axes.fill_between(steps, low, high, color=INK, alpha=0.12, lw=0)
    axes.vlines(steps, low, high, color=INK, alpha=0.35, lw=1)


def _mark_best(axes: "Axes", curve: Curve) -> None:
    """Mark the best checkpoint by a star."""
    for point in curve.points:
        if curve.selection and point.checkpoint == curve.selection.best:
            value, label = point.levels[curve.headline].value, f"best: {point.checkpoint}"
            (star,) = axes.plot(point.step, value, "*", color=VERMILION, ms=15, label=label)
            star.set(markeredgecolor=PAPER, zorder=5)
