"""Files and folders that are either whole or absent, hashes of contents, and leases.

A lease is the right to do a named piece of work: a file or folder that the kernel has locked. It
ends with its process, however that ends, and at no other time.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from foundation.errors import BenchError, file_error, name_path_in_errors

_TEMPORARY = re.compile(r"\..+\.writing-[0-9a-f]{8}(-[0-9a-f]{8})?")  # the end: older versions
_DAY_S = 86_400
_UNLOCKED_S = 60.0  # much longer than from making a folder to locking it
_MAX_BYTES = 1 << 28  # bytes of a file that is read as a whole, and holds no vectors or rankings
_ATTEMPTS = 20  # to put a folder where others put theirs

_cleaned: set[Path] = set()  # folders that this process has looked through


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of ``path`` when the block ends well.

    The bytes are on disk before the name is: a crash, a full disk or Ctrl-C leaves the old file,
    or none. The folder is made if it does not exist.

    Raises:
        OSError: as ``open`` and ``write`` do; it names ``path``.
    """
    with replace_files([path]) as (file,):
        yield file


@contextmanager
def replace_files(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Open a temporary file for each path; they take their places, in order, when all are whole.

    For files that must fit each other. Where writing any of them fails, all old ones stay.

    Raises:
        OSError: as ``open`` and ``write`` do; it names one of the paths.
    """
    temporary: list[Path] = []
    try:
        with name_path_in_errors(paths[0]), ExitStack() as opened:
            files: list[BinaryIO] = []
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                _remove_leftovers_once(path.parent)
                temporary.append(_temporary_name(path))
                files.append(opened.enter_context(temporary[-1].open("xb")))
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
            for name, path in zip(temporary, paths, strict=True):
                name.replace(path)
    except BaseException:
        for name in temporary:
            name.unlink(missing_ok=True)
        raise


@contextmanager
def replace_entries(folder: Path) -> Iterator[Path]:
    """Open a temporary folder whose files and folders move into ``folder`` when the block ends.

    For writers that take paths. What moves is on disk before it has its name, has the permissions
    of any new file, and takes the place of what has the same name. The move is one entry at a time:
    whoever reads the folder needs a file that is written after it.

    Raises:
        OSError: as ``open`` and ``write`` do.
    """
    with temporary_folder(folder) as temporary:
        yield temporary
        reset_permissions(temporary)
        for path in temporary.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        for path in sorted(temporary.iterdir()):
            target = folder / path.name
            if target.is_dir():
                shutil.rmtree(target)
            path.replace(target)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Open an empty folder that takes the place of ``folder`` when the block ends well.

    It lies beside ``folder`` and is renamed: a process that dies leaves nothing under the final
    name. Of two writers at the same time the last one stays.

    Raises:
        BenchError: the system refuses, as on a full disk; nothing is left behind.
    """
    temporary = folder
    try:
        with temporary_folder(folder.parent) as temporary:
            finished = temporary / "finished"
            finished.mkdir()
            yield finished
            _move_into_place(finished, folder)
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(temporary):
            error.filename = str(folder)
        raise file_error(error) from error


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a folder inside ``parent`` that is removed when the block ends.

    It is locked meanwhile, so that `remove_leftovers` removes it soon after the process is killed.

    Raises:
        OSError: as ``mkdir`` does.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent)
    temporary = _temporary_name(parent / "files")
    temporary.mkdir()
    in_use: FolderLock | None = None
    with suppress(OSError):  # a file system without locks: it is removed a day later
        in_use = FolderLock.shared(temporary)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if in_use:
            in_use.release()


def reset_permissions(folder: Path) -> None:
    """Give all files of a folder the permissions of any new file.

    Some writers make files that only their owner can read.
    """
    mode = folder.stat().st_mode & 0o666  # of a new folder, without the right to search it
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def remove_leftovers(folder: Path, unwritten_s: float = _DAY_S) -> None:
    """Remove the temporary files and folders in a folder that nobody has written for so long.

    A temporary folder that its process no longer locks is removed after a minute. Whoever holds the
    lock of ``folder`` knows that nobody writes there: 0.
    """
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if _TEMPORARY.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_abandoned(entry, unwritten_s)


def _remove_if_abandoned(path: Path, unwritten_s: float) -> None:
    written = [inner.stat().st_mtime for inner in (path, *path.rglob("*"))]
    age_s = time.time() - max(written)
    if not path.is_dir():
        if age_s > unwritten_s:
            path.unlink()
    elif age_s > unwritten_s or (age_s > _UNLOCKED_S and FolderLock.try_exclusive(path)):
        shutil.rmtree(path)


def _move_into_place(finished: Path, folder: Path) -> None:
    """Rename ``finished`` to ``folder``; what is there moves beside ``finished`` first.

    A folder cannot be renamed over a full one, and another process may put its own there between
    two steps, hence the attempts.
    """
    for attempt in range(_ATTEMPTS):
        try:
            finished.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == _ATTEMPTS - 1:
                raise
            with suppress(FileNotFoundError):  # another process may have moved it first
                folder.rename(finished.with_name(f"replaced-{attempt}"))
        else:
            return


def _remove_leftovers_once(folder: Path) -> None:
    if folder not in _cleaned:
        _cleaned.add(folder)
        remove_leftovers(folder)


def _temporary_name(path: Path) -> Path:
    return path.parent / f".{path.name}.writing-{secrets.token_hex(4)}"


class ContentHash:
    """SHA-256 over records of fields."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, fields: Iterable[bytes]) -> None:
        """Add one record: each field preceded by its length, 8 bytes little-endian."""
        for field in fields:
            self._digest.update(len(field).to_bytes(8, "little"))
            self._digest.update(field)

    def hexdigest(self) -> str:
        """Hash of all records so far, 64 hexadecimal digits."""
        return self._digest.hexdigest()


def sha256_of_records(records: Iterable[Iterable[str]]) -> str:
    """Content hash of records of texts, in the order given."""
    content = ContentHash()
    for record in records:
        content.add(field.encode() for field in record)
    return content.hexdigest()


class Readable(Protocol):
    """A local path, or an object of a store."""

    def read_bytes(self) -> bytes:
        """The whole content."""


def read_regular_file(
    path: Readable, max_bytes: int | None = _MAX_BYTES, allow_pipe: bool = False
) -> bytes:
    """Return the content of a file that is read as a whole, such as a record or a ranking.

    A pipe might never end, and neither does ``/dev/zero``, to which a link may lead.

    Args:
        max_bytes: bytes; None for a file that grows with the collection.
        allow_pipe: accept a pipe that a user named.

    Raises:
        OSError: it cannot be read, is neither regular nor an object of a store, or is too large.
    """
    if isinstance(path, Path):
        status = path.stat()
        may_end = stat.S_ISREG(status.st_mode) or (allow_pipe and stat.S_ISFIFO(status.st_mode))
        if not (may_end or stat.S_ISDIR(status.st_mode)):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if max_bytes is not None and status.st_size > max_bytes:
            raise OSError(
                errno.EINVAL, f"{status.st_size:,} bytes, at most {max_bytes:,}", str(path)
            )
    return path.read_bytes()


def check_not_lfs_pointer(path: object, content: bytes) -> None:
    """Refuse the pointer that Git LFS leaves in the place of a large file.

    Raises:
        BenchError: the content begins like one.
    """
    if content.startswith(b"version https://git-lfs"):
        problem = f"{path} is a pointer of Git LFS, and not the file itself"
        raise BenchError(problem, "fetch the file: run `git lfs pull` in its repository")


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileLock:
    """The right to write what goes by one name, until `release` or the end of the process.

    As a context manager it ends with the block.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._close = weakref.finalize(self, os.close, handle)

    @classmethod
    def try_acquire(cls, path: Path) -> "FileLock | None":
        """Lock a file, which is made for it; None if another holds the lock.

        Raises:
            OSError: as ``open`` does.
        """
        try:
            return cls(
                path, _open_locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX | fcntl.LOCK_NB)
            )
        except BlockingIOError:
            return None

    @classmethod
    def acquire(cls, path: Path) -> "FileLock":
        """Lock a file, which is made for it, when its holder lets go of it.

        Raises:
            OSError: as ``open`` does.
        """
        return cls(path, _open_locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX))

    def release(self) -> None:
        """Remove the lock file, then let others in. Nothing happens the second time."""
        if self._close.alive:
            self._path.unlink(missing_ok=True)
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class FolderLock:
    """A folder that is not removed while this object, and its process, live."""

    def __init__(self, handle: int) -> None:
        self._close = weakref.finalize(self, os.close, handle)

    @classmethod
    def shared(cls, folder: Path) -> "FolderLock":
        """Share a folder with others that use it; waits while one is being removed.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        return cls(_open_locked(folder, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_SH))

    @classmethod
    def try_exclusive(cls, folder: Path) -> "FolderLock | None":
        """Have a folder alone; None if somebody uses it.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        kind = fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            return cls(_open_locked(folder, os.O_RDONLY | os.O_DIRECTORY, kind))
        except BlockingIOError:
            return None

    def release(self) -> None:
        """Let others in."""
        self._close()


def _open_locked(path: Path, flags: int, kind: int) -> int:
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
            if _leads_to(path, handle):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _leads_to(path: Path, handle: int) -> bool:
    """True while a path leads to an open file that nobody has removed or replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
