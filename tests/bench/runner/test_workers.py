"""Children that are killed or out of space: all is encoded, almost none of it twice."""

import re
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import psutil
import pytest

from bench.runner.engines import WorkerProcesses, _encode_in_worker, worker_count
from bench.runner.workspace import Workspace
from bench.store.shards import SHARD_ROWS
from foundation.errors import BenchError
from tests.bench.cli.test_full_disk import limited
from tests.support.collections import Bench, finish
from tests.support.engines import SHARDS, Bed, files_of
from tests.support.processes import HANGS_S, wait_until


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


@contextmanager
def encoding_child(bed):
    """A child that has written a shard and has others in hand; this process has done nothing."""
    with WorkerProcesses(2, "cpu").encoding(bed.workspace, bed.work):
        (child,) = active_children()
        wait_until(lambda: len(bed.missing()) < SHARDS)
        yield child


@pytest.mark.slow
def test_a_lost_child_repeats_only_its_current_shard_and_changes_no_byte(
    two_threads, undisturbed, collection, card, tmp_path
):
    bed = Bed(tmp_path, collection, card)
    with encoding_child(bed) as child:
        child.kill()
        child.join()
        left = bed.plan().missing_rows
        assert 0 < left < len(bed.corpus)
        assert bed.encode().encoded == left
    same_as(undisturbed, bed.workspace.vectors_dir)


@pytest.mark.slow
def test_a_child_that_cannot_work_is_reported_and_the_others_go_on(
    two_threads, collection, card, tmp_path, capfd
):
    bed = Bed(tmp_path, collection, card)
    with WorkerProcesses(2, "cpu").encoding(bed.workspace, bed.work):
        (child,) = active_children()
        bed.corpus.folder.rename(tmp_path / "moved")
        child.join()
        (tmp_path / "moved").rename(bed.corpus.folder)
        assert bed.encode().encoded == len(bed.corpus)
    assert "warning: a worker failed: " in capfd.readouterr().err


def start(bench, collection, card, **popen):
    words = ("run", collection, "--model", card, "--workers", 2, "--device", "cpu")
    return bench.start(*words, **popen)


@pytest.mark.slow
def test_a_full_disk_is_reported_and_encoding_continues(collection, card, tmp_path, undisturbed):
    bench, bed = Bench(tmp_path), Bed(tmp_path, collection, card)  # the corpus is built
    shard_bytes = SHARD_ROWS * 32 * 4
    full = finish(start(bench, collection, card, preexec_fn=partial(limited, shard_bytes - 1)))
    assert full.code == 2
    assert "Traceback" not in full.stderr
    assert re.search(r"error: \S*\.f32: File too large\n  Free some space", full.stderr)
    bed.encode_on_one_thread()
    same_as(undisturbed, bench.cache / "vectors")


@pytest.mark.slow
def test_children_of_a_killed_command_end_and_encoding_continues(
    collection, card, tmp_path, undisturbed
):
    bench = Bench(tmp_path)
    killed = start(bench, collection, card)
    children = psutil.Process(killed.pid).children
    wait_until(lambda: any(is_encoding(child) for child in children()), killed)
    started = children(recursive=True)
    killed.kill()
    killed.communicate()
    assert psutil.wait_procs(started, timeout=HANGS_S)[1] == []
    Bed(tmp_path, collection, card).encode_on_one_thread()
    same_as(undisturbed, bench.cache / "vectors")


def is_encoding(process):
    with suppress(psutil.NoSuchProcess):  # or a zombie: another child, which has just ended
        return "spawn_main" in " ".join(process.cmdline())
    return False


def same_as(undisturbed, vectors):
    theirs = undisturbed.workspace.vectors_dir
    names = [path.stem for path in theirs.glob("*/*.f32")]
    assert files_of(names, vectors) == files_of(names, theirs)


@pytest.mark.parametrize(
    ("asked", "processors", "gpus", "count"),
    [(3, 16, 8, 3), (0, 16, 4, 4), (0, 16, 0, 2), (0, 4, 0, 1)],
)
def test_there_is_one_worker_for_each_gpu_or_for_every_eight_processors(
    asked, processors, gpus, count
):
    assert worker_count(asked, processors, gpus) == count


def test_children_share_threads_and_gpus_with_this_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "12")
    assert [each["OMP_NUM_THREADS"] for each in WorkerProcesses(3, "cpu").environments] == [
        "4",
        "4",
    ]
    assert "CUDA_VISIBLE_DEVICES" not in WorkerProcesses(3, "cpu").environments[0]
    monkeypatch.setattr("bench.runner.engines.has_gpu", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    children = WorkerProcesses(4, "auto")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in children.environments] == ["7", "4", "7"]


def test_workers_are_refused_on_one_of_several_gpus():
    with pytest.raises(BenchError, match="uses all GPUs, not cuda:1"):
        WorkerProcesses(2, "cuda:1")


def test_a_ray_worker_with_other_token_ids_is_refused(card, tmp_path):
    model = Workspace(tmp_path, device="cpu").load(card)
    task = (str(Path.cwd()), "cpu", model.model, "")  # of this process, in which it runs here
    error = _encode_in_worker(*task, "other", ["title"], ["text"])
    assert "makes other token ids than the coordinator" in str(error)
    vectors, _, counts = _encode_in_worker(
        *task, model.encoder.hash_tokens("document"), ["title"], ["text"]
    )
    assert vectors.shape == (1, model.encoder.dim)
    assert counts["tokens"] > 0
