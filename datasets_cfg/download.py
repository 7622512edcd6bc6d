"""Files over HTTP: with progress, resumed where they stopped, checked, whole or not at all."""

import errno
import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from tqdm import tqdm

from foundation.errors import BenchError, lacks_room

CHUNK_BYTES = 1 << 20
ATTEMPTS = 5
FIRST_WAIT_S = 0.5
TIMEOUT_S = 60.0


class _Response(Protocol):
    status: int
    headers: http.client.HTTPMessage

    def read(self, amount: int, /) -> bytes: ...


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to another address, but not out of HTTP, nor from HTTPS to plain HTTP."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Refuse what is less safe than what was asked for."""
        allowed = ("https",) if req.type == "https" else ("http", "https")
        if urllib.parse.urlsplit(newurl).scheme not in allowed:
            raise BenchError(
                f"{req.full_url}: the server sends on to {newurl}, which is not followed",
                hint=f"only {' and '.join(allowed)} are: get the file from another source",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _ConnectionCutError(Exception):
    """The connection ended before the file did: worth another attempt."""


def download(url: str, target: Path, md5: str = "", size_bytes: int = 0) -> Path:
    """Fetch ``url`` to ``target`` and return ``target``.

    The bytes go to ``target`` + ".part", which is resumed by a later call and gets its final name
    only when it is whole and its checksum is right. A connection that is cut is taken up again, a
    few times; a server that ignores ranges makes the file start anew.

    Args:
        url: http or https.
        target: file to make; its folder is made, too.
        md5: expected checksum, 32 hexadecimal digits; "" for none.
        size_bytes: expected size, to find a full disk before the download; 0 if unknown.

    Raises:
        BenchError: the server cannot be reached, refuses or sends on to where no file is fetched
            from, the connection keeps breaking, the checksum is wrong (the file is removed then),
            or the disk is full.
    """
    part = target.with_name(f"{target.name}.part")
    with disk_errors(part, size_bytes):
        target.parent.mkdir(parents=True, exist_ok=True)
        _refuse_small_disk(part, size_bytes)
        _receive_persistently(url, part)
        check_md5(part, md5, url)
        part.replace(target)
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


@contextmanager
def disk_errors(path: Path, size_bytes: int = 0) -> Iterator[None]:
    """Turn a failure to write into a `BenchError` that names the file and the bytes needed."""
    try:
        yield
    except OSError as error:
        needed = f" ({size_bytes:,} bytes are needed)" if size_bytes else ""
        if lacks_room(error):
            raise BenchError(
                f"the disk is full: {path}{needed}",
                hint="free some space and run again, or choose another cache folder",
            ) from error
        raise BenchError(f"{path} cannot be written{needed}: {error}") from error


def _refuse_small_disk(part: Path, size_bytes: int) -> None:
    missing = size_bytes - _size(part)
    if missing > shutil.disk_usage(part.parent).free:
        raise OSError(errno.ENOSPC, "not enough free space")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive_persistently(url: str, part: Path) -> None:
    wait = FIRST_WAIT_S
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _receive(url, part)
        except _ConnectionCutError as error:
            if attempt == ATTEMPTS:
                raise BenchError(
                    f"{url}: the connection broke {ATTEMPTS} times: {error}",
                    hint=f"run again: it goes on from the {_size(part):,} bytes received so far",
                ) from error
        time.sleep(wait)
        wait *= 2


def _receive(url: str, part: Path) -> None:
    have = max(_size(part) - 1, 0)  # the last byte again: no range starts after a whole part
    headers = {"User-Agent": "retrieval-bench", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with _connection(urllib.request.Request(url, headers=headers), part) as response:
        start = have if have and _continues(response, have) else 0
        if start:
            os.truncate(part, start)
        length = _content_length(response, url)
        total = None if length is None else start + length
        with (
            part.open("ab" if start else "wb") as file,
            tqdm(
                desc=part.name.removesuffix(".part"),
                initial=start,
                total=total,
                unit="B",
                unit_scale=True,
            ) as bar,
        ):
            for chunk in _chunks(response):
                file.write(chunk)
                bar.update(len(chunk))
    if total is not None and _size(part) < total:
        raise _ConnectionCutError(f"{_size(part):,} of {total:,} bytes came")


def _content_length(response: _Response, url: str) -> int | None:
    """Bytes that the server announces; None where it does not."""
    stated = response.headers.get("Content-Length")
    if not stated:
        return None
    if not re.fullmatch("[0-9]{1,18}", stated.strip()):
        raise BenchError(
            f"{url}: the server states the size {stated[:40]!r}, which is no number of bytes",
            hint="try again later, or get the file from another source",
        )
    return int(stated)


def _continues(response: _Response, have: int) -> bool:
    content_range = response.headers.get("Content-Range", "")
    return response.status == 206 and content_range.startswith(f"bytes {have}-")


@contextmanager
def _connection(request: urllib.request.Request, part: Path) -> Iterator[_Response]:
    url = request.full_url
    try:
        response = urllib.request.build_opener(_SafeRedirects).open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is no beginning of the file: start anew
            part.unlink()
            raise _ConnectionCutError("the server cannot continue the file") from error
        if error.code in (429, 500, 502, 503, 504):
            raise _ConnectionCutError(f"the server answers {error.code} {error.reason}") from error
        raise BenchError(f"{url}: the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise BenchError(f"{url} cannot be reached: {error.reason}") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _ConnectionCutError(str(error) or type(error).__name__) from error
    with response:
        yield response


def _chunks(response: _Response) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (http.client.HTTPException, OSError) as error:
            raise _ConnectionCutError(str(error) or type(error).__name__) from error
        if not chunk:
            return
        yield chunk
