"""Pictures of ablations: read back from the SVG and from the axes."""

import pytest

from tests.support.ablation_report import BETTER, FULL, GAP, OPEN, REFERENCE, report, row

pytest.importorskip("matplotlib")

from reports.plots.training import _fill, _interval, _panels, _points, draw


def test_each_axis_is_drawn_as_svg_and_png(tmp_path):
    assert draw(FULL, tmp_path) == [("masks-mask.svg", "mask")]
    svg = (tmp_path / "masks-mask.svg").read_text()
    assert (tmp_path / "masks-mask.png").stat().st_size > 1_000
    for words in ("0.15", "gap", "published: msmarco/dev", "RR@10", "mean of the collections"):
        assert words in svg


def test_the_same_report_gives_the_same_picture(tmp_path):
    draw(FULL, tmp_path / "a")
    draw(FULL, tmp_path / "b")
    name = "masks-mask.svg"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_without_published_figures_there_is_no_panel_for_them(tmp_path):
    draw(report(row("reference", 0.3), OPEN), tmp_path)
    assert "published" not in (tmp_path / "masks-mask.svg").read_text()


def test_an_axis_of_gaps_is_not_drawn(tmp_path):
    assert draw(report(GAP), tmp_path) == []


def test_a_bar_spans_the_interval_of_the_difference_about_the_row():
    on = BETTER.at("mean")
    low, high = _interval(BETTER, on, REFERENCE)
    assert high - low == pytest.approx(on.difference.high - on.difference.low)
    assert (low + high) / 2 == pytest.approx(on.score.mean)
    assert _interval(REFERENCE, REFERENCE.at("mean"), REFERENCE) is None


def test_every_mark_is_explained_in_the_legend_and_no_name_stands_among_the_points():
    from matplotlib.figure import Figure

    figure = Figure()
    axis = FULL.axes[0]
    points = _points(FULL, axis)
    _fill(figure, FULL, axis, points, _panels(FULL, points))
    explained = [text.get_text() for text in figure.legends[0].get_texts()]
    assert explained == [
        "mean over seeds",
        "score of each seed",
        "95 % interval of the difference to reference",
        "score of reference",
    ]
    written = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert set(written) == {"gap"}
    assert {axes.get_ylabel() for axes in figure.axes} == {"nDCG@10", "RR@10"}


def test_one_seed_has_no_dashes_and_no_word_of_seeds():
    from matplotlib.figure import Figure

    figure = Figure()
    rows = [row("reference", 0.3, seeds=1), row("mask=0.15", 0.4, "better", seeds=1)]
    found = report(*rows, seeds=1)
    axis = found.axes[0]
    points = _points(found, axis)
    _fill(figure, found, axis, points, _panels(found, points))
    explained = [text.get_text() for text in figure.legends[0].get_texts()]
    assert not any("seed" in text for text in explained)
    assert [line for line in figure.axes[0].lines if line.get_marker() == "_"] == []
