"""The curve of a training and the checkpoints of a sequence, as tables and pictures."""

import numpy as np
import pytest

from bench.comparing.statistics import Estimate, Resampling, ScoreMatrix
from bench.monitor import Curve, CurvePoint, select_checkpoint
from reports.checkpoints import curve_markdown, forgetting_markdown
from reports.plots import plot_quality
from tests.support.forgetting_report import forgetting
from tests.support.markdown import added, notes_of, numbers, rows_of, tables_of

FAST = Resampling(resamples=199)


def curve(
    split: str = "dev",
    collections: tuple[str, ...] = ("tiny", "other"),
    names: tuple[str, ...] = ("checkpoint-5", "checkpoint-10", "checkpoint-15"),
) -> Curve:
    """The second checkpoint is best, the third cannot be told apart, the first is worse."""
    rng = np.random.default_rng(0)
    steps = {name: 5 * (place + 1) for place, name in enumerate(names)}
    panels = []
    for name in collections:
        scores = np.repeat(rng.random((80, 1)), len(names), axis=1) * 0.5
        scores += rng.normal(0, 0.01, scores.shape)
        scores[:, 1:] += 0.2
        places = {one: place for place, one in enumerate(names)}
        panels.append(ScoreMatrix(name, "nDCG@10", places, scores, FAST))
    weights = [1 / len(panels)] * len(panels)
    points = []
    for place, name in enumerate(names):
        values = {one.collection: float(one.scores[:, place].mean()) for one in panels}
        values["mean"] = float(np.mean(list(values.values())))
        levels = {key: Estimate(value, value - 0.03, value + 0.04) for key, value in values.items()}
        points.append(CurvePoint(name, steps.get(name, 0), levels))
    return Curve(
        training="my $run$",
        measure="nDCG@10",
        collections=collections,
        headline="mean" if len(collections) > 1 else collections[0],
        points=tuple(points),
        selection=select_checkpoint(panels, weights, [split]) if len(names) > 1 else None,
        broken={"checkpoint-20": "cut | off"},
        resampling=FAST,
    )


def test_the_table_has_a_row_for_each_checkpoint_and_names_the_best():
    found = curve()
    text = curve_markdown(found)
    rows = {row["checkpoint"]: row for row in rows_of(text)}
    assert list(rows) == ["checkpoint-5", "checkpoint-10", "checkpoint-15"]
    assert rows["checkpoint-5"][""] == "worse"
    assert [name for name, row in rows.items() if row[""] == "best"] == [found.selection.best]
    best, highest, adjusted, *_ = notes_of(text)
    assert found.selection.best in best
    assert (numbers(highest), numbers(adjusted)) == (["3", "160"], ["3"])


def test_a_checkpoint_that_could_not_be_evaluated_is_reported():
    notes = notes_of(curve_markdown(curve()))
    assert any("checkpoint-20" in note and "cut \\| off" in note for note in notes)


def test_choosing_on_test_data_is_reported_and_on_development_data_is_not():
    test, dev = (curve_markdown(curve(split)) for split in ("test", "dev"))
    (warning,) = notes_of(added(test, dev))
    assert warning.startswith("**")
    assert added(dev, test) == ""


def test_a_single_checkpoint_is_a_table_without_a_choice():
    (row,) = rows_of(curve_markdown(curve(names=("checkpoint-5",))))
    assert list(row) == ["step", "checkpoint", "mean", "tiny", "other"]
    assert row["checkpoint"] == "checkpoint-5"


def test_the_picture_has_a_line_for_each_collection_a_band_and_a_star_on_the_best():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    found = curve()
    plot_quality(figure, found)
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert {"tiny", "other", "mean"} <= set(lines)
    assert lines["mean"].get_xdata().tolist() == [5, 10, 15]
    star = lines[f"best: {found.selection.best}"]
    best = next(one for one in found.points if one.checkpoint == found.selection.best)
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (best.step, best.levels["mean"].value)
    low, high = axes.collections[0].get_paths()[0].get_extents().intervaly
    assert low == pytest.approx(min(one.levels["mean"].low for one in found.points))
    assert high == pytest.approx(max(one.levels["mean"].high for one in found.points))


def test_the_matrix_and_transfer_have_intervals():
    text = forgetting_markdown(forgetting())
    matrix, transfers = tables_of(text)
    assert matrix[1]["bio"] == "0.6000 (0.5000 to 0.7000)"
    assert [row["transfer"] for row in transfers[:2]] == ["gain", "gain, mean"]
    assert transfers[2] == {
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
    assert [transfers[3][name] for name in named] == ["backward, mean", "", "", ""]
    assert any(numbers(note) == ["95", "99", "0"] for note in notes_of(text))


def test_without_a_base_there_is_no_forward_transfer():
    text = forgetting_markdown(forgetting(base=False))
    kinds = ["gain", "gain, mean", "backward", "backward, mean"]
    assert [row["transfer"] for row in tables_of(text)[1]] == kinds
