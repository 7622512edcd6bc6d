"""Heat maps: cells keep their size, whatever names stand beside them."""

import numpy as np
import pytest

from reports.plots.heat_map import ALONE, HeatMap, draw_heat_map, fit

figure_module = pytest.importorskip("matplotlib.figure", reason="needs matplotlib")


def content(rows, columns, **changes):
    values = np.linspace(0, 1, len(rows) * len(columns)).reshape(len(rows), len(columns))
    fields = {
        "values": values,
        "shades": values,
        "limits": (0, 1),
        "colours": "cividis",
        "digits": 2,
        "cell": (0.42, 0.24),
    }
    return HeatMap(rows=rows, columns=columns, **{**fields, **changes})


def drawn(shown):
    figure = figure_module.Figure(layout="constrained")
    draw_heat_map(figure, shown, "scale")
    fit(figure, shown)
    return figure


def size_of_cells(figure):
    figure.draw_without_rendering()
    axes = figure.axes[0]
    box = axes.get_window_extent()
    rows, columns = axes.images[0].get_array().shape
    return box.width / figure.dpi / columns, box.height / figure.dpi / rows


@pytest.mark.parametrize("letters", [3, 40, 400])
@pytest.mark.parametrize("count", [8, 60])
def test_a_cell_has_its_size_however_long_names_are(letters, count):
    rows = [f"{number}{'w' * letters}" for number in range(count)]
    columns = [f"{number}{'w' * letters}" for number in range(8)]
    assert size_of_cells(drawn(content(rows, columns))) == pytest.approx((0.42, 0.24), rel=0.02)


def test_a_gap_is_empty_and_a_value_without_a_shade_is_grey():
    values = np.array([[0.25, np.nan], [0.5, 0.75]])
    shades = np.array([[0.0, np.nan], [1.0, np.nan]])
    axes = drawn(content(["a", "b"], ["c", "d"], values=values, shades=shades)).axes[0]
    coloured, grey = (image.get_array().filled(-1).tolist() for image in axes.images)
    assert coloured == [[0, -1], [1, -1]]
    assert grey == [[-1, -1], [-1, 0]]
    assert axes.images[1].cmap(0)[:3] == pytest.approx([int(ALONE[1:3], 16) / 255] * 3)
    assert [text.get_text() for text in axes.texts] == [".25", ".50", ".75"]


def test_numbers_are_dark_on_light_cells_and_light_on_dark_ones():
    axes = drawn(content(["a", "b"], ["c"])).axes[0]
    assert [text.get_color() for text in axes.texts] == ["#ffffff", "#000000"]
