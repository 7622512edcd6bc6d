"""Downloads over HTTP that resume, and archives that are unpacked completely or not at all."""

import gzip
import hashlib
import http.client
import shutil
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from foundation.errors import BenchError, file_error, name_path_in_errors
from foundation.files import replace_entries, replace_folder, reset_permissions, temporary_folder

CHUNK_BYTES = 1 << 20
ATTEMPTS = 5
FIRST_WAIT_S = 0.5
TIMEOUT_S = 60.0
_CONNECTION_ERRORS = (ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)
_RANGE_REFUSED = 416
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
_ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    RuntimeError,  # zipfile raises it for encryption and unknown compression
)


def download(url: str, target: Path, md5: str = "", size: int = 0) -> Path:
    """Download a file and return its path.

    Bytes go to ``target`` + ".part", which a later call resumes. It is renamed when it is complete
    and its checksum is right. Broken connections are retried a few times. If the server ignores
    ranges, the download starts again.

    Args:
        url: http or https.
        target: file to make. Missing parent folders are made.
        md5: expected checksum, 32 hexadecimal digits; "" for none.
        size: expected size in bytes; 0 if unknown. The limit is twice this size, else the size that
            the server states, else half of the free disk.

    Raises:
        BenchError: the server cannot be reached or refuses, the connection keeps breaking, the
            checksum is wrong or the file too large (it is then removed), or the disk is full.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        with name_path_in_errors(part):
            target.parent.mkdir(parents=True, exist_ok=True)
            _receive_with_retries(url, part, size)
            check_md5(part, md5, url)
            part.replace(target)
    except OSError as error:
        raise file_error(error) from error
    return target


def check_md5(path: Path, md5: str, source: str) -> None:
    """Compare a file with its checksum, and remove the file if it differs.

    Args:
        path: file to check.
        md5: expected checksum, 32 hexadecimal digits; "" to skip the check.
        source: name of the file in the message.

    Raises:
        BenchError: the checksum differs.
    """
    if not md5:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest != md5:
        path.unlink()
        raise BenchError(
            f"{source}: the MD5 of the file is {digest}, not {md5}; the file was removed",
            hint="try again; if it stays the same, the source has changed: do not compare scores",
        )


def unpack(archive: Path, folder: Path, inside: str = "", wanted: Collection[str] = ()) -> None:
    """Extract files of a zip or tar.gz into a folder.

    A new folder appears when it is complete. Other files of an existing folder stay. Links and
    devices are skipped, and nothing is written outside of ``folder``.

    Args:
        archive: file to unpack, which is not changed.
        folder: folder for the files.
        inside: folder inside the archive whose content is extracted; "" for its top.
        wanted: paths below ``inside`` to extract; empty for all.

    Raises:
        BenchError: the archive is damaged or lacks a wanted file, or the disk is full.
    """
    into = replace_entries if folder.exists() else replace_folder
    with into(folder) as unfinished, temporary_folder(folder.parent) as temporary:
        try:
            _extract(archive, temporary, inside, wanted)
        except _ARCHIVE_ERRORS as error:
            raise BenchError(
                f"{archive} cannot be unpacked: {error}",
                hint=f"remove it with `rm {archive}` and repeat the command to download it again",
            ) from error
        unpacked = temporary / inside
        missing = [name for name in sorted(wanted) if not (unpacked / name).is_file()]
        if missing or not unpacked.is_dir():
            raise BenchError(
                f"{archive} has no {', '.join(missing) or 'files'} in its folder {inside or '/'!r}"
            )
        reset_permissions(unpacked)
        for path in unpacked.iterdir():
            path.rename(unfinished / path.name)


def _extract(archive: Path, target: Path, inside: str, wanted: Collection[str]) -> None:
    """Unpack the wanted files. zipfile and tarfile keep them inside ``target``."""

    def is_wanted(name: str) -> bool:
        path = PurePosixPath(name)
        below = path.is_relative_to(inside)
        return below and (not wanted or str(path.relative_to(inside)) in wanted)

    about = f"unpack {archive.name}"
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(target, tqdm(filter(is_wanted, opened.namelist()), about))
        return
    with gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            files = (member for member in tar if member.isfile() and is_wanted(member.name))
            tar.extractall(target, tqdm(files, about), filter="data")
        while stream.read(CHUNK_BYTES):  # gzip compares the checksum at the end
            pass


def _receive_with_retries(url: str, part: Path, size: int) -> None:
    for attempt in range(ATTEMPTS):
        try:
            return _receive(url, part, size)
        except urllib.error.HTTPError as error:
            problem = f"the server answers {error.code} {error.reason}"
            if error.code == _RANGE_REFUSED:  # the part is not the beginning of the file
                part.unlink()
            elif error.code not in _RETRIED_STATUSES:
                raise BenchError(f"{url}: {problem}") from error
        except urllib.error.URLError as error:
            raise BenchError(f"{url} cannot be reached: {error.reason}") from error
        except _CONNECTION_ERRORS as error:
            problem = str(error) or type(error).__name__
        time.sleep(FIRST_WAIT_S * 2**attempt)
    raise BenchError(
        f"{url}: the connection broke {ATTEMPTS} times: {problem}",
        hint=f"repeat the command to continue after the {_size(part):,} bytes received so far",
    )


def _receive(url: str, part: Path, size: int) -> None:
    have = max(_size(part) - 1, 0)  # read the last byte again: a range after the end is invalid
    headers = {"User-Agent": "retrieval-bench", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        continued = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        start = have if continued else 0
        stated = response.headers.get("Content-Length", "")
        total = start + int(stated) if stated.isdecimal() else None
        most = 2 * size or total or _size(part) + shutil.disk_usage(part.parent).free // 2
        _check_size(url, part, total or 0, most)
        with (
            part.open("r+b" if start else "wb") as file,
            tqdm(desc=part.stem, initial=start, total=total, unit="B", unit_scale=True) as bar,
        ):
            file.seek(start)
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))
                _check_size(url, part, file.tell(), most)
    if total is not None and _size(part) < total:
        raise ConnectionError(f"received {_size(part):,} of {total:,} bytes")


def _check_size(url: str, part: Path, size: int, most: int) -> None:
    """Remove the partial file and raise if it is larger than the limit."""
    if size > most:
        part.unlink(missing_ok=True)
        raise BenchError(
            f"{url}: the file has more than {most:,} bytes and was removed",
            "the server sends a different file than the published one, or does not state its size",
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
