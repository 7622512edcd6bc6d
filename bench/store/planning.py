"""Plans of encoding: the texts that are stored, and the shards that the others will become.

A plan is a function of the texts, in their order, and of what is whole in the store. What is
missing is cut into shards one after the other: when some of them are done, the rest is cut as
before.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.store.encoding import Batch
from bench.store.keys import find, first_rows
from bench.store.shards import MANIFEST_NAME, DamagedShardError, Shard, read_shard
from bench.store.vectors import StoredVectors
from foundation.arrays import Int64Array, UInt64Array
from retrievers.models.recipe import Recipe

SHARD_ROWS = 2048  # a minute or two of work for a small model on two cores
HALF_SHARD_ROWS = 16_384  # in half precision, on a GPU: a second of work, and many of its batches

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class EncodingPlan:
    """The vectors of some texts that are stored, and those that must be encoded.

    Attributes:
        keys: of all texts, ``(n, 2)``.
        vectors: of all texts; None while some are missing.
        missing: shards to encode, in the order of the texts.
        damaged: manifests of shards that are not what was written.
    """

    keys: UInt64Array
    vectors: StoredVectors | None
    missing: tuple[Batch, ...]
    damaged: tuple[Path, ...]

    @property
    def missing_rows(self) -> int:
        """Distinct texts that must be encoded."""
        return sum(len(batch) for batch in self.missing)


class Planner:
    """Makes plans; remembers which shards were checked, so that each is read once in a process.

    Damage is said, once: somebody should know that a disk or a copy is not to be trusted.
    """

    def __init__(self) -> None:
        self._checked: dict[Shard, tuple[tuple[int, int], bool]] = {}
        self._named: set[Path] = set()

    def plan(self, folders: Sequence[Path], recipe: Recipe, keys: UInt64Array) -> EncodingPlan:
        """Find texts in the shards of folders, of whatever size, and cut the rest.

        Args:
            folders: of one side of the recipe; the first that has a text is read.
            keys: of the texts, ``(n, 2)``.
        """
        present, damaged = self._present(folders)
        while True:
            shards = tuple(present)
            among = np.concatenate([np.empty((0, 2), np.uint64), *present.values()])
            places = find(keys, among)
            used = _used(shards, places)
            broken = self._broken(used)
            if not broken:
                break
            damaged += [shard.manifest_path for shard in broken]
            for shard in broken:
                del present[shard]
        missing = tuple(_cut(keys, np.flatnonzero(places < 0), shard_rows(recipe)))
        vectors = None if missing else StoredVectors(*_compact(shards, used, places), recipe.dim)
        return EncodingPlan(keys, vectors, missing, tuple(damaged))

    def _present(self, folders: Sequence[Path]) -> tuple[dict[Shard, UInt64Array], list[Path]]:
        """Shards with their keys, by name, and the manifests of those that are damaged."""
        present: dict[Shard, UInt64Array] = {}
        damaged = []
        for path in (path for folder in folders for path in _files(folder)):
            if MANIFEST_NAME.fullmatch(path.name):
                try:
                    shard, keys = read_shard(path)
                except FileNotFoundError:
                    continue  # another process has just removed it
                except DamagedShardError as error:
                    self._say_damaged(path, error)
                    damaged.append(path)
                else:
                    present[shard] = keys
        return present, damaged

    def _broken(self, shards: Sequence[Shard]) -> list[Shard]:
        """Those whose vectors are not what was written."""
        with ThreadPoolExecutor() as pool:
            whole = list(pool.map(self._is_whole, shards))
        return [shard for shard, good in zip(shards, whole, strict=True) if not good]

    def _is_whole(self, shard: Shard) -> bool:
        """Checked once in a process, and again where the file has changed since."""
        stamp = _stamp(shard.path)
        known, whole = self._checked.get(shard, (None, False))
        if known != stamp:
            try:
                shard.check()
                whole = True
            except DamagedShardError as error:
                self._say_damaged(shard.manifest_path, error)
                whole = False
            self._checked[shard] = stamp, whole
        return whole

    def _say_damaged(self, manifest_path: Path, error: DamagedShardError) -> None:
        if manifest_path not in self._named:
            self._named.add(manifest_path)
            logger.warning("%s is damaged (%s): its texts are encoded again", manifest_path, error)

    def forget(self, manifest_path: Path) -> None:
        """Say damage of this shard again if there is any: it was mended."""
        self._named.discard(manifest_path)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _used(shards: Sequence[Shard], places: Int64Array) -> list[Shard]:
    """The shards that hold any of these places."""
    starts = np.cumsum([0, *(shard.rows for shard in shards)])
    numbers = np.unique(np.searchsorted(starts, places[places >= 0], side="right") - 1)
    return [shards[number] for number in numbers.tolist()]


def _compact(
    shards: Sequence[Shard], used: Sequence[Shard], places: Int64Array
) -> tuple[tuple[Shard, ...], Int64Array]:
    """The used shards, and places among them alone."""
    wanted = set(used)
    sizes = np.array([shard.rows for shard in shards], dtype=np.int64)
    unused = np.array([shard not in wanted for shard in shards], dtype=np.bool_)
    starts = np.cumsum(sizes) - sizes
    skipped = np.cumsum(sizes * unused)
    numbers = np.searchsorted(starts, places, side="right") - 1
    return tuple(used), places - skipped[numbers]


def shard_rows(recipe: Recipe) -> int:
    """Texts of a new shard."""
    return SHARD_ROWS if recipe.dtype == "float32" else HALF_SHARD_ROWS


def _cut(keys: UInt64Array, rows: Int64Array, most: int) -> Iterator[Batch]:
    """The distinct texts among some rows, in order, as many as a shard holds at a time."""
    distinct = rows[first_rows(keys[rows])]
    for start in range(0, len(distinct), most):
        some = distinct[start : start + most]
        yield Batch(keys[some], some)


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of change; zeros where there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
