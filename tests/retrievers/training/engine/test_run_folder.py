"""The folder of a training after kills, full disks, cut files, and with two processes in it."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foundation.errors import BenchError
from retrievers.models.resolve import resolve_model
from retrievers.training.engine.context import read_curve
from retrievers.training.engine.run_folder import is_complete
from retrievers.training.finetune.finetune import finetune
from retrievers.training.pretrain.pretrain import pretrain
from tests.support import small_finetuning as fine
from tests.support import small_starts as small
from tests.support.processes import enlarge, mounted
from tests.support.small_starts import KilledError, killed_at, on_cpu

ROOT = Path(__file__).parents[4]
TEXTS = small.texts()
STEPS, SAVE_EVERY = 6, 2
BEFORE = {"pretrain": 2, "finetune": 3}  # step of the checkpoint before that of step 4


def train(kind: str, starts: Path, out: Path, steps: int = STEPS, **options: Any) -> Any:
    """Checkpoints after each second step; a fine-tuning mines again after the third."""
    context = on_cpu(out, save_every=SAVE_EVERY, **options)
    if kind == "pretrain":
        return pretrain(small.preset(starts / "bert", steps=steps), TEXTS, context)
    start = resolve_model(str(starts / "start.toml"))
    settings = fine.preset(fine.MINED + "refresh_steps = 3\n", steps=steps)
    return finetune(settings, start, fine.examples(), context, search=fine.Search())


def write_starts(folder: Path) -> Path:
    small.write_start(folder / "bert", TEXTS)
    fine.model(folder)
    return folder


def weights(folder: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "heads/model.safetensors", "losses.jsonl")
    found = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    found["losses.jsonl"] = str([one.losses for one in read_curve(folder / names[2])]).encode()
    return found


@pytest.fixture(scope="module")
def starts(tmp_path_factory) -> Path:
    return write_starts(tmp_path_factory.mktemp("starts"))


@pytest.fixture(scope="module", params=["pretrain", "finetune"])
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(kind, starts, tmp_path_factory) -> Path:
    """A training that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / kind
    train(kind, starts, out)
    return out


@pytest.fixture(scope="module")
def stopped(kind, starts, tmp_path_factory) -> Path:
    """A training that was killed in its fifth step."""
    out = tmp_path_factory.mktemp("stopped") / kind
    with pytest.raises(KilledError):
        train(kind, starts, out, progress=killed_at(5))
    return out


@pytest.fixture
def out(stopped, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(stopped, tmp_path / stopped.name)


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    ("optimizer.pt", lambda path: cut(path, 0)),
    ("complete", lambda path: cut(path, 0.5)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "harm"), DAMAGES, ids=[name for name, _ in DAMAGES])
def test_a_damaged_checkpoint_is_reported_and_training_resumes_from_the_previous_one(
    name, harm, kind, starts, whole, out, caplog
):
    harm(out / "checkpoints" / "checkpoint-4" / name)
    assert train(kind, starts, out).resumed_at == BEFORE[kind]
    assert "checkpoint-4 is damaged" in caplog.text
    assert weights(out) == weights(whole)
    assert not (out / "checkpoints").exists()


def test_a_damaged_record_of_another_training_is_refused_and_nothing_is_deleted(kind, starts, out):
    cut(out / "training.json", 0)
    before = sorted(out.rglob("*"))
    with pytest.raises(BenchError, match=r"training\.json is not JSON"):
        train(kind, starts, out, steps=9)
    assert sorted(out.rglob("*")) == before


def test_a_training_that_was_killed_before_it_recorded_its_end_is_not_repeated(
    kind, starts, whole, tmp_path
):
    out = shutil.copytree(whole, tmp_path / whole.name)
    (out / "trained.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    again = train(kind, starts, out)
    assert (again.steps, again.resumed_at) == (STEPS, STEPS)
    assert json.loads((out / "trained.json").read_text())["steps"] == STEPS
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == before


@pytest.mark.slow
def test_permissions_of_trained_files_follow_the_umask(kind, starts, tmp_path):
    before = os.umask(0o002)
    try:
        with pytest.raises(KilledError):
            train(kind, starts, tmp_path / "out", progress=killed_at(5))
        in_progress = modes(tmp_path / "out")
        train(kind, starts, tmp_path / "out")
    finally:
        os.umask(before)
    assert set(in_progress.values()) == set(modes(tmp_path / "out").values()) == {0o664}


def modes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_folder_with_a_running_training_is_refused(kind, starts, whole, tmp_path):
    out, refused = tmp_path / "out", []

    def look(progress: Any) -> None:
        if progress.unit == "steps" and progress.done == 3:
            with (
                torch.random.fork_rng(),
                pytest.raises(BenchError, match="another process is training into") as caught,
            ):
                train(kind, starts, out)
            refused.append(caught.value.hint)

    train(kind, starts, out, progress=look)
    assert refused == ["Wait until it has finished, or use another folder."]
    assert weights(out) == weights(whole)
    assert not list(out.glob(".*"))


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path / "disk", "1200k") as folder:
        yield folder


@pytest.mark.slow
def test_a_full_disk_is_reported_and_training_continues_once_there_is_space(
    kind, starts, whole, small_disk
):
    out = small_disk / "out"
    with pytest.raises(BenchError, match=f"cannot write {out}/checkpoints/checkpoint-") as caught:
        train(kind, starts, out)
    assert "continues from the last checkpoint" in caught.value.hint
    assert json.loads((out / "training.json").read_text())
    enlarge(small_disk, "64m")
    assert train(kind, starts, out).resumed_at >= 2
    assert weights(out) == weights(whole)


# A process that trains in children, each of which is killed at the moment it is about to touch the
# folder for the n-th time. Children are forked before anything is computed; their collections of
# garbage pass by what was imported.
NURSERY = """
import gc, json, os, signal, sys, traceback
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
import sentence_transformers.sentence_transformer.trainer  # which a fine-tuning imports
import test_run_folder as tests
gc.freeze()
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir")

def child(kind, starts, out, moment):
    touched = 0
    def look(event, arguments):
        nonlocal touched
        if event in EVENTS and any(str(out) in str(one) for one in arguments[:2]):
            touched += 1
            if touched == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(look)
    tests.train(kind, starts, out)
    return touched

for line in sys.stdin:
    kind, starts, out, moment = json.loads(line)
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(write, b"%d" % child(kind, Path(starts), Path(out), moment))
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    print(json.dumps(os.read(read, 100_000).decode()), flush=True)
    os.close(read)
"""
MOMENTS = int(os.environ.get("BENCH_KILLS", "3"))  # of each kind; by hand, more


@pytest.fixture(scope="module")
def nursery():
    """Trains in a child process that is killed at a moment; the number of moments, or ""."""
    command = [sys.executable, "-c", NURSERY, str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(kind: str, starts: Path, out: Path, moment: int) -> str:
            print(json.dumps([kind, str(starts), str(out), moment]), file=process.stdin, flush=True)
            return str(json.loads(process.stdout.readline()))

        yield ask
        process.stdin.close()


@pytest.mark.slow
def test_a_training_killed_at_any_moment_continues_and_gives_the_same_weights(
    kind, starts, nursery, tmp_path
):
    alone = tmp_path / "alone"
    touched = int(nursery(kind, starts, alone, 0))
    assert touched > 100
    for number in range(MOMENTS):
        moment = 1 + number * (touched - 5) // max(1, MOMENTS - 1)
        out = tmp_path / str(moment)
        assert nursery(kind, starts, out, moment) == "", "it was to be killed"
        # And once more, while it goes on, unless it has less to do by then.
        again = nursery(kind, starts, out, 40 + 7 * number)
        done = again if again else nursery(kind, starts, out, 0)
        assert done.isdecimal(), (moment, done)
        assert weights(out) == weights(alone), moment
        assert {path.name for path in out.rglob(".*")} <= {".training.lock"}, moment
        assert not (out / "checkpoints").exists(), moment
        assert all(is_complete(path.parent) for path in out.rglob("complete")), moment
        shutil.rmtree(out)
