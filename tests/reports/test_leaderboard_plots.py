"""Pictures of a leaderboard: what they show, and names that are no formulas."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.compare.statistics import Resampling
from bench.leaderboard.assembly import Choice, assemble
from bench.leaderboard.rows import results_in, training_step
from bench.results.record import Timings
from reports.leaderboard_plots import (
    WIDTH,
    differences,
    lines_of_neighbours,
    lines_of_pair,
    quality_and_steps,
    trainings,
)
from reports.plots import draw, heat_map, pareto, quality_and_speed, speed_points
from tests.support.leaderboards import store

figure_module = pytest.importorskip("matplotlib.figure", reason="needs matplotlib")
FIRST_BYTES = {".png": b"\x89PNG\r\n", ".svg": b"<?xml "}


def encoded(tokens: int) -> Timings:
    return Timings(encode_documents_s=1.0, encoded_tokens=tokens)


@pytest.fixture
def board(tmp_path):
    for model, tokens, score in (("slow", 100, 0.75), ("fast", 900, 0.5), ("bad", 90, 0.25)):
        store(tmp_path, model, "one", [score, score / 2], timings=encoded(tokens))
    store(tmp_path, "fast", "two", [0.5])
    store(tmp_path, "untimed", "two", [0.25])
    return assemble(results_in(tmp_path), {}, Choice(), Resampling(resamples=99))


def test_each_picture_is_written_as_svg_and_png(board, tmp_path):
    drawn = draw(board, "", tmp_path)
    assert [file for file, _ in drawn] == ["plots/heatmap.svg", "plots/speed.svg"]
    for file in (tmp_path / "plots").iterdir():
        assert file.read_bytes().startswith(FIRST_BYTES[file.suffix])
    assert len(list((tmp_path / "plots").iterdir())) == 4


def test_the_same_board_gives_the_same_bytes(board, tmp_path):
    for place in ("one", "two"):
        draw(board, "", tmp_path / place)
    for name in ("heatmap.svg", "speed.svg"):
        first, second = (tmp_path / place / "plots" / name for place in ("one", "two"))
        assert first.read_bytes() == second.read_bytes()


def test_the_heat_map_shades_each_column_from_worst_to_best_and_leaves_gaps(board):
    figure = figure_module.Figure()
    ranked = board.ranked(board.columns[0], "")
    heat_map(figure, ranked, board.columns, "")
    axes = figure.axes[0]
    shades = axes.images[0].get_array().filled(-1).tolist()
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "slow",
        "fast",
        "bad",
        "untimed",
    ]
    assert shades == [[1.0, -1.0], [0.5, 1.0], [0.0, -1.0], [-1.0, 0.0]]
    assert [text.get_text() for text in axes.texts] == [".56", ".38", ".50", ".19", ".25"]


def test_only_models_with_a_speed_and_a_score_are_points_and_the_front_is_named(board):
    figure = figure_module.Figure()
    place = board.columns[0]
    points = speed_points(board.ranked(place, ""), place, "")
    assert [row.name for row, _ in points] == ["slow", "fast", "bad"]
    quality_and_speed(figure, points, place, "")
    assert [text.get_text() for text in figure.axes[0].texts] == ["slow", "fast"]


def test_speeds_of_different_machines_do_not_share_a_picture(tmp_path):
    for number, device in enumerate(("cpu", "cpu", "cuda")):
        where = {"device": device}
        store(tmp_path, f"m{number}", "one", [0.5], timings=encoded(100), conditions=where)
    board = assemble(results_in(tmp_path), {}, Choice(), Resampling(resamples=99))
    points = speed_points(board.rows, board.columns[0], "")
    assert [row.name for row, _ in points] == ["m0", "m1"]


def test_without_two_speeds_there_is_only_the_heat_map(tmp_path):
    store(tmp_path, "a", "one", [0.5], timings=encoded(100))
    store(tmp_path, "b", "one", [0.5])
    board = assemble(results_in(tmp_path), {}, Choice(), Resampling(resamples=99))
    assert [file for file, _ in draw(board, "", tmp_path / "site")] == ["plots/heatmap.svg"]


def test_names_that_look_like_formulas_or_markup_are_drawn_as_they_are(tmp_path):
    for name in (r"$\frac{1}{$", "a$b$", "<script>alert(1)</script>"):
        store(tmp_path / "results", name, "one", [0.5], timings=encoded(100))
    board = assemble(results_in(tmp_path / "results"), {}, Choice(), Resampling(resamples=99))
    for file, _ in draw(board, "", tmp_path):
        root = ET.fromstring((tmp_path / file).read_bytes())
        assert [one.tag for one in root.iter() if one.tag.endswith("script")] == []


@pytest.fixture
def compared(tmp_path):
    """Of a better, an equal and a far worse model, on one collection and in part on another."""
    rng = np.random.default_rng(0)
    difficulty = rng.random(200) / 2
    for model, ability in (("good", 0.4), ("same", 0.4), ("bad", 0.0)):
        noise = rng.normal(0, 0.02, 200)
        store(tmp_path, model, "one", difficulty + ability + noise)
    for model in ("good", "bad"):
        store(tmp_path, model, "two", [0.5] * 4)
    choice = Choice(neighbours=True, pairs=(("good", "bad"),))
    return assemble(results_in(tmp_path), {}, choice, Resampling(resamples=199))


def test_differences_stand_on_their_intervals_and_what_is_unclear_is_hollow(compared):
    figure = figure_module.Figure()
    lines = lines_of_neighbours(compared, "")
    best, next_one, worst = (row.name for row in compared.ranked(compared.columns[0], ""))
    assert [label for label, _ in lines] == [f"{best} − {next_one}", f"{next_one} − {worst}"]
    assert worst == "bad"
    differences(figure, lines, "title", "axis")
    axes = figure.axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == [label for label, _ in reversed(lines)]  # the first line is at the top
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    spans = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_lw() == 2]
    for (_, one), dot, span in zip(reversed(lines), dots, spans, strict=True):
        assert dot.get_xdata()[0] == one.paired.difference
        assert list(span.get_xdata()) == [one.paired.low, one.paired.high]
    hollow = [dot.get_markerfacecolor() == "white" for dot in dots]
    assert hollow == [False, True]


def test_a_pair_that_was_asked_for_has_a_picture_with_each_collection(compared, tmp_path):
    pair = compared.pairs[0]
    assert (pair.a, pair.b) == ("good", "bad")
    assert [label for label, _ in lines_of_pair(pair)] == ["one, nDCG@10", "two, nDCG@10"]
    drawn = draw(compared, "", tmp_path, asked=[("good", "bad")])
    assert ("plots/differences-1.svg", "good − bad") in drawn
    assert [file for file, _ in drawn if "differences" in file] == ["plots/differences-1.svg"]
    assert any(file == "plots/neighbours.svg" for file, _ in drawn)


def test_long_names_are_cut_in_a_forest_plot(compared):
    figure = figure_module.Figure()
    ((_, one), *_) = lines_of_pair(compared.pairs[0])
    differences(figure, [("x" * 400, one)], "title", "axis")
    (label,) = figure.axes[0].get_yticklabels()
    assert len(label.get_text()) == WIDTH


@pytest.fixture
def checkpoints(tmp_path_factory):
    place = tmp_path_factory.mktemp("checkpoints")
    for step, score in ((500, 0.25), (1000, 0.5), (10000, 0.75)):
        store(place, f"run-a/checkpoint-{step}", "one", [score, score])
    for step in (10, 20):
        store(place, f"b-step{step}", "one", [step / 100] * 2)
    store(place, "alone-step-7", "one", [0.5, 0.5])
    store(place, "gtr-base", "one", [0.5, 0.5])
    return assemble(results_in(place), {}, Choice(), Resampling(resamples=199))


def test_checkpoints_of_a_training_are_a_line_in_the_order_of_their_steps(checkpoints):
    found = trainings(checkpoints.rows, checkpoints.columns[0], "")
    assert {name: [step for step, _ in steps] for name, steps in found.items()} == {
        "run-a": [500, 1000, 10000],
        "b": [10, 20],
    }
    figure = figure_module.Figure()
    quality_and_steps(figure, found, checkpoints.columns[0], "")
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.lines if line.get_marker() != "None"}
    assert list(lines["run-a"].get_xdata()) == [500, 1000, 10000]
    assert list(lines["run-a"].get_ydata()) == [0.25, 0.5, 0.75]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["b", "run-a"]


def test_steps_are_drawn_only_where_a_training_has_two(checkpoints, tmp_path, board):
    assert "plots/steps.svg" in [file for file, _ in draw(checkpoints, "", tmp_path / "a")]
    assert "plots/steps.svg" not in [file for file, _ in draw(board, "", tmp_path / "b")]


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("checkpoint-500", "checkpoint-500", ("checkpoints", 500)),
        ("run/global_step12", "run/global_step12", ("run", 12)),
        ("run_step_3", "run_step_3", ("run", 3)),
        ("a-step-3@index=flat", "a-step-3", ("a@index=flat", 3)),
        ("gtr-base-2", "gtr-base-2", ("", None)),
        ("step-by-step", "step-by-step", ("", None)),
        ("minilm", "minilm", ("", None)),
    ],
)
def test_a_step_is_read_from_names_that_say_so(name, model, expected):
    assert training_step(name, model) == expected


POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)))


@given(POINTS)
def test_the_front_is_what_nothing_beats(points):
    def beaten(one: int) -> bool:
        x, y = points[one]
        return any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)

    front = pareto(points)
    assert {points[one] for one in front} == {
        points[one] for one in range(len(points)) if not beaten(one)
    }
    assert [points[one][0] for one in front] == sorted({points[one][0] for one in front})
