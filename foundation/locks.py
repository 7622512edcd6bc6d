"""Leases: the right to do a named piece of work, which ends however its holder ends.

In a local folder a lease is a file that the kernel has locked: it ends with its process, and at no
other time.
"""

import fcntl
import os
import weakref
from pathlib import Path
from typing import Self


class FileLock:
    """The right to write what goes by one name, until `release` or the end of the process.

    As a context manager it ends with the block.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._close = weakref.finalize(self, os.close, handle)

    @classmethod
    def take(cls, path: Path) -> "FileLock | None":
        """Lock a file, which is made for it; None where another holds the lock.

        Raises:
            OSError: as ``open`` does.
        """
        try:
            return cls(path, _locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            return None

    @classmethod
    def wait(cls, path: Path) -> "FileLock":
        """Lock a file, which is made for it, when its holder lets go of it.

        Raises:
            OSError: as ``open`` does.
        """
        return cls(path, _locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX))

    def release(self) -> None:
        """Remove the lock file, then let others in. Nothing happens the second time."""
        if self._close.alive:
            self._path.unlink(missing_ok=True)
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class FolderInUse:
    """A folder that is not removed while this object, and its process, live."""

    def __init__(self, handle: int) -> None:
        self._close = weakref.finalize(self, os.close, handle)

    @classmethod
    def reading(cls, folder: Path) -> "FolderInUse":
        """Share a folder with others that use it; waits while one is being removed.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        return cls(_locked(folder, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_SH))

    @classmethod
    def removing(cls, folder: Path) -> "FolderInUse | None":
        """Have a folder alone; None where somebody uses it.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        kind = fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            return cls(_locked(folder, os.O_RDONLY | os.O_DIRECTORY, kind))
        except BlockingIOError:
            return None

    def release(self) -> None:
        """Let others in."""
        self._close()


def _locked(path: Path, flags: int, kind: int) -> int:
    """Handle of a locked file or folder.

    Whoever held the lock before may have removed the path: then the lock is on nothing that
    others would find, and the next try meets the path anew.

    Raises:
        BlockingIOError: another holds the lock, and ``kind`` says not to wait.
    """
    while True:
        handle = os.open(path, flags, 0o666)
        try:
            fcntl.flock(handle, kind)
            if _is_at(path, handle):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    """True while a path leads to an open file that nobody has removed or replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
