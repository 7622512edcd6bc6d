"""Checkpoints by collections: the tables and the heat map."""

from pathlib import Path

import msgspec
import pytest

from bench.comparing.statistics import Level
from bench.comparing.transfer import TransferRow
from reports.plots.training import draw_forgetting, forgetting_map
from reports.training import forgetting_markdown
from tests.support.forgetting_report import VALUES, forgetting
from tests.support.markdown import notes_of, numbers, tables_of


def test_the_diagonal_is_bold_and_transfer_has_its_interval():
    text = forgetting_markdown(forgetting())
    matrix, transfers = tables_of(text)
    bold = [(row["nDCG@10"], name) for row in matrix for name in row if row[name].startswith("**")]
    assert bold == [("after $bio$", "bio"), ("after|law", "law")]
    assert matrix[1]["bio"] == "**0.6000 (0.5000 to 0.7000)**"
    assert transfers[0] == {
        "transfer": "backward",
        "collection": "bio",
        "after - before": "after|law - after $bio$",
        "difference": "-0.2000",
        "95 % interval": "-0.2500 to -0.1500",
        "p": "0.0100",
        "p (Holm)": "0.0200",
        "win / tie / loss": "30 / 50 / 20",
    }
    named = ("transfer", "collection", "after - before", "p (Holm)")
    assert [transfers[1][name] for name in named] == ["backward, mean", "", "", ""]
    assert any(numbers(note) == ["95", "99", "0"] for note in notes_of(text))


def test_without_a_base_it_is_said_what_is_missing():
    text = forgetting_markdown(forgetting(base=False))
    assert [row["transfer"] for row in tables_of(text)[1]] == ["backward", "backward, mean"]
    assert sum("the first training started from" in note for note in notes_of(text)) == 2


@pytest.mark.parametrize("name", ["heat", "heat.png", "heat.svg"])
def test_the_heat_map_is_written_as_svg_and_png(tmp_path, name):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    files = draw_forgetting({tmp_path / "new" / name: forgetting()})
    assert [path.name for path in files] == ["heat.svg", "heat.png"]
    assert all(path.stat().st_size > 1_000 for path in files)


@pytest.mark.parametrize("base", [True, False])
def test_the_heat_map_shows_scores_and_frames_what_was_just_trained(base):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    found = forgetting(base)
    forgetting_map(figure, found, 0.2)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts][:3] == [
        f"{value:.3f}" for value in VALUES[found.rows[0].checkpoint].values()
    ]
    changes = axes.images[0].get_array()
    assert changes[0].tolist() == [0, 0, 0]
    assert float(changes[-1][0]) == pytest.approx(0.4 - (0.3 if base else 0.6))
    frames = [(patch.get_x(), patch.get_y()) for patch in axes.patches]
    expected = [(-0.47, int(base) - 0.47), (0.53, 1 + int(base) - 0.47)]
    assert [one for pair in frames for one in pair] == pytest.approx(
        [one for pair in expected for one in pair]
    )


def test_heat_maps_of_one_report_share_a_scale_so_that_a_colour_is_the_same_change(monkeypatch):
    figure_module = pytest.importorskip("matplotlib.figure")
    small = forgetting()
    rows = tuple(
        TransferRow(
            row.checkpoint,
            {name: Level(value.value / 10, None, None) for name, value in row.levels.items()},
        )
        for row in small.rows
    )
    limits = []

    def drawn(stem, size, fill):
        figure = figure_module.Figure()
        fill(figure)
        limits.append(figure.axes[0].images[0].get_clim())
        return []

    monkeypatch.setattr("reports.plots.training.save", drawn)
    draw_forgetting({Path("a"): small, Path("b"): msgspec.structs.replace(small, rows=rows)})
    assert limits == [pytest.approx((-0.35, 0.35))] * 2


def test_an_experiment_without_sequences_has_no_heat_map():
    assert draw_forgetting({}) == []
