"""Atomic files: whole or absent, also several that must fit, and nothing is left of the killed."""

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foundation.files import clean_up, replace_entries, replace_file, replace_files

ROOT = Path(__file__).parents[2]
WRITES_FOR_EVER = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from foundation.files import replace_file\n"
    "with replace_file(Path(sys.argv[1])) as file:\n"
    "    file.write(b'half')\n"
    "    file.flush()\n"
    "    print('writing', flush=True)\n"
    "    time.sleep(600)\n"
)


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of writing ``result.json``."""
    command = [sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path / "result.json")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write(path: Path, content: bytes) -> None:
    with replace_file(path) as file:
        file.write(content)


def test_files_that_are_written_by_path_move_together_and_replace_what_was_there(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("a", "kept", "inner/old"):
        (tmp_path / name).write_text("old")
    with pytest.raises(TypeError), replace_entries(tmp_path) as folder:
        (folder / "a").write_text(b"no text")
    assert (tmp_path / "a").read_text() == "old"
    with replace_entries(tmp_path) as folder:
        (folder / "inner").mkdir()
        for name in ("a", "inner/new"):
            (folder / name).write_text("new")
            (folder / name).chmod(0o600)
    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*")}
    assert set(files) == {"a", "kept", "inner", "inner/new"}
    assert [files[name].read_text() for name in ("a", "kept", "inner/new")] == ["new", "old", "new"]
    assert stat.S_IMODE(files["a"].stat().st_mode) == stat.S_IMODE(files["kept"].stat().st_mode)


def test_temporary_files_of_a_killed_process_are_removed_a_day_later(writer, tmp_path):
    folder = tmp_path / ".files.writing-01234567"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "half").touch()
    write(tmp_path / "a.json", b"whole")
    clean_up(tmp_path)
    assert len(names(tmp_path)) == 3, "both may still be written"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    for path in tmp_path.rglob("*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    clean_up(tmp_path)
    assert names(tmp_path) == {"a.json"}


def test_other_files_are_not_removed(tmp_path):
    kept = [".a.json.original", "a.writing-00000000", ".writing-12345678", ".a.writing-x"]
    for name in kept:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    clean_up(tmp_path)
    clean_up(tmp_path / "nowhere")
    assert names(tmp_path) == set(kept)


def test_files_that_must_fit_are_replaced_together_or_not_at_all(tmp_path):
    paths = [tmp_path / "scores", tmp_path / "record"]
    for path in paths:
        write(path, b"old")
    with pytest.raises(TypeError), replace_files(paths) as (scores, record):
        record.write(scores.write(b"new"))
    assert [path.read_bytes() for path in paths] == [b"old", b"old"]
    with replace_files(paths) as (scores, record):
        scores.write(b"new")
        record.write(b"newer")
        assert [path.read_bytes() for path in paths] == [b"old", b"old"]
    assert [path.read_bytes() for path in paths] == [b"new", b"newer"]
    assert names(tmp_path) == {"scores", "record"}


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_file_has_the_permissions_of_any_new_file(mask, tmp_path):
    before = os.umask(mask)
    try:
        write(tmp_path / "a", b"")
        (tmp_path / "b").touch()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"]
    assert modes[0] == modes[1] == 0o666 & ~mask


def test_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match="No space left") as error, replace_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.filename == str(tmp_path / "a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_closed_folder_names_the_file(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError) as error:
        write(tmp_path / "a", b"")
    assert error.value.filename == str(tmp_path / "a")


def test_writing_while_others_sweep_loses_nothing(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(write, tmp_path / f"{n}", b"%d" % n) for n in range(40)]
        while not all(one.done() for one in written):
            clean_up(tmp_path)
        for one in written:
            one.result()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        f"{n}": b"%d" % n for n in range(40)
    }
