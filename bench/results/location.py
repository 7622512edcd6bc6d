"""The place of results: a local folder, or a URL of an object store such as ``s3://bucket/prefix``.

A local place is a plain `pathlib.Path` and costs nothing more.
"""

import io
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from foundation import files as whole
from foundation.errors import BenchError
from foundation.object_store import AT_ONCE, STORES, RemotePath

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_COLLAPSED = re.compile(r"([a-z][a-z0-9]+):/(?!/)(.*)", re.DOTALL)  # what pathlib makes of a URL

Place = Path | RemotePath


def place_of(text: str) -> Place:
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
    if not rest or rest.startswith("/"):
        raise BenchError(f"{text} names no bucket", f"{scheme}://BUCKET/PREFIX")
    return RemotePath(f"{scheme}://{rest}")


def files_below(place: Place, name: str) -> list[Place]:
    """Files of this name in a place and below, in the order of their paths."""
    return sorted(place.rglob(name), key=lambda file: file.as_posix().split("/"))


def read_all(files: Sequence[Place]) -> list[bytes]:
    """Contents of files of one place; a store is asked for many at once.

    Raises:
        OSError, BenchError: one cannot be read.
    """
    if not any(isinstance(file, RemotePath) for file in files):
        return [file.read_bytes() for file in files]
    with ThreadPoolExecutor(AT_ONCE) as readers:
        return list(readers.map(lambda file: file.read_bytes(), files))


@contextmanager
def replacing(place: Place) -> Iterator[BinaryIO]:
    """A file to write, which is at its place when the block ends well, and whole.

    A local file takes the place of an earlier one; an object of a store never does.
    """
    with replacing_all([place]) as (file,):
        yield file


@contextmanager
def replacing_all(places: Sequence[Place]) -> Iterator[list[BinaryIO]]:
    """Files of one folder or store to write, which are at their places when the block ends well.

    Of local files either all take the places of earlier ones, or none does; objects of a store
    are created in this order.
    """
    local = [place for place in places if isinstance(place, Path)]
    if len(local) == len(places):
        with whole.replacing_all(local) as files:
            yield files
        return
    contents = [(place, io.BytesIO()) for place in places if isinstance(place, RemotePath)]
    yield [content for _, content in contents]
    for place, content in contents:
        place.create(content.getvalue())
