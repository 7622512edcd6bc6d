"""Which checkpoints are complete, and where they are looked for."""

import os
import shutil
from pathlib import Path

import pytest

from bench.monitor.watch import (
    CheckpointScanner,
    CheckpointState,
    model_folder,
    step_of,
    training_folder,
)
from tests.support.tiny_checkpoints import write_bert
from tests.support.training import train

FIRST, LAST = "checkpoint-2", "checkpoint-4"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Two checkpoints as the Hugging Face Trainer leaves them."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder, steps=4, save_every=2)
    return folder


@pytest.fixture
def training(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "training"))


def looked(folder: Path, scanner: CheckpointScanner | None = None) -> dict[str, CheckpointState]:
    """What is seen at a second look, by name."""
    if scanner is None:
        scanner = CheckpointScanner(folder)
        scanner.scan()
    return {one.name: one for one in scanner.scan()}


def complete(folder: Path, scanner: CheckpointScanner | None = None) -> list[str]:
    return [name for name, one in looked(folder, scanner).items() if not one.changing]


def test_a_checkpoint_of_the_trainer_is_complete_at_the_second_look(training):
    scanner = CheckpointScanner(training)
    assert complete(training, scanner) == []
    assert [(one.name, step_of(one.name)) for one in scanner.scan()] == [(FIRST, 2), (LAST, 4)]
    assert complete(training, scanner) == [FIRST, LAST]
    (training / FIRST).rename(training / "checkpoint-10")  # steps order them, not names
    assert complete(training) == [LAST, "checkpoint-10"]


def test_a_folder_that_changes_between_two_scans_is_incomplete(training):
    scanner = CheckpointScanner(training)
    scanner.scan()
    with (training / LAST / "optimizer.pt").open("ab") as file:
        file.write(b"more")
    scan = looked(training, scanner)
    assert scan[LAST].changing
    after = looked(training, scanner)
    assert not after[LAST].changing
    os.utime(training / LAST / "model.safetensors", ns=(1, 1))  # copied anew: another one
    scanner.scan()
    anew = looked(training, scanner)
    assert (anew[FIRST] == after[FIRST], anew[LAST] == after[LAST]) == (True, False)


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
    assert list(looked(training)) == complete(training) == [FIRST, LAST]


def test_plain_folders_of_other_tools_are_complete_when_nothing_changes(tmp_path):
    write_bert(tmp_path / "step_100")
    assert complete(tmp_path) == ["step_100"]


def test_checkpoints_may_have_a_folder_of_their_own_and_a_model_inside(training, tmp_path):
    """As ``pretrain`` leaves them: what training goes on with, and a model in a folder."""
    inner = tmp_path / "run" / "checkpoints"
    checkpoint = inner / "checkpoint-7"
    shutil.copytree(training / LAST, checkpoint / "model")
    (checkpoint / "model.safetensors").write_bytes(
        (checkpoint / "model" / "model.safetensors").read_bytes()
    )
    assert complete(tmp_path / "run") == ["checkpoint-7"]
    assert complete(inner) == ["checkpoint-7"]
    assert model_folder(checkpoint) == checkpoint / "model"
    assert model_folder(training / LAST) == training / LAST
    assert training_folder(inner) == training_folder(tmp_path / "run") == tmp_path / "run"


def test_a_watch_survives_checkpoints_that_the_training_removes(training):
    scanner = CheckpointScanner(training)
    scanner.scan()
    shutil.rmtree(training)
    assert scanner.scan() == ()
