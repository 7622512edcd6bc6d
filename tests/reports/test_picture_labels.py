"""Names in pictures: short, different, and not upon each other."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.plots.heat_map import place_labels, short_names

figure_module = pytest.importorskip("matplotlib.figure", reason="needs matplotlib")


@given(st.lists(st.text(alphabet="ab-/", max_size=30), unique=True), st.integers(3, 20))
def test_names_that_differ_still_differ_when_they_are_short(names, most):
    assert len(set(short_names(names, most))) == len(names)


def test_a_name_is_longer_than_asked_only_where_it_would_be_mistaken():
    names = [f"{'a' * 30}{letter}{'b' * 30}" for letter in "xy"] + ["c" * 40]
    assert [len(name) <= 20 for name in short_names(names, 20)] == [False, False, True]


def test_a_long_name_keeps_both_ends():
    (short,) = short_names(["some/experiment/checkpoint-500"], 20)
    assert len(short) == 20
    assert short.startswith("some/")
    assert short.endswith("point-500")


def placed(points):
    figure = figure_module.Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([x for _, x, _ in points], [y for _, _, y in points], "o")
    place_labels(axes, points, fontsize=8)
    return figure, [text.get_window_extent() for text in axes.texts]


def test_labels_of_points_that_nearly_coincide_do_not_touch():
    points = [(f"efSearch={n}", 0.99 + n / 100_000, 1000.0 + n) for n in (16, 32, 64, 128)]
    points += [("nprobe=1", 0.2, 5000.0)]
    figure, boxes = placed(points)
    assert [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])] == []
    for box in boxes:
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1


def test_a_point_without_a_label_takes_no_text():
    _, boxes = placed([("", 0.5, 1.0), ("named", 1.0, 2.0)])
    assert len(boxes) == 1
