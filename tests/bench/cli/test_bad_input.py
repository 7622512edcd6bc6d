"""Bad input at the command line: one message, exit code 2, nothing half-written."""

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.result_store.result import load
from tests.support import tiny_checkpoints
from tests.support.collections import Bench, Finished, files_below, write_collection
from tests.support.processes import HANGS_S, wait_until

Spoil = Callable[[Path], object]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_collection(tmp_path / "tiny")


def assert_refused(finished: Finished, bench: Bench, *named: str) -> None:
    """Exit code 2, one error that names what it is about and what to do, no results."""
    assert finished.code == 2, finished.stderr
    assert finished.stderr.count("error: ") == 1, finished.stderr
    assert "internal error" not in finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stdout == ""
    for text in named:
        assert text in finished.stderr
    assert not files_below(bench.out)


LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 1\n"
BAD_FILES = {
    "a truncated line": (
        "corpus.jsonl",
        '{"_id": "a", "text": "x"}\n{"_id": "b", "te',
        ("corpus.jsonl:2", "Write one JSON object per line"),
    ),
    "a pointer of Git LFS": (
        "corpus.jsonl",
        LFS_POINTER,
        ("corpus.jsonl is a Git LFS pointer", "lfs pull"),
    ),
    "an unknown layout": ("dataset.toml", 'layout = "bier"\n', ("bier", "beir")),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_of_a_collection_is_named(bench, tiny, case):
    name, content, named = BAD_FILES[case]
    (tiny / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(bench("run", tiny, "--model", "hashing"), bench, *named)
    assert not list(bench.cache.rglob(".*")), "half a corpus was left"
    assert not list(bench.cache.glob("vectors/*")), "vectors were made of data that is refused"


# Checkpoints


@pytest.fixture(scope="session")
def sound_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as a sentence-transformers folder."""
    folder = tmp_path_factory.mktemp("checkpoints") / "sound"
    tiny_checkpoints.write_bert(folder)
    return tiny_checkpoints.write_st_folder(folder)


@pytest.fixture
def checkpoint(sound_checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound_checkpoint, tmp_path / "checkpoint")


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))


def without_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)


def weights_of_another_size(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=3)


def nan_weights(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"] = np.full(32, np.nan, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def code_in_modules(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('executed')\n")
    modules = json.loads((folder / "modules.json").read_bytes())
    modules[1]["type"] = "own.Module"
    (folder / "modules.json").write_text(json.dumps(modules))


BAD_CHECKPOINTS: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "no tokenizer": (without_tokenizer, ("no tokenizer", "save_pretrained")),
    "a pointer of Git LFS": (
        lambda f: (f / "model.safetensors").write_text(LFS_POINTER),
        ("model.safetensors is a Git LFS pointer", "git lfs pull"),
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ("no weights", "safetensors")),
    "weights of another size": (weights_of_another_size, ("lacks", "config.json")),
    "NaN in weights": (nan_weights, ("NaN", "damaged")),
    "code in modules.json": (code_in_modules, ("modules.json", "own.Module")),
    "a plain checkpoint": (
        lambda f: (f / "modules.json").unlink(),
        ("plain checkpoint", "--like CARD", "list models"),
    ),
}


@pytest.mark.parametrize("case", BAD_CHECKPOINTS)
def test_a_bad_checkpoint_gives_one_clear_error(bench, tiny, checkpoint, case):
    spoil, named = BAD_CHECKPOINTS[case]
    spoil(checkpoint)
    assert_refused(bench("run", tiny, "--model", checkpoint), bench, *named)
    assert not list(bench.cache.rglob("*.f32"))


def test_a_plain_checkpoint_runs_like_a_card_as_the_error_says(bench, tiny, checkpoint):
    (checkpoint / "modules.json").unlink()
    like = ("--model", checkpoint, "--like", "retromae")
    finished = bench("run", tiny, *like)
    assert_refused(finished, bench, "positions for 64", "at most 64")
    lengths = ("--set", "max_query_tokens=64", "--set", "max_document_tokens=64")
    assert bench("run", tiny, *like, *lengths).code == 0
    recipe = load(bench.results("tiny", "checkpoint")).record.recipe
    assert recipe is not None
    assert recipe.pooling == "cls"


# Places that cannot be written


class FullDisk:
    """Lets a number of files be written, then has no space for any."""

    def __init__(self, files: int) -> None:
        self.files = files

    def fsync(self, handle: int) -> None:
        if self.files == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.files -= 1


def test_a_full_disk_is_reported_at_any_file_and_the_same_command_continues(
    bench, tiny, tmp_path, monkeypatch
):
    other = Bench(tmp_path / "other")
    assert other("run", tiny, "--model", "hashing").code == 0
    for files in range(30):
        monkeypatch.setattr(os, "fsync", FullDisk(files).fsync)
        finished = bench("run", tiny, "--model", "hashing")
        if finished.code == 0:
            break
        assert finished.code == 2, finished.stderr
        assert "space" in finished.stderr or "full" in finished.stderr
        assert "Traceback" not in finished.stderr
        assert not list(bench.out.rglob("result.json"))
        assert not list(bench.place.rglob(".*")), "a temporary file was left"
    monkeypatch.undo()
    assert finished.code == 0
    assert files >= 3, "the three files of a result come last"
    first, second = (one.results("tiny", "hashing") for one in (other, bench))
    for name in ("run.arrow", "per_query.parquet"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


# Ctrl-C


@pytest.mark.slow
def test_ctrl_c_while_encoding_loses_nothing_and_leaves_nothing_half_written(bench, tmp_path):
    rng = np.random.default_rng(0)
    texts = {
        f"x{i}": ("", " ".join(f"w{n}" for n in row))
        for i, row in enumerate(rng.integers(0, 999, (9000, 40)))
    }
    folder = write_collection(tmp_path / "tiny", {"d1": ("", "lift of a wing"), **texts})
    command = ("run", folder, "--model", "hashing", "--depth", 100)
    process = bench.start(*command)
    vectors = bench.cache / "vectors"
    wait_until(lambda: len(list(vectors.glob("*/*.f32"))) >= 3)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130, stderr
    assert "repeat the command" in stderr
    assert "Traceback" not in stderr
    assert stdout == ""
    assert not bench.out.exists()
    assert not list(bench.cache.rglob(".*"))
    finished = bench(*command)
    assert finished.code == 0, finished.stderr
    encoded = load(bench.results("tiny", "hashing")).record.timings.encoded_documents
    assert 0 < encoded < 9001
    fresh = Bench(tmp_path / "fresh")
    assert fresh(*command).code == 0
    first, second = (one.results("tiny", "hashing") for one in (bench, fresh))
    for name in ("run.arrow", "per_query.parquet"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
