"""Working through a plan: caching, gaps, resuming, and work in subprocesses."""

import errno
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from bench.experiments.experiment import (
    DONE_FILE,
    FAILED_FILE,
    plan_experiment,
    run_experiment,
    run_in_subprocess,
)
from bench.experiments.grid import FILES
from foundation.errors import BenchError, WorkerError, is_disk_full
from foundation.files import FileLock
from tests.support import processes
from tests.support.experiments import FAKES, GRID, FakeStage, run_stages_in_this_process


def plan(stages=FAKES, text=GRID):
    return plan_experiment(FILES.parse(text.encode(), ""), stages)


@pytest.fixture
def here(monkeypatch):
    run_stages_in_this_process(monkeypatch)


def go(out, stages=FAKES):
    said = []
    outcome = run_experiment(plan(stages), out, said.append)
    return outcome, said


def calls(out):
    return sum(len(path.read_text()) for path in out.rglob("calls"))


def test_every_task_is_done_once_and_never_again(here, tmp_path):
    outcome, said = go(tmp_path)
    assert len(outcome.finished) == calls(tmp_path) == 33
    assert not any(outcome.find_gap(cell)[0] for cell in plan().cells)
    assert said[0] == "cell 1 of 12: reference, seed 0: done, 0 s; 30 tasks left"
    assert said[-1].endswith("all are finished")
    again, said = go(tmp_path)
    assert (calls(tmp_path), said) == (33, [])
    assert set(again.finished) == set(outcome.finished)


def test_a_failed_cell_is_a_gap_with_its_error_and_the_others_go_on(here, tmp_path):
    stages = {**FAKES, "finetune": FakeStage("finetune", fails_at=0.2)}
    outcome, said = go(tmp_path, stages)
    gaps = {cell.row for cell in plan().cells if outcome.find_gap(cell)[0]}
    assert gaps == {"lr=0.2"}
    assert said[3].startswith("cell 4 of 12: lr=0.2, seed 0: FAILED at finetune: loss is not a")
    failed = list(tmp_path.rglob(FAILED_FILE))
    assert len(failed) == 3
    assert failed[0].read_text().startswith("loss is not a number\na smaller lr\n")
    repeated, _ = go(tmp_path)
    assert repeated.failed == {}
    assert not list(tmp_path.rglob(FAILED_FILE))


def test_a_stage_that_fails_for_two_cells_is_tried_once(here, tmp_path):
    stages = {**FAKES, "pretrain": FakeStage("pretrain", fails_at=0.1)}
    outcome, _ = go(tmp_path, stages)
    assert calls(tmp_path) == len(outcome.failed) == 9
    assert {outcome.find_gap(cell)[0] for cell in plan().cells} == {"pretrain"}


def test_two_processes_share_the_cells_and_both_report_all(tmp_path, monkeypatch):
    together = threading.Barrier(2, timeout=processes.HANGS_S)
    begun = threading.local()

    def run(work, *arguments):
        if not hasattr(begun, "yes"):
            begun.yes = together.wait() >= 0  # neither goes on before both work on a task
        return work(*arguments)

    monkeypatch.setattr("bench.experiments.experiment.run_in_subprocess", run)
    with ThreadPoolExecutor(2) as pool:
        outcomes = [each.result() for each in [pool.submit(go, tmp_path) for _ in "ab"]]
    assert calls(tmp_path) == 33
    assert [len(outcome.finished) for outcome, _ in outcomes] == [33, 33]
    assert not list(tmp_path.rglob("*.claim"))


def test_a_process_that_finds_every_cell_claimed_waits_and_continues(here, tmp_path):
    claims = []
    for task in plan().tasks():
        if task.stage == "pretrain":
            task.folder(tmp_path).mkdir(parents=True)
            claims.append(FileLock.try_acquire(task.folder(tmp_path).with_suffix(".claim")))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(go, tmp_path)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        for claim in claims:
            claim.release()
        outcome, said = waiting.result()
    assert len(outcome.finished) == calls(tmp_path) == 33
    assert len([line for line in said if line.startswith("cell ")]) == 12


def test_a_full_disk_stops_everything(tmp_path, monkeypatch):
    def full(work, *arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bench.experiments.experiment.run_in_subprocess", full)
    with pytest.raises(OSError, match="No space"):
        go(tmp_path)


def test_a_damaged_record_says_what_to_delete(here, tmp_path):
    go(tmp_path)
    record = next(tmp_path.rglob(DONE_FILE))
    record.write_text("{")
    with pytest.raises(BenchError, match=re.escape(str(record))) as caught:
        go(tmp_path)
    assert str(record.parent) in caught.value.hint


def test_each_stage_starts_from_what_the_one_before_left(here, tmp_path):
    go(tmp_path)
    last = {cell.row: cell.task for cell in plan().cells if cell.seed == 0}
    models = {row: task.before.folder(tmp_path) / "model" for row, task in last.items()}
    # steps x lr of the pre-training, plus 1 x lr of the fine-tuning
    assert float(models["steps=5"].read_text()) == pytest.approx(0.6)
    assert float(models["lr=0.2"].read_text()) == pytest.approx(1.2)


@pytest.mark.slow
def test_values_and_errors_of_a_child_process_arrive():
    assert run_in_subprocess(os.getpid) != os.getpid()
    with pytest.raises(BenchError, match="killed by the system: most likely out of memory"):
        run_in_subprocess(processes.killed)
    with pytest.raises(BenchError, match="out of memory") as caught:
        run_in_subprocess(processes.no_memory)
    assert "batch_size" in caught.value.hint
    assert "--" not in caught.value.hint
    with pytest.raises(BenchError, match="no such preset") as caught:
        run_in_subprocess(processes.bad_input)
    assert caught.value.hint == "use another"
    with pytest.raises(BenchError, match="vectors: No space left") as stopped:
        run_in_subprocess(processes.full)
    assert is_disk_full(stopped.value)
    assert "free some space" in stopped.value.hint.lower()
    with pytest.raises(WorkerError, match="ZeroDivisionError: division by zero") as other:
        run_in_subprocess(processes.defect)
    assert "in defect" in other.value.trace


@pytest.mark.slow
def test_an_interrupt_ends_no_other_process_of_the_caller(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    try:
        monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_in_subprocess(os.getpid)
        other.join(0.5)
        assert other.is_alive()
    finally:
        other.kill()


SLEEPER = """
from bench.experiments.experiment import run_in_subprocess
run_in_subprocess(exec, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
"""


@pytest.mark.slow
def test_a_child_process_ends_with_its_parent():
    command = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        apart = int(program.stdout.readline())
        program.kill()
    for _ in range(300):
        try:
            os.kill(apart, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(apart, signal.SIGKILL)
    pytest.fail("the work goes on")


def test_a_defect_is_kept_with_its_trace_and_the_others_go_on(here, tmp_path):
    class Broken(FakeStage):
        def run(self, settings, model, out):
            if settings["lr"] == 0.2:
                raise KeyError("w")
            return super().run(settings, model, out)

    outcome, _ = go(tmp_path, {**FAKES, "finetune": Broken("finetune")})
    assert list(outcome.failed.values()) == ["KeyError: 'w'"] * 3
    assert "in run" in next(tmp_path.rglob(FAILED_FILE)).read_text()
