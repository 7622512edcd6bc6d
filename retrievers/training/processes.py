"""Several processes that share a training: one of them searches and writes, the others wait.

They wait for files, not at a barrier of the devices: those give up after minutes, and a corpus can
take hours to encode.
"""

import os
import time
from pathlib import Path

POLL_S = 0.2


def is_first() -> bool:
    """Whether this process is the one that searches and writes."""
    return os.environ.get("RANK", "0") == "0"


def wait_for(path: Path) -> None:
    """Until the first process has written a file; it appears whole."""
    while not is_first() and not path.exists():
        time.sleep(POLL_S)
