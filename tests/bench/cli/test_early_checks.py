"""What would fail after hours of work fails before any: places, devices, words."""

import shutil
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.cli.command_table import COMMANDS
from bench.cli.parsing import output_marks
from tests.support.collections import Bench, write_collection

NOWHERE = "/proc/nowhere"  # root may write anywhere else
OUTPUTS = {
    "run": ["run", "{data}", "--model", "hashing", "--results"],
    "score": ["score", "{run}", "--dataset", "{data}", "--results"],
    "check": ["check", "hashing", "--baseline", "bm25", "--on", "{data}", "--results"],
    "check --junit": ["check", "hashing", "--baseline", "bm25", "--junit"],
    "watch": ["watch", "{data}", "--on", "{data}", "--once", "--out"],
    "watch --results": ["watch", "{data}", "--on", "{data}", "--once", "--results"],
    "ablate": ["ablate", "inference", "--out"],
    "adapt": ["adapt", "tsdae", "--on", "{data}", "--out"],
    "pretrain": ["pretrain", "retromae-paper", "--on", "{data}", "--out"],
    "finetune": ["finetune", "contrastive", "--model", "minilm", "--on", "{data}", "--out"],
    "compose": ["compose", "average", "{data}", "{data}", "--out"],
    "export": ["export", "hashing", "--out"],
}
DEVICES = {
    "run": ["run", "{data}", "--model", "hashing"],
    "run bm25": ["run", "{data}", "--model", "bm25"],
    "check": ["check", "hashing", "--baseline", "bm25", "--on", "{data}"],
    "watch": ["watch", "{data}", "--on", "{data}", "--once"],
    "speed": ["speed", "--model", "hashing"],
}


@pytest.fixture
def words(tmp_path: Path) -> dict[str, str]:
    data = write_collection(tmp_path / "tiny")
    run = tmp_path / "some.trec"
    run.write_text("q1 Q0 d1 1 1.5 tag\n")
    return {"data": str(data), "run": str(run)}


@pytest.mark.parametrize("case", OUTPUTS)
def test_an_unwritable_path_is_refused_before_any_work(tmp_path, words, case):
    bench = Bench(tmp_path)
    file = case.split()[-1] in ("--junit", "--plot")
    place = f"{NOWHERE}/x.svg" if file else NOWHERE
    finished = bench(*(word.format(**words) for word in OUTPUTS[case]), place)
    assert finished.code == 2, finished.stderr
    assert f"error: {place} cannot be written" in finished.stderr
    assert "\n  Choose another folder." in finished.stderr
    assert not bench.cache.exists()


def test_every_option_that_is_written_is_checked():
    """Their names are those of today: a new one must be marked, too."""
    written = {"out", "junit", "figure", "write"}
    for name, command in COMMANDS.items():
        kinds = {option.name: option.kind for option in command.options()}
        marked = {option for option, kind in kinds.items() if list(output_marks(kind))}
        assert kinds.keys() & written == marked - {"results"}, name


@pytest.mark.parametrize("case", DEVICES)
def test_a_missing_gpu_is_refused_before_a_corpus_is_built(tmp_path, words, case):
    torch = pytest.importorskip("torch")
    device = f"cuda:{torch.cuda.device_count()}"
    bench = Bench(tmp_path)
    finished = bench(*(word.format(**words) for word in DEVICES[case]), "--device", device)
    assert finished.code == 2, finished.stderr
    assert f"error: {device} is not available" in finished.stderr
    assert "--device cpu" in finished.stderr
    assert not bench.cache.exists()


def test_testing_whether_a_path_is_writable_leaves_nothing_there(tmp_path, words):
    bench = Bench(tmp_path)
    bench("run", words["data"], "--model", "no-such-model", "--results", tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()


def test_a_word_that_is_not_utf_8_is_refused(tmp_path, words):
    raw = tmp_path / "caf\udce9"
    shutil.copytree(words["data"], raw)
    finished = Bench(tmp_path)("run", raw, "--model", "hashing")
    assert finished.code == 2
    assert r"caf\udce9' cannot be written as utf-8" in finished.stderr


def test_the_cache_of_the_environment_is_a_folder(tmp_path, words, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", "s3://bucket/cache")
    monkeypatch.chdir(tmp_path)
    assert main(["run", words["data"], "--model", "hashing", "--results", "out"]) == 2
    assert not (tmp_path / "s3:").exists()
