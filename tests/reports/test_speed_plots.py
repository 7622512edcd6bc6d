"""Plots of speed: what is drawn, from which reports, and with what in them."""

import importlib.util

import msgspec
import pytest

from reports.plots.speed import draw
from reports.plots.style import COLOURS
from tests.support.speed_report import REPORT

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib: the extra plots"
)
ALL = ["growth", "phases", "recall", "throughput"]


def changed(**fields):
    return msgspec.structs.replace(REPORT, **fields)


def drawn(folder) -> dict[str, str]:
    return {path.stem: path.read_text() for path in folder.glob("*.svg")}


@needs_matplotlib
def test_every_picture_is_a_png_and_an_svg(tmp_path):
    paths = draw(REPORT, [], tmp_path / "plots")
    assert sorted({path.stem for path in paths}) == ALL
    for path in paths:
        start = b"\x89PNG" if path.suffix == ".png" else b"<?xml"
        assert path.read_bytes().startswith(start)
    assert len(paths) == 2 * len(ALL)


@needs_matplotlib
def test_pictures_say_what_they_show(tmp_path):
    draw(REPORT, [], tmp_path)
    pictures = drawn(tmp_path)
    expected = {
        "throughput": ["tokens/s", "bench", "sentence-transformers", "Some Processor", "minilm"],
        "recall": ["recall@10", "efSearch=16", "exact search of this program", "HNSW32"],
        "phases": ["forward", "load", "all, on the wall", "stdlib-code"],
        "growth": ["exponent 0.98 ± 0.02", "128 tokens each", "encode, s"],
    }
    for name, labels in expected.items():
        assert [label for label in labels if label not in pictures[name]] == []


@needs_matplotlib
def test_what_was_not_measured_is_not_drawn(tmp_path):
    draw(changed(phases=None, indexes=(), growth=()), [], tmp_path)
    assert list(drawn(tmp_path)) == ["throughput"]


@needs_matplotlib
def test_the_history_shows_the_reports_of_this_machine_in_order(tmp_path):
    conditions = msgspec.structs.replace(REPORT.conditions, commit="fedcba9876543210", dirty=True)
    draw(REPORT, [changed(conditions=conditions)], tmp_path)
    history = drawn(tmp_path)["history"]
    assert 0 < history.index("fedcba9+") < history.index("0123456")


@needs_matplotlib
@pytest.mark.parametrize(
    "other",
    [
        {"processor": "Another Processor"},
        {"torch_threads": 4},
        {"model": "other"},
        {"fingerprint": "other"},
        {"conditions": msgspec.structs.replace(REPORT.conditions, device="cuda")},
    ],
)
def test_timings_of_another_machine_or_model_are_no_history(tmp_path, other):
    draw(REPORT, [changed(**other)], tmp_path)
    assert "history" not in drawn(tmp_path)


@needs_matplotlib
def test_the_same_report_gives_the_same_picture(tmp_path):
    for name in ("a", "b"):
        draw(REPORT, [], tmp_path / name)
    assert drawn(tmp_path / "a") == drawn(tmp_path / "b")


def test_colours_are_distinct():
    assert len(set(COLOURS)) == len(COLOURS)
