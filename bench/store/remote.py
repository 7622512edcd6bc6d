"""Shards below the URL of an object store, which stores on several machines have in common.

Below the URL lie the same folders and files as in a local store. What a machine searches are copies
in its own store; what it encodes is sent, the manifest last. A shard whose vectors or keys are not
there, or have another size or checksum than its manifest says, counts as absent and is sent anew.

A shard is asked for by its name, which follows from its texts. A listing, which may lag behind,
only finds shards that were cut for another collection.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench.store.keys import KEY_BYTES, find, keys_from_bytes
from bench.store.shards import MANIFEST_NAME, DamagedShardError, described, read_shard, write_files
from foundation.arrays import UInt64Array
from foundation.locks import FileLock, FileLocks
from foundation.object_leases import ObjectLeases
from foundation.object_store import AT_ONCE, RemotePath

logger = logging.getLogger(__name__)


class RemoteStore:
    """Shards below a URL, known by the paths of their manifests in the local store.

    Attributes:
        url: holds a folder for each recipe, of the same name as the local one.
        ttl_s: seconds after which the lease of a worker that is no more has expired.
    """

    def __init__(self, url: RemotePath, ttl_s: float = 60.0) -> None:
        self.url = url
        self.ttl_s = ttl_s
        self._there: set[Path] = set()  # what this process has seen or sent
        self._damaged: set[Path] = set()
        self._keys: dict[Path, UInt64Array] = {}  # of shards that have no copy here

    def leases(self, folder: Path) -> ObjectLeases:
        """Leases on the shards of a local folder, among all machines."""
        return ObjectLeases(self._at(folder), FileLocks(folder), self.ttl_s)

    def describe(self, recipe_file: Path) -> None:
        """Send the file that says what its folder is of, if it is not there.

        Raises:
            BenchError: the store refuses.
        """
        place = self._at(recipe_file.parent) / recipe_file.name
        if recipe_file not in self._there and not place.exists():
            place.write_bytes(recipe_file.read_bytes())
        self._there.add(recipe_file)

    def has(self, path: Path) -> bool:
        """True where a shard is there, in the size that its manifest says.

        One that was seen to be damaged is read again whole: it may have been mended.

        Raises:
            BenchError: the store refuses.
        """
        if path in self._damaged:
            return self._read(path) is not None
        if path not in self._there and self._has_files(path):
            self._there.add(path)
        return path in self._there

    def push(self, path: Path, folder: Path) -> None:
        """Send a shard, if it is not there, to the place of a local folder.

        Raises:
            BenchError: the store refuses.
        """
        target = folder / path.name
        if not self.has(target):
            shard = described(path, path.read_bytes())
            for file in (*shard.files, path):
                (self._at(folder) / file.name).write_bytes(file.read_bytes())
            self._there.add(target)
            self._damaged.discard(target)

    def push_all(self, paths: Sequence[Path], folder: Path) -> None:
        """Send all shards that are not listed there, many at a time; see `push`.

        Raises:
            BenchError: the store refuses.
        """
        unseen = [path for path in paths if folder / path.name not in self._there]
        listed = {place.name for place in self._at(folder).objects()} if unseen else set()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            unlisted = [path for path in unseen if path.name not in listed]
            list(pool.map(lambda path: self.push(path, folder), unlisted))
        self._there |= {folder / path.name for path in unseen}

    def pull(self, shards: Mapping[Path, UInt64Array], texts: UInt64Array) -> bool:
        """Copy the shards that hold any of some texts, and are there and whole.

        Args:
            shards: keys of their texts.
            texts: keys, ``(n, 2)``.

        Returns:
            True where any was copied.

        Raises:
            BenchError: the store refuses.
            OSError: no space is left.
        """
        paths = list(shards)
        rows = find(texts, np.concatenate([np.empty((0, 2), np.uint64), *shards.values()]))
        ends = np.cumsum([len(keys) for keys in shards.values()])
        numbers = np.unique(np.searchsorted(ends, rows[rows >= 0], side="right"))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return any(list(pool.map(self._pulled, [paths[n] for n in numbers.tolist()])))

    def listed(self, folder: Path) -> dict[Path, UInt64Array]:
        """Keys of the shards that are listed and have no copy in a local folder.

        Raises:
            BenchError: the store refuses.
        """
        names = [place.name for place in self._at(folder).objects()]
        paths = [folder / name for name in names if MANIFEST_NAME.fullmatch(name)]
        paths = [path for path in paths if path not in self._damaged and not path.exists()]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(paths, pool.map(self._keys_of, paths), strict=True))

    def _at(self, folder: Path) -> RemotePath:
        return self.url / folder.name

    def _has_files(self, path: Path) -> bool:
        place = self._at(path.parent)
        try:
            shard = described(path, (place / path.name).read_bytes())
            sizes = ((place / file.name).size() for file in shard.files)
            return list(sizes) == [size for size, _ in shard.files.values()]
        except (FileNotFoundError, DamagedShardError):
            return False

    def _pulled(self, path: Path) -> bool:
        if path in self._damaged or not self.has(path):
            return False
        with FileLock.wait(path.with_suffix(".lock")):
            try:
                read_shard(path)[0].check()  # another process has just copied it
            except (FileNotFoundError, DamagedShardError):
                if (contents := self._read(path)) is None:
                    return False
                write_files(contents)
            return True

    def _read(self, path: Path) -> dict[Path, bytes] | None:
        """The files of a shard, the manifest last; None where they do not fit each other."""
        place = self._at(path.parent)
        try:
            manifest = (place / path.name).read_bytes()
            shard = described(path, manifest)
            contents = {file: (place / file.name).read_bytes() for file in shard.files}
            for file, content in contents.items():
                shard.check_content(file, content)
        except (FileNotFoundError, DamagedShardError) as error:
            if path not in self._damaged:
                logger.warning("%s is damaged (%s): it is made again", place / path.name, error)
            self._damaged.add(path)
            self._there.discard(path)
            return None
        self._damaged.discard(path)
        self._there.add(path)
        return {**contents, path: manifest}

    def _keys_of(self, path: Path) -> UInt64Array:
        """Keys of a shard, read once; none where they are not there or cut short."""
        if path not in self._keys:
            try:
                content = (self._at(path.parent) / path.with_suffix(".keys").name).read_bytes()
            except FileNotFoundError:
                content = b""
            self._keys[path] = keys_from_bytes(content[: len(content) // KEY_BYTES * KEY_BYTES])
        return self._keys[path]
