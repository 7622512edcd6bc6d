"""Processes that end badly or train together, and small file systems for them to fill."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import BenchError


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def no_memory():
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes")


def bad_input():
    raise BenchError("no such preset", "use another")


def full():
    raise OSError(errno.ENOSPC, "No space left on device", "vectors")


def defect():
    raise ZeroDivisionError("division by zero")


ROOT = Path(__file__).parents[2]
HANGS_S = 900  # a busy machine takes minutes to import what a quiet one does in seconds


WORKER = """
import sys
from {module} import {name} as work
line = f"{{work(sys.argv[1])}}\\n"
sys.stdout.write(line)  # as a whole: two processes share a pipe
"""


def run_in_two(work: Callable[[str], object], folder: Path) -> list[str]:
    """What a function of a module returns in each of the two processes of torchrun, printed.

    Raises:
        CalledProcessError: one of them failed.
    """
    file = folder / "worker.py"
    file.write_text(WORKER.format(module=work.__module__, name=work.__name__))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(file), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=HANGS_S,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.splitlines()


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of ``size``, such as 64k, on a new folder. Skips where it may not."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # some keep folders open


def enlarge(folder: Path, size: str) -> None:
    """Give the file system on ``folder`` another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    """Return what ``condition`` answers once it is true. Fail if ``process`` ends before."""
    end = time.monotonic() + HANGS_S
    while not (answer := condition()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer
