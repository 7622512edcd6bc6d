"""Several processes that share a training: one of them searches and writes, the others wait.

They wait for files, not at a barrier of the devices: those give up after minutes, and a corpus can
take hours to encode.
"""

import atexit
import os
import time
from functools import cache
from pathlib import Path

POLL_S = 0.2


def world_size() -> int:
    """Processes that ``accelerate launch`` started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """True in the process that searches, writes and prints."""
    return os.environ.get("RANK", "0") == "0"


def wait_for(path: Path) -> None:
    """Wait until the first process has written a file; it appears whole."""
    while not is_first() and not path.exists():
        time.sleep(POLL_S)


@cache  # once is enough
def disconnect_at_exit() -> None:
    """Close the connection between the processes before Python ends.

    Left open, Gloo's threads may meet an interpreter that is gone, and abort a finished training.
    """
    atexit.register(_disconnect)


def _disconnect() -> None:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
