"""A program run by two processes that train together, as `accelerate launch` would."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HANGS_S = 900  # a busy machine takes minutes to import what a quiet one does in seconds


def run_in_two(program: str, folder: Path, *arguments: str) -> list[str]:
    """What both print, word by word; the program is kept in ``folder``.

    Raises:
        CalledProcessError: one of them failed.
    """
    file = folder / "program.py"
    file.write_text(program)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(file), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=HANGS_S,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.split()
