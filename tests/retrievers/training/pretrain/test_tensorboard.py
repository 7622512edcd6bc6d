"""Loss curves as TensorBoard's logs, read back with TensorBoard's own reader."""

import sys

import pytest

from bench.__main__ import main
from bench.requests.outcomes import ExitCode
from retrievers.training.engine.context import CURVE_FILE, Progress, log_folder, read_curve
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_starts as small

TEXTS = [f"text {number} of a small corpus with some words" for number in range(40)]


def scalars(folder):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def expected(folder):
    curve = read_curve(folder / CURVE_FILE)
    found = {
        f"train/{name}": [(point.step, point.losses[name]) for point in curve]
        for name in curve[0].losses
    }
    return found | {"train/learning_rate": [(point.step, point.lr) for point in curve]}


def assert_logged(log, out):
    found, curve = scalars(log), expected(out)
    assert set(found) == set(curve)
    for tag, points in curve.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in points]
        assert [value for _, value in found[tag]] == pytest.approx([value for _, value in points])


@pytest.mark.slow
def test_a_resumed_training_has_each_step_of_its_curve_once(tmp_path):
    pytest.importorskip("tensorboard")
    preset = small.preset(small.write_start(tmp_path / "start", TEXTS))
    out, log = tmp_path / "out", tmp_path / "log"

    def stop(progress: Progress) -> None:
        if progress.done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(preset, TEXTS, small.on_cpu(out, progress=stop, save_every=4, log=log))
    assert [step for step, _ in scalars(log)["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert pretrain(preset, TEXTS, small.on_cpu(out, save_every=4, log=log)).resumed_at == 4
    assert len(expected(out)["train/loss"]) == 12
    assert_logged(log, out)
    # a finished training is logged as well
    assert pretrain(preset, TEXTS, small.on_cpu(out, log=tmp_path / "later")).found
    assert_logged(tmp_path / "later", out)


def test_each_folder_of_a_training_has_its_own_log(tmp_path):
    pytest.importorskip("tensorboard")
    logs = tmp_path / "here" / "runs"
    outs = [tmp_path / name for name in ("here/a/m", "here/b/m", "here/m", "there/m", "m")]
    folders = [log_folder(logs, out) for out in outs]
    assert folders[:3] == [logs / "a/m", logs / "b/m", logs / "m"]
    assert len(set(folders)) == len(outs)
    assert all(folder.is_relative_to(logs) for folder in folders)


def test_without_tensorboard_the_error_names_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n")
    words = ["--on", str(texts), "--out", str(tmp_path / "out"), "--log-dir", str(tmp_path / "log")]
    assert main(["pretrain", "mlm-scratch-small", *words]) == ExitCode.BAD_INPUT
    assert "pip install 'retrieval-bench[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
