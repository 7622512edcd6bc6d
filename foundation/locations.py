"""Locations of files: local paths, or URLs of object stores such as ``s3://bucket/prefix``.

A local location is a plain `pathlib.Path`. An object of a store is a `RemotePath`, which has the
methods of a path that results need. fsspec and the package of the store are imported when an object
is first read or written.

A store has neither folders nor renaming, so an object is written completely in one request. Objects
are looked up by key, because listings may lag behind writes.
"""

import errno
import io
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import platformdirs

from foundation.errors import BenchError
from foundation.files import replace_files

STORES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}  # packages
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_COLLAPSED = re.compile(r"([a-z][a-z0-9]+):/(?!/)(.*)", re.DOTALL)  # pathlib collapses slashes
# The program itself makes parallel requests. s3fs would ask for the size before each read.
_OPTIONS = {"s3": {"max_concurrency": 1}}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_ENDPOINT_URL for "
    "a store that is not Amazon's",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
_STORE_PACKAGES = {"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs"}

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RemotePath:
    """An object of a store, or the prefix of several objects, with a ``url`` without final
    slash.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "RemotePath":
        return replace(self, url=f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """Last part of the key."""
        return posixpath.basename(self.url)

    @property
    def suffix(self) -> str:
        """Suffix of the last part of the key, as of `pathlib.Path`."""
        return posixpath.splitext(self.url)[1]

    @property
    def parent(self) -> "RemotePath":
        """Location without the last part of the key."""
        return replace(self, url=posixpath.dirname(self.url))

    def as_posix(self) -> str:
        """Return the URL."""
        return self.url

    def exists(self) -> bool:
        """Return whether there is such an object, or any below this prefix."""
        return bool(self._request(lambda store: store.exists(self.url)))

    def is_file(self) -> bool:
        """Return whether there is an object with exactly this key."""
        return self.exists() and self._request(lambda store: store.info(self.url)["type"]) == "file"

    def is_dir(self) -> bool:
        """Return whether there are objects below this prefix."""
        return bool(self._request(lambda store: store.isdir(self.url)))

    def rglob(self, name: str) -> list["RemotePath"]:
        """Return the objects below this prefix that are called ``name``, without wildcards."""
        scheme = self.url.partition("://")[0]
        with self._check_bucket():
            keys = self._request(lambda store: store.find(self.url))
        return [RemotePath(f"{scheme}://{key}") for key in keys if posixpath.basename(key) == name]

    def read_bytes(self) -> bytes:
        """Return the content of the object.

        Raises:
            FileNotFoundError: the object does not exist.
        """
        content: bytes = self._request(lambda store: store.cat_file(self.url))
        return content

    def create(self, content: bytes) -> None:
        """Write a new object with this ``content``.

        Raises:
            BenchError: the object exists with different content, or the store refuses.
        """
        if not self.exists():
            with self._check_bucket():
                self._request(lambda store: store.pipe_file(self.url, content))
        elif self.read_bytes() != content:
            message = f"{self} exists already, with different content"
            raise BenchError(message, "choose another location")

    def check_writable(self) -> None:
        """Write and remove a small object, to find errors before hours of work."""
        probe = self / ".can-be-written"
        probe.create(b"")
        self._request(lambda store: store.rm_file(probe.url))

    @contextmanager
    def _check_bucket(self) -> Iterator[None]:
        """Raise a clear error if the bucket does not exist."""
        try:
            yield
        except FileNotFoundError as error:
            bucket = self.url.partition("://")[2].partition("/")[0]
            problem = f"{self}: there is no bucket {bucket}"
            raise BenchError(problem, "create it first, or choose another") from error

    def _request(self, ask: Callable[[Any], Answer]) -> Answer:
        """Return the answer of the store, whose package retries if it is overloaded.

        Raises:
            FileNotFoundError: the object does not exist.
            BenchError: the store refuses, or cannot be reached.
        """
        try:
            return ask(_file_system(self))
        except FileNotFoundError as error:
            missing = os.strerror(errno.ENOENT)
            raise FileNotFoundError(errno.ENOENT, missing, self.url) from error
        except Exception as error:
            kind = type(error)
            if (
                not isinstance(error, OSError)
                and kind.__module__.split(".")[0] not in _STORE_PACKAGES
            ):
                raise
            credentials = _CREDENTIALS.get(self.url.partition("://")[0], "")
            hint = f"credentials: {credentials}" if credentials else ""
            raise BenchError(f"{self}: {error or kind.__name__}", hint) from error


def _file_system(location: RemotePath) -> Any:
    """Return the file system of a location, without cached listings, since others write there."""
    scheme = location.url.partition("://")[0]
    try:
        import fsspec

        return fsspec.filesystem(scheme, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except ImportError as error:
        package = STORES[scheme]
        raise BenchError(
            f"{location} needs {package}: {error}", f"pip install {package}"
        ) from error


Location = Path | RemotePath


def parse_location(text: str) -> Location:
    """Return a local path or a remote location for ``text``.

    Raises:
        BenchError: a URL without a bucket, with a missing slash, or of an unsupported store.
    """
    if match := _COLLAPSED.fullmatch(text):
        raise BenchError(f"{text} has one slash too few", f"{match[1]}://{match[2]}")
    if not (match := _URL.fullmatch(text)):
        return Path(text)
    scheme, rest = match[1], match[2].rstrip("/")
    if scheme == "file":
        return Path(match[2])
    if scheme not in STORES:
        raise BenchError(
            f"{text}: unknown kind of store {scheme}",
            f"use a folder, or a URL that begins with {', '.join(f'{name}://' for name in STORES)}",
        )
    if ":" in rest.partition("@")[0].partition("/")[0] and "@" in rest:
        problem = f"{text}: passwords in the URL of a store are not supported"
        raise BenchError(problem, f"credentials: {_CREDENTIALS.get(scheme, 'in the environment')}")
    if not rest or rest.startswith("/"):
        raise BenchError(f"{text} names no bucket", f"{scheme}://BUCKET/PREFIX")
    return RemotePath(f"{scheme}://{rest}")


def files_below(location: Location, name: str) -> list[Location]:
    """Return the files called ``name`` below ``location``, sorted by path."""
    return sorted(location.rglob(name), key=lambda file: file.as_posix().split("/"))


@contextmanager
def write_location(location: Location) -> Iterator[BinaryIO]:
    """Open a file that appears at ``location`` when the block ends without an error.

    A local file replaces an older one. An object of a store never does.
    """
    with write_locations([location]) as (file,):
        yield file


@contextmanager
def write_locations(locations: Sequence[Location]) -> Iterator[list[BinaryIO]]:
    """Open a file for each of ``locations``, all in one folder or store, and write them at the end.

    Local files are replaced together or not at all. Objects are created in this order.
    """
    local = [location for location in locations if isinstance(location, Path)]
    if len(local) == len(locations):
        with replace_files(local) as files:
            yield files
        return
    contents = [
        (location, io.BytesIO()) for location in locations if isinstance(location, RemotePath)
    ]
    yield [content for _, content in contents]
    for location, content in contents:
        location.create(content.getvalue())


def cache_folder(given: str | Path | None = None) -> Path:
    """Return the cache folder: ``given``, else BENCH_CACHE, else the user's cache folder.

    Raises:
        BenchError: it is a URL.
    """
    named = str(given or os.environ.get("BENCH_CACHE") or "")
    if "://" in named:
        raise BenchError(
            f"{named} is a URL, but the cache must be a folder",
            "Use a folder that all machines share. Only results may be at a URL.",
        )
    return Path(named) if named else Path(platformdirs.user_cache_path("retrieval-bench"))
