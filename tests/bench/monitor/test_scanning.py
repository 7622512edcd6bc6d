"""The search for checkpoints and for changes of their files."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.monitor import (
    DELETED,
    Watcher,
    follow_training,
    model_folder,
    scan_checkpoints,
    step_of,
    training_folder,
)
from bench.requests.training import WatchRequest
from bench.runner.workspace import Workspace

FIRST, LAST = "checkpoint-2", "checkpoint-4"


@pytest.fixture
def training(trained, tmp_path) -> Path:
    """Two checkpoints of a training."""
    without = shutil.ignore_patterns("checkpoint-6")
    return Path(shutil.copytree(trained, tmp_path / "training", ignore=without))


def names(folder: Path) -> list[str]:
    return [path.name for path in scan_checkpoints(folder)]


def test_checkpoints_of_the_trainer_are_listed_by_step(training):
    assert names(training) == [FIRST, LAST]
    (training / FIRST).rename(training / "checkpoint-10")  # steps order them, not names
    assert names(training) == [LAST, "checkpoint-10"]


def test_a_checkpoint_is_evaluated_when_its_files_rest_and_again_if_they_change(
    training, monkeypatch
):
    weights = training / LAST / "model.safetensors"
    changes = iter([lambda: os.truncate(weights, 9), int, lambda: os.utime(weights, ns=(1, 1))])
    rounds: list[list[str]] = []

    def sleep(seconds: float) -> None:
        next(changes, int)()
        rounds.append([])
        if len(rounds) > 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("bench.monitor.time.sleep", sleep)
    watcher = SimpleNamespace(evaluate=lambda checkpoint: rounds[-1].append(checkpoint.name))
    assert follow_training(WatchRequest(training, on=("any",)), watcher, list)
    assert rounds == [[FIRST], [LAST], [], [LAST], [], []]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("500", 500),
        ("checkpoint-7", 7),
        ("global_step12", 12),
        ("epoch=1-step=30", 30),
        ("last", 0),
    ],
)
def test_a_step_is_read_after_a_word_or_alone(name, step):
    assert step_of(name) == step


def test_other_folders_and_files_are_not_checkpoints(training):
    others = ("runs", "runs-2026", "run_4", "bert-base-v2", "checkpoint-4-copy2")
    for name in ("tmp-checkpoint-6", ".checkpoint-8", *others):
        shutil.copytree(training / LAST, training / name)
    (training / "checkpoint-9").write_text("a file")
    assert names(training) == [FIRST, LAST]


def test_checkpoints_may_have_a_folder_of_their_own_and_a_model_inside(training, tmp_path):
    """As ``pretrain`` leaves them: what training goes on with, and a model in a folder."""
    inner = tmp_path / "run" / "checkpoints"
    checkpoint = inner / "step_100"
    shutil.copytree(training / LAST, checkpoint / "model")
    assert names(tmp_path / "run") == names(inner) == ["step_100"]
    assert model_folder(checkpoint) == checkpoint / "model"
    assert model_folder(training / LAST) == training / LAST
    assert training_folder(inner) == training_folder(tmp_path / "run") == tmp_path / "run"


def test_a_checkpoint_that_the_training_deletes_is_skipped_in_one_sentence(training, capsys):
    """As ``save_total_limit`` deletes it, between the scan and the evaluation."""
    watcher = Watcher("run", (), {}, "nDCG@10", training, Workspace(training / "cache"))
    (checkpoint, *_) = scan_checkpoints(training)
    shutil.rmtree(checkpoint)
    watcher.evaluate(checkpoint)
    (told,) = capsys.readouterr().err.splitlines()
    assert told == f"warning: {checkpoint.name} is left out: {DELETED}"
    shutil.rmtree(training)
    assert scan_checkpoints(training) == {}
