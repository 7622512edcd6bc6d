"""Children that are killed or out of space: all is encoded, almost none of it twice."""

import re
import resource
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path

import psutil
import pytest

from bench.runner.engines import WorkerProcesses, _encode_in_worker, worker_count
from bench.runner.workspace import Workspace
from bench.store import shards
from bench.store.shards import SHARD_ROWS
from foundation.errors import BenchError
from tests.support.collections import Bench
from tests.support.engines import SHARDS, Bed, files_of
from tests.support.processes import HANGS_S, wait_until

DIM = 32
SLOW = ("TEXTS_PER_S", "1500")  # so that a shard takes long enough to be met
# No library is imported for it. Each process that loads it has shards of the same size.
ENCODER = f"""
import hashlib, os, time
import numpy as np
from bench.store import shards

shards.HALF_SHARD_ROWS = {SHARD_ROWS}

def encode(texts):
    time.sleep(len(texts) / float(os.environ.get("TEXTS_PER_S", "inf")))
    digests = [hashlib.shake_128(text.encode()).digest({DIM}) for text in texts]
    return np.array([list(digest) for digest in digests], float)
"""


@pytest.fixture(scope="module", autouse=True)
def own_shards():
    """The size ends with these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "HALF_SHARD_ROWS", SHARD_ROWS)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "own.py"
    path.write_text(ENCODER)
    return f"{path}:encode"


@pytest.fixture(scope="module")
def undisturbed(collection, model, tmp_path_factory):
    """The files that this process writes alone."""
    bed = Bed(tmp_path_factory.mktemp("undisturbed"), collection, model)
    names = bed.missing()
    bed.encode()
    files = files_of(names, bed.workspace.vectors_dir)
    assert len(files) == 3 * SHARDS
    return files


def files_in(bed, undisturbed):
    return files_of({Path(name).stem for name in undisturbed}, bed.workspace.vectors_dir)


@pytest.mark.slow
def test_a_lost_child_repeats_only_its_current_shard_and_changes_no_byte(
    undisturbed, collection, model, tmp_path, monkeypatch
):
    bed = Bed(tmp_path, collection, model)
    monkeypatch.setenv(*SLOW)
    with WorkerProcesses(2, "cpu").encoding(bed.workspace, bed.work):
        (child,) = active_children()
        wait_until(lambda: len(bed.missing()) < SHARDS)
        child.kill()
        child.join()
        monkeypatch.delenv(SLOW[0])
        left = bed.plan().missing_rows
        assert 0 < left < len(bed.corpus)
        assert bed.encode().encoded == left
    assert files_in(bed, undisturbed) == undisturbed


@pytest.mark.slow
def test_a_child_that_cannot_work_is_reported_and_the_others_go_on(
    collection, model, tmp_path, capfd
):
    bed = Bed(tmp_path, collection, model)
    with WorkerProcesses(2, "cpu").encoding(bed.workspace, bed.work):
        (child,) = active_children()
        bed.corpus.folder.rename(tmp_path / "moved")
        child.join()
        (tmp_path / "moved").rename(bed.corpus.folder)
        assert bed.encode().encoded == len(bed.corpus)
    assert "warning: a worker failed: " in capfd.readouterr().err


@contextmanager
def full_at(most_bytes: int):
    """Let no file of this process and of its children grow beyond this, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def run_with_two_workers(collection, model):
    return ("run", collection, "--model", model, "--trust-code", "--workers", 2, "--device", "cpu")


@pytest.mark.slow
def test_a_full_disk_is_reported_and_encoding_continues(
    undisturbed, collection, model, tmp_path, monkeypatch
):
    # Python would leave modules cut off in its caches, and every later process would fail.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    bed = Bed(tmp_path, collection, model)  # the corpus is built
    with full_at(SHARD_ROWS * DIM * 4 - 1):
        full = Bench(tmp_path)(*run_with_two_workers(collection, model))
    assert full.code == 2
    assert re.search(r"error: \S*\.f32: File too large\n  Free some space", full.stderr)
    bed.encode()
    assert files_in(bed, undisturbed) == undisturbed


@pytest.mark.slow
def test_children_of_a_killed_command_end_and_encoding_continues(
    undisturbed, collection, model, tmp_path, monkeypatch
):
    bench = Bench(tmp_path)
    monkeypatch.setenv(*SLOW)
    killed = bench.start(*run_with_two_workers(collection, model))
    wait_until(lambda: list(bench.cache.glob("vectors/*/*.lock")), killed)
    started = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.communicate()
    monkeypatch.delenv(SLOW[0])
    assert started
    assert psutil.wait_procs(started, timeout=HANGS_S)[1] == []
    bed = Bed(tmp_path, collection, model)
    bed.encode()
    assert files_in(bed, undisturbed) == undisturbed


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
