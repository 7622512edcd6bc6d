"""A file system of its own for a test, small enough to be filled."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


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
