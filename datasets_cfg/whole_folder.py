"""Folders that appear whole or not at all."""

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foundation.errors import BenchError

_ATTEMPTS = 20
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which becomes ``folder`` when the block ends well.

    It lies beside ``folder`` and is renamed, so that a process that dies leaves nothing under the
    final name. What stood there before is replaced; of two writers at the same time the last one
    stays.

    Raises:
        BenchError: the system refuses to write, as on a full disk; nothing is left behind.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
        ) as temporary:
            finished = Path(temporary) / "finished"
            finished.mkdir()
            yield finished
            _put_in_place(finished, folder, trash=Path(temporary))
    except OSError as error:
        raise BenchError(
            f"{folder} could not be written: {error}",
            hint="free some space, or choose another cache folder",
        ) from error


def _put_in_place(finished: Path, folder: Path, trash: Path) -> None:
    """Rename ``finished`` to ``folder``; what is there moves to ``trash`` first.

    A folder cannot be renamed over a full one, and another process may put its own there between
    two steps, hence the attempts.
    """
    for attempt in range(_ATTEMPTS):
        try:
            finished.rename(folder)
        except OSError as error:
            if error.errno not in _OCCUPIED or attempt == _ATTEMPTS - 1:
                raise
            with suppress(FileNotFoundError):  # another process may have moved it first
                folder.rename(trash / f"replaced-{attempt}")
        else:
            return
