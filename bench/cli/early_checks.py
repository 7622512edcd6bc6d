"""Checks before hours of work: that output can be written, and that the device exists."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from bench.cli.options.shared import Written, slots
from bench.results.location import Place, RemotePath
from foundation.errors import BenchError


def check_typed(words: Sequence[str]) -> None:
    """Refuse what cannot be written into a record: Python stands for such bytes by surrogates.

    Raises:
        BenchError: a word of the command line is not in the encoding of the locale.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            encoding = sys.getfilesystemencoding().upper()
            hint = "rename the file or folder: results state names and paths as text"
            if encoding != "UTF-8":
                hint = "set PYTHONUTF8=1, where names are in UTF-8 and the locale is not"
            raise BenchError(f"{word!r} of the command line is not {encoding}", hint) from error


def check_before_work(options: Any) -> None:
    """Check what the command writes, as its record marks it, and that its device is there.

    Raises:
        BenchError: a place cannot be written, or there is no such device.
    """
    for slot in slots(options):
        for mark in _marks(slot.kind) if slot.value is not None else ():
            (check_out if mark.kind == "folder" else _check_file)(slot.value)
        if slot.name == "device" and slot.value.startswith("cuda"):
            from retrievers.encoders.device import pick_device

            pick_device(slot.value)


def _marks(kind: Any) -> Iterator[Written]:
    """`Written` of a type such as ``Annotated[Path, ...] | None``."""
    yield from (mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Written))
    for inner in get_args(kind) if get_origin(kind) in (Union, UnionType) else ():
        yield from _marks(inner)


def check_out(out: Place) -> None:
    """Refuse a place that cannot hold new files; nothing stays there of the trial.

    Raises:
        BenchError: a file is in the way, the store is closed, or nothing can be written.
    """
    if isinstance(out, RemotePath):
        out.check_writable()
        return
    nearest = _nearest(out)
    if not nearest.is_dir():
        raise BenchError(f"{nearest} is a file, and results go into a folder", "change --out")
    _try_to_write(nearest, out)


def _check_file(path: Path) -> None:
    """Refuse a path that cannot become a file.

    Raises:
        BenchError: a folder is there, or a file where its folder should be, or nothing can be
            written.
    """
    nearest = _nearest(path)
    if path.is_dir() or not (nearest == path or nearest.is_dir()):
        raise BenchError(f"{path} cannot be a file: {nearest} is there", "name another file")
    _try_to_write(nearest if nearest.is_dir() else nearest.parent, path)


def _nearest(path: Path) -> Path:
    """The path, or the nearest of the folders above it that exists.

    Raises:
        BenchError: a link on the way leads nowhere.
    """
    for place in (path, *path.absolute().parents):
        if place.exists():
            return place
        if place.is_symlink():
            raise BenchError(f"{place} is a link to what is not there", "name another place")
    raise AssertionError("the root folder exists")


def _try_to_write(folder: Path, wanted: Path) -> None:
    """Write a file without a name: permissions alone do not tell of a read-only or full disk."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise BenchError(
            f"{wanted} cannot be written: {error.strerror}", "name another place"
        ) from error
