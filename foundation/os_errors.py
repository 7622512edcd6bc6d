"""Failures of the operating system as bad input: which file, what is wrong, what to do."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foundation.errors import BenchError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_ROOM = "make room, or name another place with --out or --cache-dir, and type the same command"
_PERMISSION = "change its permissions, or name another place"
_HINTS = {
    **dict.fromkeys(FULL, _ROOM),
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "name a place that can be written, with --out or --cache-dir",
    errno.ENOENT: "check the path",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "a part of this path is a file: name a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "a symbolic link of this path leads back to itself: replace it",
    errno.EIO: "the disk or the network drive fails: copy the file elsewhere",
    errno.ESTALE: "the network drive was mounted anew: type the same command",
    errno.EMFILE: "allow more open files: ulimit -n 4096",
    errno.ENFILE: "the machine has too many open files: close other programs",
}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name ``path`` in an `OSError` of the block.

    What fails while a file is written names none, and what fails under a temporary name names
    that one.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).parent == path.parent:
            error.filename = str(path)
        raise


def as_bad_input(error: OSError) -> BenchError | None:
    """The error with its place and what to do; None where it is about no file.

    A full disk and a limit of open files count without a file's name, too.
    """
    if error.filename is None and error.errno not in (*FULL, errno.EMFILE, errno.ENFILE):
        return None
    place = "a file" if error.filename is None else _shown(error.filename)
    return BenchError(
        f"{place}: {error.strerror or type(error).__name__}", _HINTS.get(error.errno or 0, "")
    )


def _shown(filename: object) -> str:
    """A path as it is typed; an open file without a name is known by its number."""
    if isinstance(filename, str | bytes | os.PathLike):
        return os.fsdecode(filename)
    return f"the open file {filename}"
