"""Pictures of a leaderboard: what they show, and names that are no formulas."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.boards.assembly import Choice, assemble
from bench.boards.rows import results_in
from bench.comparing.statistics import Resampling
from bench.results.result import Timings
from reports.plots.leaderboard import (
    differences,
    lines_of,
    pareto,
    pictures,
    quality_and_speed,
    speed_points,
)
from reports.plots.style import PAPER
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


def names(board) -> list[str]:
    return [name for name, _, _ in pictures(board, "")]


def test_each_picture_is_drawn_as_png_and_as_svg_for_either_ground(board):
    assert names(board) == ["speed"]
    for _, _, draw in pictures(board, ""):
        drawn = draw()
        assert list(drawn) == [".svg", "-dark.svg", ".png"]
        for ending, content in drawn.items():
            assert content.startswith(FIRST_BYTES[ending[-4:]])


def test_the_same_board_gives_the_same_bytes(board):
    first, second = ([draw() for _, _, draw in pictures(board, "")] for _ in range(2))
    assert first == second


def test_only_models_with_a_speed_and_a_score_are_points_and_the_front_is_named(board):
    figure = figure_module.Figure()
    place = board.columns[0]
    points = speed_points(board.ranked(""), place, "")
    assert [row.name for row, _, _ in points] == ["slow", "fast", "bad"]
    quality_and_speed(figure, points, place, "")
    assert [text.get_text() for text in figure.axes[0].texts] == ["slow", "fast"]


def test_speeds_of_different_machines_do_not_share_a_picture(tmp_path):
    for number, device in enumerate(("cpu", "cpu", "cuda")):
        where = {"device": device}
        store(tmp_path, f"m{number}", "one", [0.5], timings=encoded(100), conditions=where)
    board = assemble(results_in(tmp_path), {}, Choice(), Resampling(resamples=99))
    points = speed_points(board.rows, board.columns[0], "")
    assert [row.name for row, _, _ in points] == ["m0", "m1"]


def test_names_that_look_like_formulas_or_markup_are_drawn_as_they_are(tmp_path):
    for name in (r"$\frac{1}{$", "a$b$", "<script>alert(1)</script>"):
        store(tmp_path / "results", name, "one", [0.5], timings=encoded(100))
    board = assemble(results_in(tmp_path / "results"), {}, Choice(), Resampling(resamples=99))
    for _, _, draw in pictures(board, ""):
        root = ET.fromstring(draw()[".svg"])
        assert [one.tag for one in root.iter() if one.tag.endswith("script")] == []


@pytest.fixture
def compared(tmp_path):
    """Of a better, an equal and a far worse model, on one collection and in part on another."""
    rng = np.random.default_rng(0)
    difficulty = 0.1 + rng.random(200) / 3
    for model, ability in (("good", 0.4), ("same", 0.4), ("bad", 0.0)):
        noise = rng.normal(0, 0.02, 200)
        store(tmp_path, model, "one", difficulty + ability + noise)
    for model in ("good", "bad"):
        store(tmp_path, model, "two", [0.5] * 4)
    choice = Choice(pairs=(("good", "same"), ("good", "bad")))
    return assemble(results_in(tmp_path), {}, choice, Resampling(resamples=199))


def test_differences_stand_on_their_intervals_and_what_is_unclear_is_hollow(compared):
    figure = figure_module.Figure()
    lines = lines_of(pair.versus[0] for pair in compared.pairs)
    differences(figure, lines, "title")
    axes = figure.axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == [label for label, _ in reversed(lines)]  # the first line is at the top
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    spans = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_lw() == 2]
    for (_, one), dot, span in zip(reversed(lines), dots, spans, strict=True):
        assert dot.get_xdata()[0] == one.difference
        assert list(span.get_xdata()) == [one.low, one.high]
    hollow = [dot.get_markerfacecolor() == PAPER for dot in dots]
    assert hollow == [False, True]
    explained = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ["not" in text for text in explained] == hollow


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
