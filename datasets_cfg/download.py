"""Files over HTTP, resumed where they stopped, and archives onto disk: whole or not at all."""

import gzip
import hashlib
import http.client
import os
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tqdm import tqdm

from foundation.errors import BenchError, file_error, naming
from foundation.files import replacing_folder, replacing_in

CHUNK_BYTES = 1 << 20
ATTEMPTS = 5
FIRST_WAIT_S = 0.5
TIMEOUT_S = 60.0
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


class _ConnectionCutError(Exception):
    """The connection ended before the file did: worth another attempt."""


def download(url: str, target: Path, md5: str = "") -> Path:
    """Fetch ``url`` to ``target`` and return ``target``.

    The bytes go to ``target`` + ".part", which is resumed by a later call and gets its final name
    only when it is whole and its checksum is right. A connection that is cut is taken up again, a
    few times; a server that ignores ranges makes the file start anew.

    Args:
        url: http or https.
        target: file to make; its folder is made, too.
        md5: expected checksum, 32 hexadecimal digits; "" for none.

    Raises:
        BenchError: the server cannot be reached or refuses, the connection keeps breaking, the
            checksum is wrong (the file is removed then), or the disk is full.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        with naming(part):
            target.parent.mkdir(parents=True, exist_ok=True)
            _receive_persistently(url, part)
            check_md5(part, md5, url)
            part.replace(target)
    except OSError as error:
        raise file_error(error) from error
    return target


def check_md5(path: Path, md5: str, source: str) -> None:
    """Compare a file with its checksum, if there is one, and remove it if it differs.

    Raises:
        BenchError: it differs; the message names both sums.
    """
    digest = md5_of(path) if md5 else ""
    if digest != md5:
        path.unlink()
        raise BenchError(
            f"{source}: the MD5 of the file is {digest}, not {md5}; the file was removed",
            hint="run again; if it stays, the source has changed: do not compare scores with it",
        )


def md5_of(path: Path) -> str:
    """MD5 of a file, 32 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def unpack(archive: Path, folder: Path, inside: str = "", wanted: Collection[str] = ()) -> None:
    """Put the files below ``inside`` of a zip or tar.gz into ``folder``.

    They are unpacked beside it first: a new folder appears whole, and what else one holds stays.
    Links and devices are left out.

    Args:
        archive: file to unpack; it is left as it is.
        folder: where the files go.
        inside: folder inside the archive, without it in the new paths; "" for its top.
        wanted: paths below ``inside`` to take; empty for all.

    Raises:
        BenchError: a member that would leave the folder, an archive that is damaged, has not what
            is wanted or unpacks to more than any collection, or a full disk.
    """
    into = replacing_in if folder.exists() else replacing_folder
    with into(folder) as unfinished:
        try:
            taken = set(_extract(archive, unfinished, inside, wanted))
        except _NOT_READABLE as error:
            raise BenchError(
                f"{archive} cannot be unpacked: {error}",
                hint=f"remove it and run again, and it is downloaded anew: rm {archive}",
            ) from error
        missing = sorted({*wanted} - taken) or ([] if taken else ["files"])
        if missing:
            raise BenchError(
                f"{archive} has no {', '.join(missing)} in its folder {inside or '/'!r}"
            )


def _extract(archive: Path, target: Path, inside: str, wanted: Collection[str]) -> Iterator[str]:
    """Write the wanted members of an archive; yields their paths below ``inside``."""
    left = max(MOST_TIMES * archive.stat().st_size, ALWAYS_ALLOWED)
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    with tqdm(desc=f"unpack {archive.name}", unit="B", unit_scale=True) as bar:
        for name, content in members(archive):
            relative = _below(archive, PurePosixPath(name), inside)
            if not relative or (wanted and relative not in wanted):
                continue
            left -= MEMBER_BYTES
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                while left >= 0 and (block := content.read(CHUNK_BYTES)):
                    left -= len(block)
                    file.write(block)
                    bar.update(len(block))
            if left < 0:
                raise BenchError(
                    f"{archive} unpacks to more than {MOST_TIMES} times its bytes; nothing was "
                    "unpacked",
                    hint=f"it is made to fill a disk: do not use it, and remove it: rm {archive}",
                )
            yield relative


def _below(archive: Path, path: PurePosixPath, inside: str) -> str:
    """Path of a member below ``inside``; "" where it is not there."""
    if path.is_absolute() or ".." in path.parts:
        raise BenchError(
            f"{archive}: the member {str(path)!r} leads out of the folder; nothing was unpacked",
            hint="do not use this archive: it is not the one that was published",
        )
    return str(path.relative_to(inside)) if path.is_relative_to(inside) else ""


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                with opened.open(info) as content:
                    yield info.filename, content


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as opened:
            for member in opened:
                content = opened.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield member.name, content
        while stream.read(CHUNK_BYTES):  # the checksum is compared at the end of the stream
            pass


def _receive_persistently(url: str, part: Path) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _receive(url, part)
        except _ConnectionCutError as error:
            if attempt == ATTEMPTS:
                raise BenchError(
                    f"{url}: the connection broke {ATTEMPTS} times: {error}",
                    hint=f"run again: it goes on from the {_size(part):,} bytes received so far",
                ) from error
        time.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))


def _receive(url: str, part: Path) -> None:
    have = max(_size(part) - 1, 0)  # the last byte again: no range starts after a whole part
    headers = {"User-Agent": "retrieval-bench", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with _connection(urllib.request.Request(url, headers=headers), part) as response:
        continued = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        start = have if have and response.status == 206 and continued else 0
        if start:
            os.truncate(part, start)
        stated = response.headers.get("Content-Length", "")
        total = start + int(stated) if stated.isdecimal() else None
        name = part.name.removesuffix(".part")
        with (
            part.open("ab" if start else "wb") as file,
            tqdm(desc=name, initial=start, total=total, unit="B", unit_scale=True) as bar,
        ):
            for chunk in _chunks(response):
                file.write(chunk)
                bar.update(len(chunk))
    if total is not None and _size(part) < total:
        raise _ConnectionCutError(f"{_size(part):,} of {total:,} bytes came")


@contextmanager
def _connection(request: urllib.request.Request, part: Path) -> Iterator[Any]:
    url = request.full_url
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is no beginning of the file: start anew
            part.unlink()
            raise _ConnectionCutError("the server cannot continue the file") from error
        if error.code in (429, 500, 502, 503, 504):
            raise _ConnectionCutError(f"the server answers {error.code} {error.reason}") from error
        raise BenchError(f"{url}: the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise BenchError(f"{url} cannot be reached: {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        raise _ConnectionCutError(str(error) or type(error).__name__) from error
    with response:
        yield response


def _chunks(response: Any) -> Iterator[bytes]:
    try:
        while chunk := response.read(CHUNK_BYTES):
            yield chunk
    except (http.client.HTTPException, OSError) as error:
        raise _ConnectionCutError(str(error) or type(error).__name__) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
