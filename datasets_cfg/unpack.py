"""Archives onto disk: nothing outside the folder, nothing half-written."""

import errno
import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from tqdm import tqdm

from datasets_cfg.download import disk_errors
from foundation.errors import BenchError
from foundation.files import temporary_folder

COPY_BYTES = 1 << 20
# Corpora of text become 3 to 10 times as large; a bomb, up to 1,032 times by deflate alone.
MOST_TIMES, ALWAYS_ALLOWED = 50, 1 << 30  # of the archive's bytes; bytes
MEMBER_BYTES = 4096  # what even an empty file takes on a disk
_NOT_READABLE = (
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    RuntimeError,  # zipfile's word for encryption and for compression that it does not know
)


def unpack(archive: Path, folder: Path, inside: str = "", wanted: Collection[str] = ()) -> set[str]:
    """Put the files below ``inside`` of a zip or tar.gz into ``folder``.

    They are unpacked beside ``folder`` first. A new folder appears whole; in one that exists each
    file does, and what else it holds stays.

    Args:
        archive: file to unpack; it is left as it is.
        folder: where the files go.
        inside: folder inside the archive, without it in the new paths; "" for its top.
        wanted: paths below ``inside`` to take; empty for all.

    Returns:
        Paths of the unpacked files, below ``folder``.

    Raises:
        BenchError: a member that would leave the folder (an absolute path, "..", a link), an
            archive that is damaged, has not what is wanted or unpacks to more than any collection
            (`Allowance`), or a full disk.
    """
    with disk_errors(folder), temporary_folder(folder.parent) as temporary:
        finished = temporary / "finished"
        finished.mkdir()
        try:
            taken = _extract(archive, finished, inside, wanted)
        except _NOT_READABLE as error:
            raise BenchError(
                f"{archive} cannot be unpacked: {error}",
                hint=f"remove it and run again, and it is downloaded anew: rm {archive}",
            ) from error
        _refuse_missing(archive, inside, wanted, taken)
        _put_in_place(finished, folder)
    return taken


class Allowance:
    """Bytes that an archive may unpack to: 50 times its own, and 1 GiB in any case."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._limit = max(MOST_TIMES * archive.stat().st_size, ALWAYS_ALLOWED)
        self._left = self._limit

    def spend(self, size: int) -> None:
        """Take some bytes off.

        Raises:
            BenchError: there are not so many left.
        """
        self._left -= size
        if self._left < 0:
            raise BenchError(
                f"{self._archive} unpacks to more than {self._limit:,} bytes, "
                f"from {self._archive.stat().st_size:,}; nothing was unpacked",
                hint=f"it is made to fill a disk: do not use it, and remove it: rm {self._archive}",
            )


def _extract(archive: Path, target: Path, inside: str, wanted: Collection[str]) -> set[str]:
    taken = set()
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    allowance = Allowance(archive)
    with tqdm(desc=f"unpack {archive.name}", unit="B", unit_scale=True) as bar:
        for name, content in members(archive):
            relative = _below(name, inside)
            if relative is None or (wanted and relative not in wanted):
                continue
            allowance.spend(MEMBER_BYTES)
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                while block := content.read(COPY_BYTES):
                    allowance.spend(len(block))
                    file.write(block)
                    bar.update(len(block))
            taken.add(relative)
    return taken


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            link = stat.S_ISLNK(info.external_attr >> 16)
            _refuse_unsafe(archive, info.filename, link)
        for info in opened.infolist():
            if not info.is_dir():
                with opened.open(info) as content:
                    yield info.filename, content


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as opened:
            for member in opened:
                _refuse_unsafe(archive, member.name, not (member.isfile() or member.isdir()))
                content = opened.extractfile(member)
                if content is not None:
                    yield member.name, content
        while stream.read(COPY_BYTES):  # the checksum is compared at the end of the stream
            pass


def _refuse_unsafe(archive: Path, name: str, link: bool) -> None:
    path = PureWindowsPath(name)  # knows both separators and drives
    if link or path.anchor or ".." in path.parts:
        reason = "is a link or a device" if link else "leads out of the folder"
        raise BenchError(
            f"{archive}: the member {name!r} {reason}; nothing was unpacked",
            hint="do not use this archive: it is not the one that was published",
        )


def _below(name: str, inside: str) -> str | None:
    path = PurePosixPath(name)
    return str(path.relative_to(inside)) if path.is_relative_to(inside) else None


def _refuse_missing(
    archive: Path, inside: str, wanted: Collection[str], taken: Collection[str]
) -> None:
    missing = sorted(set(wanted) - set(taken))
    if missing or not taken:
        problem = f"has no {', '.join(missing)}" if missing else "has no files"
        raise BenchError(f"{archive} {problem} in its folder {inside or '/'!r}")


def _put_in_place(finished: Path, folder: Path) -> None:
    try:
        finished.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    else:
        return
    for path in sorted(finished.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(finished)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
