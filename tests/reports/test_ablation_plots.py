"""Pictures of ablations: read back from the SVG and from the axes."""

import pytest

from tests.support.ablation_report import BETTER, FULL, GAP, OPEN, REFERENCE, report, row

pytest.importorskip("matplotlib")

from reports.ablation_plots import _reach, draw


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


def test_a_bar_spans_the_interval_of_the_difference_about_the_reference():
    one = BETTER.at("mean")
    low, high = _reach(one)
    assert high - low == pytest.approx(one.recipes.high - one.recipes.low)
    assert (low + high) / 2 == pytest.approx(one.score.mean)
    assert _reach(REFERENCE.at("mean")) is None
