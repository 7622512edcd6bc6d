"""Pictures of experiments, trainings and comparisons."""

import msgspec
import pytest

from bench.comparing.statistics import Difference
from bench.evaluation.result_record import Timings
from foundation.errors import BenchError
from retrievers.training.engine.context import LossPoint
from tests.support.experiment_reports import FULL, GAP, report
from tests.support.leaderboards import board_of, store
from tests.support.speed_report import REPORT, point

pytest.importorskip("matplotlib")

from reports.plots import (
    PAPER,
    _draw_panels,
    _limits,
    draw_axes,
    draw_costs,
    draw_indexes,
    draw_losses,
    plot_differences,
)


def test_each_axis_is_drawn_as_svg_and_png(tmp_path):
    assert draw_axes(FULL, tmp_path) == [("masks-mask.svg", "mask")]
    svg = (tmp_path / "masks-mask.svg").read_text()
    assert (tmp_path / "masks-mask.png").stat().st_size > 1_000
    for words in ("0.15", "gap", "mean of the collections"):
        assert words in svg


def test_an_axis_of_gaps_is_not_drawn(tmp_path):
    assert draw_axes(report(GAP), tmp_path) == []


def test_every_mark_is_explained_in_the_legend_and_no_name_stands_among_the_points():
    from matplotlib.figure import Figure

    figure = Figure()
    axis = FULL.axes[0]
    _draw_panels(figure, FULL, axis, ["mean"])
    explained = [text.get_text() for text in figure.legends[0].get_texts()]
    assert explained == [
        "mean over seeds",
        "score of each seed",
        "95 % interval of the mean (differences: see the table)",
    ]
    written = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert set(written) == {"gap"}
    assert {axes.get_ylabel() for axes in figure.axes} == {"nDCG@10"}


SVG = "{http://www.w3.org/2000/svg}"


def test_differences_stand_on_their_intervals_and_what_is_unclear_is_hollow():
    from matplotlib.figure import Figure

    figure = Figure()
    differences = [
        Difference(
            **{"on": on, "measure": "nDCG@10", "difference": (low + high) / 2, "low": low},
            **{"high": high, "p": p, "wins": 2, "ties": 0, "losses": 1},
            **{"effect": None, "detectable": None},
        )
        for on, low, high, p in (("one", 0.1, 0.3, 0.01), ("two", -0.1, 0.3, 0.4))
    ]
    plot_differences(figure, differences, "$a$ − b")
    axes = figure.axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == ["two, nDCG@10", "one, nDCG@10"]  # the first line is at the top
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    spans = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_lw() == 2]
    for one, dot, span in zip(reversed(differences), dots, spans, strict=True):
        assert dot.get_xdata()[0] == one.difference
        assert list(span.get_xdata()) == [one.low, one.high]
    hollow = [dot.get_markerfacecolor() == PAPER for dot in dots]
    assert hollow == [True, False]
    explained = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted("not" in text for text in explained) == sorted(hollow)


def test_indexes_are_points_with_their_parameters_on_a_line_for_each_kind(tmp_path):
    points = tuple(
        point(index, recall, rate)
        for index, recall, rate in (
            ("flat", 1.0, 900),
            ("HNSW32?efSearch=64", 0.98, 4000),
            ("HNSW32?efSearch=16", 0.9, 9000),
        )
    )
    curve = msgspec.structs.replace(REPORT.indexes, points=points)
    draw_indexes(curve, "minilm", tmp_path / "curve.svg")
    text = (tmp_path / "curve.svg").read_text()
    for words in ("exact search", "HNSW32", "efSearch=16", "efSearch=64", "minilm", "recall@10"):
        assert f">{words}" in text, words
    assert "mathdefault" not in text


def test_costs_are_drawn_with_intervals_and_models_without_vectors_have_no_bytes(tmp_path):
    spent = Timings(encode_documents_s=2.0, encoded_tokens=9000)
    store(tmp_path / "results", "dense", "one", [0.5, 0.25] * 9, timings=spent)
    store(tmp_path / "results", "words", "one", [0.5, 0.25] * 9, recipe=None, index="")
    board = board_of(tmp_path / "results")
    for name in ("a.pdf", "b.pdf", "costs.svg"):
        draw_costs(board, "", tmp_path / name)
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()
    text = (tmp_path / "costs.svg").read_text()
    for words in (
        "tokens encoded per second",
        "bytes per document",
        "dense",
        "one nDCG@10, 95 % interval",
    ):
        assert words in text
    assert "not shown, without speed or vectors: words" in text
    store(tmp_path / "bare", "words", "one", [0.5], recipe=None, index="")
    with pytest.raises(BenchError, match=r"no result on one nDCG@10 has a speed"):
        draw_costs(board_of(tmp_path / "bare"), "", tmp_path / "none.svg")


@pytest.mark.parametrize("steps", [1, 30])
def test_every_loss_is_a_line_with_its_name(tmp_path, steps):
    curve = [
        LossPoint(step, {"loss": 9 / step, "decoder_mlm": 4 / step}, 0.1, 1.0, 10)
        for step in range(1, steps + 1)
    ]
    svg, png = draw_losses(curve, tmp_path / "losses")
    assert png.read_bytes().startswith(b"\x89PNG")
    words = svg.read_text()
    assert all(f">{word}</text>" in words for word in ("loss", "decoder mlm", "step"))


def test_the_interval_of_a_row_is_that_of_its_mean():
    score = FULL.rows[1].on_collection("mean").score
    assert _limits(FULL.rows[1], "mean") == (score.low, score.high)
    below = msgspec.structs.replace(score, low=-0.015)
    on = msgspec.structs.replace(FULL.rows[1].on[-1], score=below)
    assert _limits(msgspec.structs.replace(FULL.rows[1], on=(on,)), "mean") == (0.0, score.high)
