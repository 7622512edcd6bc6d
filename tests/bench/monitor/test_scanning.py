"""Which checkpoints are complete: real files, cut off or missing at every stage of writing."""

import os
import shutil
from pathlib import Path

import pytest

from bench.monitor.following import (
    STATE,
    CheckpointScanner,
    SeenCheckpoint,
    model_folder,
    training_of,
)
from tests.support.tiny_checkpoints import write_bert, write_mlm_pickle, write_st_files
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


def looked(folder: Path, scanner: CheckpointScanner | None = None) -> dict[str, SeenCheckpoint]:
    """What is seen at a second look, by name."""
    if scanner is None:
        scanner = CheckpointScanner(folder)
        scanner.look()
    return {one.name: one for one in scanner.look()}


def complete(folder: Path, scanner: CheckpointScanner | None = None) -> list[str]:
    return [name for name, one in looked(folder, scanner).items() if not one.lacks]


def test_a_checkpoint_of_the_trainer_is_complete_at_the_second_look(training):
    scanner = CheckpointScanner(training)
    assert complete(training, scanner) == []
    assert [(one.name, one.step) for one in scanner.look()] == [(FIRST, 2), (LAST, 4)]
    assert complete(training, scanner) == [FIRST, LAST]
    (training / FIRST).rename(training / "checkpoint-10")  # steps order them, not names
    assert complete(training) == [LAST, "checkpoint-10"]


def test_what_changes_between_two_looks_is_still_being_written(training):
    scanner = CheckpointScanner(training)
    scanner.look()
    with (training / LAST / "optimizer.pt").open("ab") as file:
        file.write(b"more")
    look = looked(training, scanner)
    assert look[LAST].lacks
    assert not look[LAST].broken
    after = looked(training, scanner)
    assert not after[LAST].lacks
    os.utime(training / LAST / "model.safetensors", ns=(1, 1))  # copied anew: another one
    scanner.look()
    anew = looked(training, scanner)
    assert (anew[FIRST] == after[FIRST], anew[LAST] == after[LAST]) == (True, False)


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
def test_weights_that_are_cut_off_are_never_complete(training, kept):
    path = training / LAST / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size + kept if kept < 0 else int(kept * size) if kept == 0.5 else kept)
    found = looked(training)
    assert not found[FIRST].lacks
    assert "not a complete safetensors file" in found[LAST].lacks
    assert found[LAST].broken  # its state, which the Trainer writes last, is there


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "has no weights"),
        (STATE, "which the Trainer writes last"),
        ("tokenizer.json", "processing_class"),
    ],
)
def test_a_missing_file_is_named(training, missing, why):
    (training / LAST / missing).unlink()
    if missing == "tokenizer.json":
        (training / LAST / "vocab.txt").unlink(missing_ok=True)
    found = looked(training)
    assert not found[FIRST].lacks
    assert why in found[LAST].lacks


def test_without_the_last_file_it_may_still_come_unless_a_later_checkpoint_is_there(training):
    (training / LAST / STATE).unlink()
    assert not looked(training)[LAST].broken
    shutil.copytree(training / FIRST, training / "checkpoint-6")
    (training / "checkpoint-6" / STATE).write_text('{"global_step": 6}')
    assert looked(training)[LAST].broken


def test_folders_of_other_names_and_files_are_no_checkpoints(training):
    for name in ("tmp-checkpoint-6", ".checkpoint-8", "runs"):
        shutil.copytree(training / LAST, training / name)
    (training / "checkpoint-9").write_text("a file")
    assert list(looked(training)) == complete(training) == [FIRST, LAST]


def test_plain_folders_of_other_tools_are_complete_when_weights_and_tokenizer_are(tmp_path):
    write_bert(tmp_path / "step_100")
    write_mlm_pickle(tmp_path / "step_200")
    write_bert(tmp_path / "step_300")
    write_st_files(
        tmp_path / "step_300",
        [
            ("", "sentence_transformers.models.Transformer"),
            ("1_Pooling", "sentence_transformers.models.Pooling"),
        ],
    )
    assert complete(tmp_path) == ["step_100", "step_200"]
    assert "1_Pooling" in looked(tmp_path)["step_300"].lacks


@pytest.mark.parametrize("share", [0, 0.3, 0.99])
def test_a_pickle_that_is_cut_off_is_not_complete(tmp_path, share):
    write_mlm_pickle(tmp_path / "step_200")
    path = tmp_path / "step_200" / "pytorch_model.bin"
    os.truncate(path, int(share * path.stat().st_size))
    assert "cut off" in looked(tmp_path)["step_200"].lacks


def test_a_missing_shard_is_named(tmp_path):
    model = write_bert(tmp_path / "step_1")
    (tmp_path / "step_1" / "model.safetensors").unlink()
    model.save_pretrained(str(tmp_path / "step_1"), max_shard_size="20KB")
    assert complete(tmp_path) == ["step_1"]
    next((tmp_path / "step_1").glob("model-00002-*")).unlink()
    assert "model-00002-" in looked(tmp_path)["step_1"].lacks


def test_checkpoints_may_have_a_folder_of_their_own_and_a_model_inside(training, tmp_path):
    """As ``pretrain`` leaves them: what training goes on with, and a model in a folder."""
    inner = tmp_path / "run" / "checkpoints"
    checkpoint = inner / "checkpoint-7"
    shutil.copytree(training / LAST, checkpoint / "model")
    (checkpoint / "model" / STATE).rename(checkpoint / STATE)
    (checkpoint / "model.safetensors").write_bytes(
        (checkpoint / "model" / "model.safetensors").read_bytes()
    )
    assert complete(tmp_path / "run") == ["checkpoint-7"]
    assert complete(inner) == ["checkpoint-7"]
    assert model_folder(checkpoint) == checkpoint / "model"
    assert model_folder(training / LAST) == training / LAST
    assert training_of(inner) == training_of(tmp_path / "run") == tmp_path / "run"
    os.truncate(checkpoint / "model" / "model.safetensors", 100)
    assert complete(inner) == []


def test_a_training_that_removes_its_checkpoints_leaves_nothing_to_look_at(training):
    scanner = CheckpointScanner(training)
    scanner.look()
    shutil.rmtree(training)
    assert scanner.look() == ()
