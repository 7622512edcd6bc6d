"""What would fail after hours of work fails before any: places, devices, words."""

import shutil
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.cli.command_table import COMMANDS
from bench.cli.parsing import output_marks
from tests.support.collections import write_collection

NOWHERE = "/proc/nowhere"  # root may write anywhere else
OUTPUTS = {
    "run {} --model hashing --results": NOWHERE,
    "check hashing --baseline bm25 --junit": f"{NOWHERE}/x.xml",
    "ablate inference --out": NOWHERE,
    "export hashing --out": NOWHERE,
}
DEVICES = (
    "run {} --model hashing",
    "check hashing --baseline bm25 --on {}",
    "speed --model hashing",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_collection(tmp_path / "tiny")


@pytest.mark.parametrize("command", OUTPUTS)
def test_an_unwritable_path_is_refused_before_any_work(bench, data, command):
    finished = bench(*command.format(data).split(), OUTPUTS[command])
    assert finished.code == 2, finished.stderr
    assert f"error: {OUTPUTS[command]} cannot be written" in finished.stderr
    assert "\n  Choose another folder." in finished.stderr
    assert not bench.cache.exists()


def test_every_option_that_is_written_is_checked():
    """Their names are those of today: a new one must be marked, too."""
    written = {"out", "junit", "figure", "write", "log_dir"}
    for name, command in COMMANDS.items():
        options = command.options.parameters
        kinds = {name: option.annotation for name, option in options.items()}
        marked = {option for option, kind in kinds.items() if list(output_marks(kind))}
        assert kinds.keys() & written == marked - {"results"}, name


@pytest.mark.parametrize("command", DEVICES)
def test_a_missing_gpu_is_refused_before_a_corpus_is_built(bench, data, command):
    torch = pytest.importorskip("torch")
    device = f"cuda:{torch.cuda.device_count()}"
    finished = bench(*command.format(data).split(), "--device", device)
    assert finished.code == 2, finished.stderr
    assert f"error: {device} is not available" in finished.stderr
    assert "--device cpu" in finished.stderr
    assert not bench.cache.exists()


def test_testing_whether_a_path_is_writable_leaves_nothing_there(bench, tmp_path, data):
    bench("run", data, "--model", "no-such-model", "--results", tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()


def test_a_word_that_is_not_utf_8_is_refused(bench, tmp_path, data):
    raw = shutil.copytree(data, tmp_path / "caf\udce9")
    finished = bench("run", raw, "--model", "hashing")
    assert finished.code == 2
    assert r"caf\udce9' cannot be written as utf-8" in finished.stderr


def test_the_cache_of_the_environment_is_a_folder(tmp_path, data, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", "s3://bucket/cache")
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(data), "--model", "hashing", "--results", "out"]) == 2
    assert not (tmp_path / "s3:").exists()
