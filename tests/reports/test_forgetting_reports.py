"""Checkpoints by collections: the tables and the heat map."""

import csv
import io
from pathlib import Path

import msgspec
import pytest

from bench.compare.statistics import Paired, Resampling
from bench.compare.transfer import Forgetting, Transfer, TransferRow, Transfers
from bench.monitor.quality_curve import Level
from reports.forgetting_tables import comma_separated, markdown
from reports.plots.training import draw_forgetting, forgetting_map

VALUES = {
    "base": {"bio": 0.3, "law": 0.2, "wiki": 0.5},
    "after $bio$": {"bio": 0.6, "law": 0.25, "wiki": 0.45},
    "after|law": {"bio": 0.4, "law": 0.55, "wiki": 0.4},
}


def compared(difference: float) -> Paired:
    return Paired(
        difference=difference,
        low=difference - 0.05,
        high=difference + 0.05,
        p=0.01,
        exact=False,
        wins=30,
        ties=50,
        losses=20,
        effect=0.2,
        detectable=0.03,
    )


def transfers(difference: float, collection: str, after: str, before: str) -> Transfers:
    row = Transfer(collection, after, before, compared(difference), 0.02)
    return Transfers(compared(difference), (row,))


def forgetting(base: bool = True) -> Forgetting:
    rows = [
        TransferRow(
            name, {key: Level(value, value - 0.1, value + 0.1) for key, value in levels.items()}
        )
        for name, levels in VALUES.items()
    ]
    last, first = "after|law", "after $bio$"
    return Forgetting(
        measure="nDCG@10",
        rows=tuple(rows if base else rows[1:]),
        base="base" if base else "",
        trained=("bio", "law"),
        also=("wiki",),
        queries={"bio": 100, "law": 100, "wiki": 100},
        average=Level(0.475, 0.4, 0.55),
        backward=transfers(-0.2, "bio", last, first),
        forward=transfers(0.05, "law", first, "base") if base else None,
        kept=transfers(-0.1, "wiki", last, "base") if base else None,
        resampling=Resampling(resamples=99),
    )


def test_the_diagonal_is_bold_and_transfer_has_its_interval():
    text = markdown(forgetting())
    bold = [line for line in text.splitlines() if "**" in line]
    assert len(bold) == 2
    assert "**0.6000" in bold[0]
    assert "**0.5500" in bold[1]
    assert "-0.2000 |" in text
    assert "-0.2500 to -0.1500" in text
    assert "after\\|law - after $bio$" in text
    assert "99 resamples" in text


def test_without_a_base_it_is_said_what_is_missing():
    text = markdown(forgetting(base=False))
    assert "forward transfer needs --base" in text
    assert "**0.6000" in text


def test_comma_separated_has_the_matrix_and_each_transfer():
    rows = list(csv.DictReader(io.StringIO(comma_separated(forgetting()))))
    assert [row["kind"] for row in rows] == [
        *["score"] * 9,
        *["backward"] * 2,
        *["forward"] * 2,
        *["kept"] * 2,
    ]
    assert float(rows[9]["value"]) == -0.2
    assert (rows[10]["collection"], rows[10]["p_holm"]) == ("mean", "")


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
