"""Locations of files: a local folder, or a URL of an object store such as ``s3://bucket/prefix``.

A local place is a plain `pathlib.Path` and costs nothing more. An object of a store is a
`RemotePath`, which has as much of a path's interface as results need. fsspec, and the package of
the store, are imported when it is first read or written. A store has no folders and no renaming, so
an object is written whole, in one request. Whether an object is there is asked by its key: a
listing may lag behind what was written.
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

from foundation import files as whole
from foundation.errors import BenchError

STORES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}  # packages
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_COLLAPSED = re.compile(r"([a-z][a-z0-9]+):/(?!/)(.*)", re.DOTALL)  # what pathlib makes of a URL
# Many requests at a time are made here; s3fs would ask for the size before it reads an object.
_OPTIONS = {"s3": {"max_concurrency": 1}}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_ENDPOINT_URL where "
    "it is not Amazon's",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
_STORE_PACKAGES = {"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs"}

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RemotePath:
    """An object of a store, or all objects whose keys begin with it.

    Attributes:
        url: without a slash at its end.
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
        """The suffix of the key, like that of a `pathlib.Path`."""
        return posixpath.splitext(self.url)[1]

    @property
    def parent(self) -> "RemotePath":
        """The key without its last part."""
        return replace(self, url=posixpath.dirname(self.url))

    def as_posix(self) -> str:
        """The URL."""
        return self.url

    def exists(self) -> bool:
        """True if there is such an object, or any below it."""
        return bool(self._request(lambda store: store.exists(self.url)))

    def is_file(self) -> bool:
        """True if there is an object of exactly this key."""
        return self.exists() and self._request(lambda store: store.info(self.url)["type"]) == "file"

    def is_dir(self) -> bool:
        """True if there are objects below."""
        return bool(self._request(lambda store: store.isdir(self.url)))

    def rglob(self, name: str) -> list["RemotePath"]:
        """Objects below that have this name, as far as the store lists them; no wildcards.

        Raises:
            BenchError: there is no such bucket, or the store refuses.
        """
        scheme = self.url.partition("://")[0]
        with self._check_bucket():
            keys = self._request(lambda store: store.find(self.url))
        return [RemotePath(f"{scheme}://{key}") for key in keys if posixpath.basename(key) == name]

    def read_bytes(self) -> bytes:
        """The whole object.

        Raises:
            FileNotFoundError: there is none.
            BenchError: the store refuses.
        """
        content: bytes = self._request(lambda store: store.cat_file(self.url))
        return content

    def create(self, content: bytes) -> None:
        """Write an object that is not there yet.

        Raises:
            BenchError: it is there with other content, there is no such bucket, or the store
                refuses.
        """
        if not self.exists():
            with self._check_bucket():
                self._request(lambda store: store.pipe_file(self.url, content))
        elif self.read_bytes() != content:
            message = f"{self} is there already, with other content"
            raise BenchError(message, "name another place")

    def check_writable(self) -> None:
        """Write a small object: what would fail after hours of work fails now.

        Raises:
            BenchError: there is no such bucket, or the store refuses.
        """
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
            raise BenchError(problem, "make it first, or name another") from error

    def _request(self, ask: Callable[[Any], Answer]) -> Answer:
        """Return the answer of the store, whose own package retries if it is overloaded.

        Raises:
            FileNotFoundError: there is no such object.
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
    """The file system of a place. Its listings are not kept: others write there too."""
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
    """A local path, or the place that a URL names.

    Raises:
        BenchError: a URL without a bucket, one that lost a slash, or of what is no object store:
            results in ``memory:`` would be gone with this process.
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
            f"{text}: no kind of store is called {scheme}",
            f"a folder, or a URL that begins with {', '.join(f'{name}://' for name in STORES)}",
        )
    if ":" in rest.partition("@")[0].partition("/")[0] and "@" in rest:
        problem = f"{text}: a password in the URL of a store is not used"
        raise BenchError(problem, f"credentials: {_CREDENTIALS.get(scheme, 'in the environment')}")
    if not rest or rest.startswith("/"):
        raise BenchError(f"{text} names no bucket", f"{scheme}://BUCKET/PREFIX")
    return RemotePath(f"{scheme}://{rest}")


def files_below(location: Location, name: str) -> list[Location]:
    """Files of this name in a place and below, in the order of their paths."""
    return sorted(location.rglob(name), key=lambda file: file.as_posix().split("/"))


@contextmanager
def write_location(location: Location) -> Iterator[BinaryIO]:
    """A file to write, which is at its place when the block ends well, and whole.

    A local file takes the place of an earlier one; an object of a store never does.
    """
    with write_locations([location]) as (file,):
        yield file


@contextmanager
def write_locations(locations: Sequence[Location]) -> Iterator[list[BinaryIO]]:
    """Files of one folder or store to write, which are at their places when the block ends well.

    Of local files either all take the places of earlier ones, or none does; objects of a store
    are created in this order.
    """
    local = [location for location in locations if isinstance(location, Path)]
    if len(local) == len(locations):
        with whole.replace_files(local) as files:
            yield files
        return
    contents = [
        (location, io.BytesIO()) for location in locations if isinstance(location, RemotePath)
    ]
    yield [content for _, content in contents]
    for location, content in contents:
        location.create(content.getvalue())
