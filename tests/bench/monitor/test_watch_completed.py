"""Which checkpoints are complete: real files, cut off or missing at every stage of writing."""

import os
import shutil
from pathlib import Path

import pytest

from bench.monitor.held import held
from bench.monitor.scanner import (
    STATE,
    CheckpointScanner,
    FinishedCheckpoint,
    Unfinished,
    model_folder,
    training_of,
)
from foundation.errors import BenchError
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


def looked(folder: Path) -> tuple[list[str], dict[str, Unfinished]]:
    """Names of what is finished, and what is not, at a second look."""
    scanner = CheckpointScanner(folder)
    scanner.look()
    found = scanner.look()
    return [one.name for one in found.finished], {one.name: one for one in found.unfinished}


def test_a_checkpoint_of_the_trainer_is_complete_at_the_second_look(training):
    scanner = CheckpointScanner(training)
    assert scanner.look().finished == ()
    assert [(one.name, one.step) for one in scanner.look().finished] == [(FIRST, 2), (LAST, 4)]


def test_steps_order_checkpoints_and_not_their_names(training):
    (training / FIRST).rename(training / "checkpoint-10")
    assert looked(training)[0] == ["checkpoint-10", LAST]  # the Trainer's state says step 2
    (training / LAST / STATE).unlink()
    shutil.copytree(training / LAST, training / "checkpoint-5")
    assert looked(training)[0] == ["checkpoint-10"]


def test_what_changes_between_two_looks_is_still_being_written(training):
    scanner = CheckpointScanner(training)
    scanner.look()
    with (training / LAST / "optimizer.pt").open("ab") as file:
        file.write(b"more")
    look = scanner.look()
    assert [one.name for one in look.finished] == [FIRST]
    assert [(one.name, one.broken) for one in look.unfinished] == [(LAST, False)]
    assert [one.name for one in scanner.look().finished] == [FIRST, LAST]


def test_a_checkpoint_that_is_copied_anew_counts_as_another_one(training):
    scanner = CheckpointScanner(training)
    scanner.look()
    before = scanner.look().finished
    os.utime(training / LAST / "model.safetensors", ns=(1, 1))
    scanner.look()
    after = scanner.look().finished
    assert [one.name for one in before] == [one.name for one in after]
    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
def test_weights_that_are_cut_off_are_never_complete(training, kept):
    path = training / LAST / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size + kept if kept < 0 else int(kept * size) if kept == 0.5 else kept)
    finished, unfinished = looked(training)
    assert finished == [FIRST]
    assert "not a complete safetensors file" in unfinished[LAST].why
    assert unfinished[LAST].broken  # its state, which the Trainer writes last, is there


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "has no weights"),
        (STATE, "which the Trainer writes last"),
    ],
)
def test_a_missing_file_is_named(training, missing, why):
    (training / LAST / missing).unlink()
    finished, unfinished = looked(training)
    assert finished == [FIRST]
    assert why in unfinished[LAST].why


def test_without_the_last_file_it_may_still_come_unless_a_later_checkpoint_is_there(training):
    (training / LAST / STATE).unlink()
    assert not looked(training)[1][LAST].broken
    shutil.copytree(training / FIRST, training / "checkpoint-6")
    (training / "checkpoint-6" / STATE).write_text('{"global_step": 6}')
    assert looked(training)[1][LAST].broken


@pytest.mark.parametrize("content", ["", "{", '{"global_step": 4'])
def test_a_state_that_is_half_written_is_no_state(training, content):
    (training / LAST / STATE).write_text(content)
    assert looked(training)[0] == [FIRST]


def test_a_training_without_a_tokenizer_is_told_how_to_save_one(training):
    for name in ("tokenizer.json", "vocab.txt"):
        (training / LAST / name).unlink(missing_ok=True)
    assert "processing_class" in looked(training)[1][LAST].why


def test_folders_of_other_names_and_files_are_no_checkpoints(training):
    for name in ("tmp-checkpoint-6", ".checkpoint-8", "runs"):
        shutil.copytree(training / LAST, training / name)
    (training / "checkpoint-9").write_text("a file")
    finished, unfinished = looked(training)
    assert finished == [FIRST, LAST]
    assert unfinished == {}


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
    finished, unfinished = looked(tmp_path)
    assert finished == ["step_100", "step_200"]
    assert "1_Pooling" in unfinished["step_300"].why


@pytest.mark.parametrize("share", [0, 0.3, 0.99])
def test_a_pickle_that_is_cut_off_is_not_complete(tmp_path, share):
    write_mlm_pickle(tmp_path / "step_200")
    path = tmp_path / "step_200" / "pytorch_model.bin"
    os.truncate(path, int(share * path.stat().st_size))
    finished, unfinished = looked(tmp_path)
    assert finished == []
    assert "cut off" in unfinished["step_200"].why


def test_a_missing_shard_is_named(tmp_path):
    model = write_bert(tmp_path / "step_1")
    (tmp_path / "step_1" / "model.safetensors").unlink()
    model.save_pretrained(str(tmp_path / "step_1"), max_shard_size="20KB")
    assert looked(tmp_path)[0] == ["step_1"]
    next((tmp_path / "step_1").glob("model-00002-*")).unlink()
    assert "model-00002-" in looked(tmp_path)[1]["step_1"].why


def test_checkpoints_may_have_a_folder_of_their_own_and_a_model_inside(training, tmp_path):
    """As ``pretrain`` leaves them: what training goes on with, and a model in a folder."""
    inner = tmp_path / "run" / "checkpoints"
    checkpoint = inner / "checkpoint-7"
    shutil.copytree(training / LAST, checkpoint / "model")
    (checkpoint / "model" / STATE).rename(checkpoint / STATE)
    (checkpoint / "model.safetensors").write_bytes(
        (checkpoint / "model" / "model.safetensors").read_bytes()
    )
    assert looked(tmp_path / "run")[0] == ["checkpoint-7"]
    assert looked(inner)[0] == ["checkpoint-7"]
    assert model_folder(checkpoint) == checkpoint / "model"
    assert model_folder(training / LAST) == training / LAST
    assert training_of(inner) == training_of(tmp_path / "run") == tmp_path / "run"
    os.truncate(checkpoint / "model" / "model.safetensors", 100)
    assert looked(inner)[0] == []


def test_a_training_that_removes_its_checkpoints_leaves_nothing_to_look_at(training):
    scanner = CheckpointScanner(training)
    scanner.look()
    shutil.rmtree(training)
    look = scanner.look()
    assert (look.finished, look.unfinished) == ((), ())


def finished_in(folder: Path) -> FinishedCheckpoint:
    scanner = CheckpointScanner(folder)
    scanner.look()
    return scanner.look().finished[0]


def test_a_checkpoint_that_is_held_outlives_its_deletion(training, tmp_path):
    checkpoint = finished_in(training)
    weights = (training / FIRST / "model.safetensors").read_bytes()
    with held(checkpoint, tmp_path / "held") as folder:
        shutil.rmtree(training / FIRST)
        assert (folder / "model.safetensors").read_bytes() == weights
        assert folder.name == FIRST
        assert not (folder / "optimizer.pt").exists()
    assert not (tmp_path / "held").exists()


def test_a_checkpoint_that_was_deleted_cannot_be_held(training, tmp_path):
    checkpoint = finished_in(training)
    shutil.rmtree(training / FIRST)
    with pytest.raises(BenchError, match="deleted"), held(checkpoint, tmp_path / "held"):
        pass
