"""An object of a store, such as ``s3://bucket/prefix/result.json``, used as if it were a path.

It has as much of a path's interface as results and vectors need. fsspec, and the package of the
store, are imported when it is first read or written. What a store says is turned into clear errors.

A store has no folders and no renaming, so an object is written whole, in one request. Whether an
object is there is asked by its key: a listing may lag behind what was written.

A store that has answered this process and then refuses is asked again for two minutes.
"""

import errno
import io
import logging
import os
import posixpath
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
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
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0  # between two tries; each is twice as long as the last
# A connection that fails is an error of many libraries; these are the names of its classes.
_UNREACHED = {
    *("ConnectionError", "TimeoutError", "IncompleteRead", "HTTPClientError"),
    *("ClientConnectionError", "ClientPayloadError"),
}
_OVERLOADED = {errno.EBUSY, errno.EIO, getattr(errno, "EREMOTEIO", errno.EIO)}  # 409, 503; 500

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)

_answered: set[str] = set()  # buckets that answered this process
_refusing: set[str] = set()  # those of which it was said that they refuse


class StoreRefusesError(BenchError):
    """A store that is away or overloaded: it may answer another time."""


@dataclass(frozen=True)
class RemotePath:
    """An object of a store, or all objects whose keys begin with it.

    Attributes:
        url: without a slash at its end.
        patience_s: seconds for which a store is asked again that answered before and now refuses.
    """

    url: str
    patience_s: float = 120.0

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
        """Objects below that have this name; no wildcards.

        Raises:
            BenchError: as `objects`.
        """
        return [place for place in self.objects() if place.name == name]

    def objects(self) -> list["RemotePath"]:
        """Objects below, as far as the store lists them already.

        Raises:
            BenchError: there is no such bucket, or the store refuses.
        """
        scheme = self.url.partition("://")[0]
        try:
            keys = self._ask(lambda store: store.find(self.url))
        except FileNotFoundError as error:
            raise _no_bucket(self) from error
        return [replace(self, url=f"{scheme}://{key}") for key in keys]

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

    def write_bytes(self, content: bytes) -> None:
        """Write an object, also over an earlier one.

        Raises:
            BenchError: there is no such bucket, or the store refuses.
        """
        try:
            self._ask(lambda store: store.pipe_file(self.url, content))
        except FileNotFoundError as error:
            raise _no_bucket(self) from error

    def unlink(self) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError):
            self._ask(lambda store: store.rm_file(self.url))

    def create(self, content: bytes) -> None:
        """Write an object that is not there yet; the store itself checks that, where it can.

        Raises:
            BenchError: it is there with other content, there is no such bucket, or the store
                refuses.
        """
        if not self.is_created(content):
            raise BenchError(f"{self} is there already, with other content", "name another place")

    def is_created(self, content: bytes) -> bool:
        """Create an object; False where it is there with other content. See `create`.

        True of one writer alone among those that race with contents of their own.
        """
        try:
            self._ask(lambda store: _create(store, self.url, content))
        except FileExistsError:
            try:
                return self.read_bytes() == content  # the answer to an earlier try may be lost
            except FileNotFoundError:
                return False  # removed meanwhile
        except FileNotFoundError as error:
            raise _no_bucket(self) from error
        return True

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

    def fill(self, folder: Path, first: str) -> None:
        """Send all files of a local folder; each takes the place of an earlier one.

        Args:
            first: name of the file that is sent before all others.

        Raises:
            BenchError: there is no such bucket, or the store refuses.
        """
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != first]

        def send(file: Path) -> None:
            # Not pipe_file: this one tells the store from the name what kind of file it is.
            target = f"{self}/{file.relative_to(folder).as_posix()}"
            self._ask(lambda store: store.put_file(str(file), target))

        try:
            with ThreadPoolExecutor(AT_ONCE) as writers:
                send(folder / first)
                list(writers.map(send, files))
        except FileNotFoundError as error:
            raise _no_bucket(self) from error

    def _ask(self, ask: Callable[[Any], Answer]) -> Answer:
        """The answer of the store, which is asked again while it refuses.

        One that has never answered is not: its address may be wrong.
        """
        bucket = _bucket(self)
        begun, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                with _speaking(self):
                    answer = ask(_store(self))
            except StoreRefusesError as error:
                left = begun + self.patience_s - time.monotonic()
                if bucket not in _answered or left <= 0:
                    raise
                if bucket not in _refusing:
                    _refusing.add(bucket)
                    logger.warning("%s; it is asked again for %.0f s", error, self.patience_s)
                time.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                _answered.add(bucket)
                _refusing.discard(bucket)
                return answer


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
        if _is_passing(error):
            hint = "what is finished is kept: type the same command when the store answers"
            raise StoreRefusesError(message, hint) from error
        scheme = place.url.partition("://")[0]
        hint = f"credentials: {_CREDENTIALS[scheme]}" if scheme in _CREDENTIALS else ""
        raise BenchError(message, hint) from error


def _is_passing(error: Exception) -> bool:
    """True for an error after which the same request may succeed."""
    classes = {kind.__name__ for kind in type(error).__mro__}
    return bool(classes & _UNREACHED) or getattr(error, "errno", None) in _OVERLOADED


def _bucket(place: RemotePath) -> str:
    return place.url.partition("://")[2].partition("/")[0]


def _no_bucket(place: RemotePath) -> BenchError:
    bucket = _bucket(place)
    return BenchError(f"{place}: there is no bucket {bucket}", "make it first, or name another")
