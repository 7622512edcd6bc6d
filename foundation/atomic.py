"""Files that are either whole or absent."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of ``path`` when the block ends well.

    The bytes are on disk before the name is: a crash, a full disk or Ctrl-C leaves the old file,
    or none. The folder is made where it does not exist.

    Raises:
        OSError: as ``open`` and ``write`` do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's umask: mkstemp makes files that only their owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
