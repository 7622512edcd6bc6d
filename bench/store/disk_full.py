"""A full disk is bad input, not a crash."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foundation.errors import BenchError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def explained(folder: Path, what: str = "") -> Iterator[None]:
    """Say a full disk as bad input; other failures pass.

    Raises:
        BenchError: no space is left.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise BenchError(
            f"no space left {what}in {folder}",
            "make room, or name another place with --cache-dir, and type the same command: "
            "finished shards are kept",
        ) from error
