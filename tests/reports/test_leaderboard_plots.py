"""Pictures of a leaderboard: what they show, and names that are no formulas."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.decisions.statistics import Resampling
from bench.leaderboard.assembly import Choice, assemble
from bench.leaderboard.rows import results_in
from bench.results import Timings
from reports.plots import draw, heat_map, pareto, quality_and_speed, speed_points
from tests.bench.leaderboard_for_tests import store

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
