"""``watch`` beside a real training, each in a process of its own; killed, started again, ended."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.monitor.following import Ending, follow
from bench.monitor.ledger import Evaluated, Ledger, read_ledger
from bench.monitor.scanner import CheckpointScanner
from bench.monitor.watcher import Watcher, WatchSettings
from tests.bench.monitor.test_watch_command import SHORT, write_words
from tests.support.collections import ROOT, Bench, finish
from tests.support.training import train

STEPS = (4, 8, 12)


def evaluated(training: Path) -> list[int]:
    lines = read_ledger(training / "watch" / "ledger.jsonl")
    return [one.step for one in lines if isinstance(one, Evaluated)]


def wait_for(count: int, training: Path, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 120
    while len(evaluated(training)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.slow
def test_a_training_in_another_process_is_followed_through_a_kill_to_ctrl_c(tmp_path):
    training, bench = tmp_path / "run", Bench(tmp_path)
    training.mkdir()
    words = ("--on", write_words(tmp_path / "tiny"), "--like", "bert", *SHORT)
    places = ("--results", bench.out, "--cache-dir", bench.cache, "--every", 0.2)
    command = ("watch", training, *words, *places)
    program = ("tests.support.training", training, STEPS[-1], STEPS[0], 3.0)
    trainer = subprocess.Popen([sys.executable, "-m", *map(str, program)], cwd=ROOT)
    try:
        first = bench.start(*command)
        wait_for(1, training, first)
        first.kill()
        first.communicate()
        second = bench.start(*command)
        wait_for(len(STEPS), training, second)
        assert trainer.wait(timeout=120) == 0
        time.sleep(0.5)  # it waits for more
        second.send_signal(signal.SIGINT)
        done = finish(second)
    finally:
        trainer.kill()
        trainer.wait()
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert evaluated(training) == list(STEPS)
    for step in STEPS:
        assert f"checkpoint-{step} " in done.stdout


def test_ctrl_c_in_an_evaluation_leaves_it_for_the_next_time(tmp_path):
    """The files of the checkpoint are let go, and the ledger does not name it."""
    train(tmp_path / "run", steps=2, save_every=2)

    def interrupted(folder: Path) -> None:
        assert (folder / "model.safetensors").is_file()
        raise KeyboardInterrupt

    held = tmp_path / "held"
    work = WatchSettings("run", (), "nDCG@10", None, tmp_path, tmp_path, False, held, interrupted)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        watcher = Watcher(work, ledger)
        follow(CheckpointScanner(tmp_path / "run"), watcher, Ending(0.01), list)
    assert watcher.interrupted == "checkpoint-2"
    assert read_ledger(tmp_path / "ledger.jsonl") == ()
    assert not held.exists()
