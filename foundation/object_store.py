"""An object of a store, such as ``s3://bucket/prefix/result.json``, used as if it were a path.

It has as much of a path's interface as results and vectors need. fsspec, and the package of the
store, are imported when it is first read or written. What a store says is turned into clear errors.

A store has no folders and no renaming, so an object is written whole, in one request. Whether an
object is there is asked by its key: a listing may lag behind what was written.
"""

import errno
import io
import os
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

from foundation.errors import BenchError

STORES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}  # packages
_EXTRAS = {"s3fs": "'retrieval-bench[s3]'"}
# Many requests at a time are made here; s3fs would ask for the size before it reads an object.
_OPTIONS = {"s3": {"max_concurrency": 1}}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_ENDPOINT_URL where "
    "it is not Amazon's",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
_OF_STORES = {"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs"}
_PROBE = ".can-be-written"
AT_ONCE = 16  # requests

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
        """True where there is such an object, or any below it."""
        return bool(self._ask(lambda store: store.exists(self.url)))

    def is_file(self) -> bool:
        """True where there is an object of exactly this key."""
        try:
            self.size()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """True where there are objects below."""
        return bool(self._ask(lambda store: store.isdir(self.url)))

    def size(self) -> int:
        """Bytes of the object.

        Raises:
            FileNotFoundError: there is none of exactly this key.
            BenchError: the store refuses.
        """
        facts: dict[str, Any] = self._ask(lambda store: store.info(self.url))
        if facts["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url)
        return int(facts["size"])

    def rglob(self, name: str) -> list["RemotePath"]:
        """Objects below that have this name, as far as the store lists them; no wildcards.

        Raises:
            BenchError: there is no such bucket, or the store refuses.
        """
        scheme = self.url.partition("://")[0]
        try:
            keys = self._ask(lambda store: store.find(self.url))
        except FileNotFoundError as error:
            raise _no_bucket(self) from error
        return [RemotePath(f"{scheme}://{key}") for key in keys if posixpath.basename(key) == name]

    def read_bytes(self) -> bytes:
        """The whole object.

        Raises:
            FileNotFoundError: there is none.
            BenchError: the store refuses.
        """
        content: bytes = self._ask(lambda store: store.cat_file(self.url))
        return content

    def open(self, mode: str = "rb") -> BinaryIO:
        """The whole object as a file to read."""
        return io.BytesIO(self.read_bytes())

    def create(self, content: bytes) -> None:
        """Write an object that is not there yet; the store itself checks that, where it can.

        Raises:
            BenchError: it is there with other content, there is no such bucket, or the store
                refuses.
        """
        try:
            self._ask(lambda store: _create(store, self.url, content))
        except FileExistsError as error:
            if self.read_bytes() != content:  # the answer to an earlier try may be lost
                message = f"{self} is there already, with other content"
                raise BenchError(message, "name another place") from error
        except FileNotFoundError as error:
            raise _no_bucket(self) from error

    def check_writable(self) -> None:
        """Write a small object: what would fail after hours of work fails now.

        Raises:
            BenchError: there is no such bucket, or the store refuses.
        """
        probe = self / _PROBE
        try:
            self._ask(lambda store: store.pipe_file(probe.url, b""))
            self._ask(lambda store: store.rm_file(probe.url))
        except FileNotFoundError as error:
            raise _no_bucket(self) from error

    def _ask(self, ask: Callable[[Any], Answer]) -> Answer:
        """The answer of the store; its own package asks again where it is overloaded."""
        with _speaking(self):
            return ask(_store(self))


def _store(place: RemotePath) -> Any:
    """The file system of a place. Its listings are not kept: others write there too."""
    scheme = place.url.partition("://")[0]
    try:
        import fsspec

        return fsspec.filesystem(scheme, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except ImportError as error:
        package = STORES.get(scheme, "")
        raise BenchError(
            f"{place} needs {package or 'a package that is not installed'}: {error}",
            f"pip install {_EXTRAS.get(package, package)}" if package else "install it",
        ) from error
    except ValueError as error:
        raise BenchError(
            f"{place}: no kind of store is called {scheme}", "a folder, s3://… or gs://…"
        ) from error


def _create(store: Any, url: str, content: bytes) -> None:
    """Asks first, since some stores ignore the condition; the condition is for those that race."""
    if store.exists(url):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), url)
    try:
        store.pipe_file(url, content, mode="create")
    except OSError as error:
        if store.exists(url):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), url) from error
        if error.errno != errno.ENOSYS:
            raise
        store.pipe_file(url, content)  # a store without conditional writes


@contextmanager
def _speaking(place: RemotePath) -> Iterator[None]:
    """Errors of a store as errors of this program.

    Raises:
        FileNotFoundError, FileExistsError: as they are.
        BenchError: it refuses, or cannot be reached.
    """
    try:
        yield
    except FileNotFoundError as error:
        missing = os.strerror(errno.ENOENT)
        raise FileNotFoundError(errno.ENOENT, missing, str(place)) from error
    except FileExistsError:
        raise
    except Exception as error:
        kind = type(error)
        if not isinstance(error, OSError) and kind.__module__.split(".")[0] not in _OF_STORES:
            raise
        message = f"{place}: {error or kind.__name__}"
        scheme = place.url.partition("://")[0]
        hint = f"credentials: {_CREDENTIALS[scheme]}" if scheme in _CREDENTIALS else ""
        raise BenchError(message, hint) from error


def _bucket(place: RemotePath) -> str:
    return place.url.partition("://")[2].partition("/")[0]


def _no_bucket(place: RemotePath) -> BenchError:
    bucket = _bucket(place)
    return BenchError(f"{place}: there is no bucket {bucket}", "make it first, or name another")
