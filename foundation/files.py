"""Atomic writes, content hashes, locks and paths.

Files and folders are written under a temporary name and renamed when they are complete, so that a
reader finds a complete file or none. Locks are held by the kernel and end with their process.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Self

import platformdirs

from foundation.errors import WRITING, BenchError, name_path_in_errors

_TEMPORARY = re.compile(r"\..+\.writing-[0-9a-f]{8}(-[0-9a-f]{8})?")  # older versions append more
_DAY_S = 86_400
LONGEST_NAME = 255  # bytes, of a file
_ATTEMPTS = 20  # to replace a folder that other processes replace, too


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends without an error.

    The bytes are on disk before the rename. Missing parent folders are made.
    """
    with replace_files([path]) as (file,):
        yield file


@contextmanager
def replace_files(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Open a temporary file for each of ``paths`` and rename all of them, in order, at the end.

    For files that must fit each other. If writing one of them fails, all old files stay.
    """
    temporary: list[Path] = []
    try:
        with name_path_in_errors(paths[0]), ExitStack() as opened:
            files: list[BinaryIO] = []
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                _clean_up_once(path.parent)
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
    """Open a temporary folder whose entries move into ``folder`` when the block ends.

    For libraries that write to a path. Entries are on disk before they move, get the permissions of
    new files, and replace entries of the same name. They move one at a time, so readers should wait
    for a file that is written afterwards.
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
    """Open an empty folder that replaces ``folder`` when the block ends without an error.

    If two processes write at the same time, the last one wins.
    """
    with name_path_in_errors(folder), temporary_folder(folder.parent) as temporary:
        finished = temporary / "finished"
        finished.mkdir()
        yield finished
        _move_into_place(finished, folder)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a folder inside ``parent`` that is removed when the block ends."""
    parent.mkdir(parents=True, exist_ok=True)
    clean_up(parent)
    temporary = _temporary_name(parent / "files")
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def reset_permissions(folder: Path) -> None:
    """Give every file below ``folder`` the permissions of a new file, which some libraries do
    not.
    """
    mode = folder.stat().st_mode & 0o666  # permissions of a new folder without the search bits
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def clean_up(folder: Path, unwritten_s: float = _DAY_S) -> None:
    """Remove temporary files and folders that dead processes left in ``folder``.

    Args:
        folder: folder to clean, not searched recursively.
        unwritten_s: seconds since the last write after which a file counts as abandoned. Pass 0 if
            you hold a lock that keeps others from writing there.
    """
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if _TEMPORARY.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_abandoned(entry, unwritten_s)


def _remove_if_abandoned(path: Path, unwritten_s: float) -> None:
    written = max(inner.stat().st_mtime for inner in (path, *path.rglob("*")))
    if time.time() - written > unwritten_s:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _move_into_place(finished: Path, folder: Path) -> None:
    """Rename ``finished`` to ``folder``, after moving an older ``folder`` out of the way.

    This is tried several times, since another process may put a folder there between the steps.
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


@cache  # once in a process
def _clean_up_once(folder: Path) -> None:
    clean_up(folder)


def _temporary_name(path: Path) -> Path:
    return path.parent / f".{path.name}{WRITING}{secrets.token_hex(4)}"


def add_to_hash(digest: "hashlib._Hash", fields: Iterable[bytes]) -> None:
    """Add ``fields`` to ``digest``, each preceded by its length as 8 bytes, little-endian."""
    for field in fields:
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)


def hash_records(records: Iterable[Iterable[str]]) -> str:
    """Return the SHA-256 of ``records`` of texts, in the order given, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for record in records:
        add_to_hash(digest, (field.encode() for field in record))
    return digest.hexdigest()


def resolve_inside(root: Path, name: str) -> Path:
    """Return ``root / name``."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise BenchError(f"{name!r} leads out of {root}")
    if "\0" in name or max(map(len, path.parts), default=0) > LONGEST_NAME:
        raise BenchError(f"{name[:80]!r} cannot be the name of a file in {root}")
    return root / name


def check_not_lfs_pointer(path: object, content: bytes) -> None:
    """Raise if the file ``path`` with this ``content`` is a Git LFS pointer."""
    if content.startswith(b"version https://git-lfs"):
        problem = f"{path} is a Git LFS pointer instead of the file itself"
        raise BenchError(problem, "Run `git lfs pull` in its repository.")


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of the file ``path`` as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileLock:
    """An exclusive lock on a file, which is made for it and removed with it.

    It is held until `release`, the end of ``with``, or of the process.
    """

    def __init__(self, path: Path, kind: int) -> None:
        self.path = path
        self._close = weakref.finalize(self, os.close, _open_locked(path, kind))

    @classmethod
    def try_acquire(cls, path: Path) -> "FileLock | None":
        """Make and lock the file ``path``, or return None if another process holds the lock."""
        try:
            return cls(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None

    @classmethod
    def acquire(cls, path: Path) -> "FileLock":
        """Make and lock the file ``path``, after waiting for another process."""
        return cls(path, fcntl.LOCK_EX)

    def release(self) -> None:
        """Remove the lock file and release the lock. A second call has no effect."""
        if self._close.alive:
            self.path.unlink(missing_ok=True)
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _open_locked(path: Path, kind: int) -> int:
    """Make and lock a file, and return its handle.

    The holder of the lock may have removed the file meanwhile. It is then made again.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, kind)
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(handle)):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def local_path(path: str | Path) -> Path:
    """Return a path, or raise if it is a URL."""
    if re.match("[a-z][a-z0-9]+:/", str(path)):
        hint = "Name a folder, and copy it with a program such as rclone."
        raise BenchError(f"{path} is a URL, and a local folder or file is needed here", hint)
    return Path(path)


def cache_folder(given: str | Path | None = None) -> Path:
    """Return the cache folder: ``given``, else BENCH_CACHE, else the user's cache folder."""
    named = given or os.environ.get("BENCH_CACHE")
    return local_path(named or platformdirs.user_cache_path("retrieval-bench"))
