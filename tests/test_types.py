"""Static types of all packages: what `mypy` says when it is typed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.types
@pytest.mark.long
def test_static_types_are_consistent():
    pytest.importorskip("mypy", reason="needs pip install -e '.[types]'")
    command = [sys.executable, "-m", "mypy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
