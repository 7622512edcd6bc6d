"""Who works on what: locks that end with their process, however it ends."""

import fcntl
import os
import weakref
from pathlib import Path


class Claim:
    """The right to write what goes by one name, until `release` or the end of the process."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._close = weakref.finalize(self, os.close, handle)

    @classmethod
    def take(cls, path: Path, wait: bool = False) -> "Claim | None":
        """Claim by a lock file; None where another holds it and ``wait`` is False.

        Raises:
            OSError: as ``open`` does.
        """
        handle = _locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, wait)
        return None if handle is None else cls(path, handle)

    def release(self) -> None:
        """Remove the lock file, then let others in. Nothing happens the second time."""
        if self._close.alive:
            self._path.unlink(missing_ok=True)
            self._close()


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
        handle = _locked(folder, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_SH, wait=True)
        if handle is None:  # never where one waits
            raise RuntimeError(f"no lock on {folder}")
        return cls(handle)

    @classmethod
    def removing(cls, folder: Path) -> "FolderInUse | None":
        """Have a folder alone; None where somebody uses it."""
        handle = _locked(folder, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_EX, wait=False)
        return None if handle is None else cls(handle)

    def release(self) -> None:
        """Let others in."""
        self._close()


def _locked(path: Path, flags: int, kind: int, wait: bool) -> int | None:
    """Handle of a locked file or folder; None where it is locked by another.

    Whoever held the lock before may have removed the path: then the lock is on nothing that
    others would find, and the next try meets the path anew.
    """
    while True:
        handle = os.open(path, flags, 0o666)
        try:
            fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)
            if _is_at(path, handle):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
