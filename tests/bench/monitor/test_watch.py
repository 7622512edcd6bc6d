"""``watch`` on the checkpoints of a real training, in this process and beside it."""

import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from bench.monitor import Watcher, follow_training
from bench.requests.outcomes import ExitCode
from bench.requests.training import WatchRequest
from bench.result_store.find import find_results
from bench.runner.workspace import Workspace
from foundation.files import FileLock
from tests.support.collections import Bench, Finished, finish, start, write_words
from tests.support.processes import wait_until
from tests.support.tiny_checkpoints import write_card
from tests.support.training import STEPS

# Ctrl-C arrives while this module of matplotlib is imported.
INTERRUPTED_IMPORT = """
import importlib.machinery, runpy, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name != "matplotlib.figure":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def execute_and_interrupt(module):
            execute(module)
            raise KeyboardInterrupt
        spec.loader.exec_module = execute_and_interrupt
        return spec

sys.meta_path.insert(0, Interrupt())
runpy.run_module("bench", run_name="__main__")
"""


@dataclass(frozen=True)
class Place:
    """A training, a collection, and the command line."""

    bench: Bench
    training: Path
    collection: Path

    @property
    def results(self) -> dict[str, list[dict]]:
        """Means of all evaluations of the training, by checkpoint."""
        found: dict[str, list[dict]] = {}
        for stored in find_results(self.bench.out):
            training, _, checkpoint = stored.record.model.partition("/")
            if training == "my_run":
                found.setdefault(checkpoint, []).append(stored.record.measures)
        return found

    def words(self) -> tuple[object, ...]:
        card = write_card(self.bench.place / "card.toml", checkpoint="x", pooling="cls")
        places = ("--results", self.bench.out, "--cache-dir", self.bench.cache)
        return ("watch", self.training, "--on", self.collection, "--like", card, *places)

    def watch(self, *options: object) -> Finished:
        """Look twice and end."""
        return self.bench(*self.words(), "--once", "--every", 0.01, *options)

    def curve(self) -> dict:
        done = self.watch("--json")
        assert done.code == ExitCode.OK, done.stderr
        return json.loads(done.stdout)["curve"]


@pytest.fixture
def place(trained, tmp_path) -> Place:
    training = Path(shutil.copytree(trained, tmp_path / "my run"))
    return Place(Bench(tmp_path), training, write_words(tmp_path / "tiny"))


def test_every_checkpoint_is_evaluated_once_as_the_ordinary_pipeline_does(place):
    done, out = place.watch(), place.training / "watch"
    files = {path.name for path in out.iterdir()}
    assert files == {"curve.md", "curve.json", "curve.svg", "curve.png", ".work"}
    assert (out / "curve.md").read_text() == done.stdout
    assert "partly the luckiest" in done.stdout
    assert "checkpoint-2 on tiny: evaluating" in done.stderr
    assert not list((out / ".work").iterdir())
    before = {path: path.stat().st_mtime_ns for path in place.bench.out.rglob("*")}
    os.utime(place.training / "checkpoint-2" / "model.safetensors", ns=(1, 1))
    points = [(one["checkpoint"], one["step"]) for one in place.curve()["points"]]
    assert points == [(f"checkpoint-{step}", step) for step in STEPS]
    assert {path: path.stat().st_mtime_ns for path in place.bench.out.rglob("*")} == before

    model, card = place.training / "checkpoint-4", place.bench.place / "card.toml"
    done = place.bench("run", place.collection, "--model", model, "--like", card)
    assert done.code == ExitCode.OK, done.stderr
    (alone,) = find_results(place.bench.out, "checkpoint-4")[:1]
    assert place.results["checkpoint-4"][0]["nDCG@10"] == alone.record.measures["nDCG@10"]


def test_a_checkpoint_that_cannot_be_opened_is_reported_and_the_others_are_evaluated(place):
    """Half written, numbers that are none, no tokenizer, half a tokenizer, no configuration."""
    from safetensors.torch import load_file, save_file

    first = place.training / "checkpoint-2"
    for step, name in enumerate(("tokenizer", "half", "config", "pickle"), start=10):
        copy = shutil.copytree(first, place.training / f"checkpoint-{step}")
        if name == "tokenizer":
            (copy / "tokenizer.json").unlink()
            (copy / "vocab.txt").unlink(missing_ok=True)
        elif name == "half":
            os.truncate(copy / "tokenizer.json", (copy / "tokenizer.json").stat().st_size // 2)
        elif name == "config":
            (copy / "config.json").unlink()
        else:
            torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
            (copy / "model.safetensors").unlink()
            size = (copy / "pytorch_model.bin").stat().st_size
            os.truncate(copy / "pytorch_model.bin", size // 2)
    path = place.training / "checkpoint-4" / "model.safetensors"
    save_file({name: one * float("nan") for name, one in load_file(path).items()}, path)
    weights = place.training / "checkpoint-6" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    done = place.watch()
    assert done.code == ExitCode.OK, done.stderr
    for step in (4, 6, 10, 11, 12, 13):
        assert f"checkpoint-{step} is left out" in done.stderr
    assert "not a complete safetensors file" in done.stderr
    assert "checkpoint-6 could not be evaluated" in done.stdout
    assert set(place.results) == {"checkpoint-2"}
    weights.write_bytes(whole)
    assert "checkpoint-6" not in place.curve()["broken"]
    assert set(place.results) == {"checkpoint-2", "checkpoint-6"}


@pytest.mark.slow
def test_two_processes_do_not_watch_one_training(place):
    out = place.training / "watch"
    out.mkdir()
    with FileLock.try_acquire(out / ".lock"):
        done = place.watch()
    assert done.code == ExitCode.BAD_INPUT
    assert "another watch" in done.stderr


@pytest.mark.slow
def test_matplotlib_is_imported_before_anything_is_evaluated(place):
    """An import that Ctrl-C interrupts cannot be repeated, and the last curve is drawn after it."""
    pytest.importorskip("matplotlib")
    words = map(str, (*place.words(), "--once"))
    done = finish(start([sys.executable, "-c", INTERRUPTED_IMPORT, *words]))
    assert done.code == ExitCode.INTERRUPTED, done.stderr
    assert "evaluating" not in done.stderr


@pytest.mark.slow
def test_a_training_is_followed_through_a_kill_to_ctrl_c(place):
    shutil.rmtree(place.training / "checkpoint-6")
    later, hidden = place.training / "checkpoint-4", place.bench.place / "checkpoint-4"
    later.rename(hidden)
    command = (*place.words(), "--every", 0.2)
    first = place.bench.start(*command)
    wait_until(lambda: place.results, first)
    first.kill()
    first.communicate()
    second = place.bench.start(*command)
    hidden.rename(later)
    curve = place.training / "watch" / "curve.json"
    wait_until(lambda: curve.exists() and "checkpoint-4" in curve.read_text(), second)
    second.send_signal(signal.SIGINT)
    done = finish(second)
    assert done.code == ExitCode.INTERRUPTED, done.stderr
    assert "checkpoint-2 on tiny: evaluating" not in done.stderr
    for step in STEPS[:2]:
        assert f"checkpoint-{step} " in done.stdout


def test_ctrl_c_in_an_evaluation_leaves_it_for_the_next_time(place, monkeypatch):
    """It is no result."""

    def interrupted(workspace: Workspace, folder: str, like: None) -> None:
        assert (Path(folder) / "model.safetensors").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(Workspace, "load", interrupted)
    cache = place.bench.cache
    watcher = Watcher("run", (), {}, "RR@10", place.bench.out, Workspace(cache))
    assert follow_training(WatchRequest(place.training, on=("any",), every=0.01), watcher, list)
    assert (watcher.evaluations, watcher.left_out) == ({}, {})
    assert not list(place.bench.place.rglob("vectors"))
