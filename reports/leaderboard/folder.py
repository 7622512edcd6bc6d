"""A folder that is written again and again, where only what was written before is replaced.

``site-files.txt`` lists the files of the site. A path is in the list before its file is there, so
that what a killed process left is known, and what somebody else put there is never touched.
"""

from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from foundation import files as whole
from foundation.errors import BenchError, naming

LIST = "site-files.txt"
HEADING = "# Files of a leaderboard, which the next one replaces. All others here stay."


def check_free(root: Path) -> None:
    """Refuse a folder that holds something else than an earlier site.

    Raises:
        BenchError: it is a file, or a folder with files but without a list of them.
    """
    if root.is_dir() and any(root.iterdir()) and _listed(root) is None:
        raise BenchError(
            f"{root} holds files that no leaderboard wrote: it has no {LIST}",
            "name a new folder with --out; where it is an old leaderboard, delete it",
        )


class SiteFolder:
    """A site while it is written: open it in a ``with`` statement.

    When the block ends well, files of the site before that were not written again are gone.

    Raises:
        BenchError: the folder holds files of somebody else.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: set[str] = set()
        self._written: dict[str, None] = {}

    def __enter__(self) -> "SiteFolder":
        check_free(self.root)
        self.root.mkdir(parents=True, exist_ok=True)
        self._known = _listed(self.root) or set()
        self._write_list(self._known)
        self._open_list: BinaryIO = (self.root / LIST).open("ab", buffering=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open_list.close()
        if kind is None:
            for name in self._known - self._written.keys():
                self._path(name).unlink(missing_ok=True)
            self._write_list(self._written.keys())

    def write(self, name: str, content: bytes) -> Path:
        """Write a file; returns its path.

        Args:
            name: its path below the folder, with slashes.

        Raises:
            BenchError: a file of somebody else has this name, or the path leads out of the folder.
        """
        path = self._path(name)
        if name not in self._known:
            if path.exists() or path.is_symlink():
                raise BenchError(
                    f"{path} is in the way, and no file of the leaderboard",
                    "move it elsewhere, or name a new folder with --out",
                )
            self._open_list.write(f"{name}\n".encode())
            self._known.add(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may have become a link
        with naming(path):
            path.write_bytes(content)
        self._written[name] = None
        return path

    def _path(self, name: str) -> Path:
        path = self.root / name
        if not path.parent.resolve().is_relative_to(self.root.resolve()):
            raise BenchError(f"{path.parent} leads out of {self.root}", "delete this link")
        return path

    def _write_list(self, names: Collection[str]) -> None:
        with whole.replacing(self.root / LIST) as file:
            file.write("\n".join([HEADING, *sorted(names), ""]).encode())


def _listed(root: Path) -> set[str] | None:
    """Paths in the list of a site; None where there is none."""
    try:
        heading, *names = (root / LIST).read_text(encoding="utf-8", errors="replace").split("\n")
    except (FileNotFoundError, IsADirectoryError):
        return None
    whole = names[:-1]  # the last is empty, or was cut
    return set(filter(_is_below, whole)) if heading == HEADING else None


def _is_below(name: str) -> bool:
    """Return True for a path that does not climb."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
