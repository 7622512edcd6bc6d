"""Encoding plans (stored texts, and missing ones as shards) and the encoding of shards.

A plan depends only on the texts in their order and on the intact shards. Missing texts are split
into consecutive shards, and stay split in the same way after some of them are encoded.

All processes on the same store share the work. While one shard is encoded, the texts of the next
are tokenised and the vectors of the last are written. On a GPU some shards are launched ahead, so
that it never idles. A shard is leased before it is prepared. Shards leased by other processes come
last, and their lease is waited for.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from bench.store.shards import (
    MANIFEST_NAME,
    Shard,
    StoredVectors,
    discard_if_damaged,
    find_rows,
    first_occurrences,
    read_shard,
    shard_name,
)
from foundation.arrays import Float32Array, Int64Array, UInt64Array
from foundation.errors import BenchError
from foundation.files import FileLock
from retrievers.encoders.protocol import Callback
from retrievers.models.recipe import Recipe

EncodeShard = Callable[[Callback | None], Float32Array]

SHARD_ROWS = 2048  # one or two minutes for a small model on two cores
ENDPOINT_SHARD_ROWS = 512  # 16 connections with a request of 32 texts each, which a kill loses
HALF_SHARD_ROWS = 16_384  # in half precision: a second on a GPU, in many batches

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PendingShard:
    """Texts that become one shard: their keys, and their rows in the corpus or list of queries."""

    keys: UInt64Array
    rows: Int64Array
    tokens_sha256: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def name(self) -> str:
        """Name of the shard."""
        return shard_name(self.keys, self.tokens_sha256)


@dataclass(frozen=True, eq=False)
class EncodingPlan:
    """The stored vectors of some texts, and the shards to encode.

    Attributes:
        keys: keys of all texts, uint64 ``(n, 2)``.
        vectors: vectors of all texts; None while some are missing.
        missing: shards to encode, in the order of the texts.
    """

    keys: UInt64Array
    vectors: StoredVectors | None
    missing: tuple[PendingShard, ...]

    @property
    def missing_rows(self) -> int:
        """Number of distinct texts to encode."""
        return sum(len(batch) for batch in self.missing)


class Planner:
    """Maker of plans that remembers which shards it checked, so that a process reads each once."""

    def __init__(self) -> None:
        self._checked: dict[Shard, tuple[int, int]] = {}

    def plan(
        self, folder: Path, recipe: Recipe, keys: UInt64Array, tokens_sha256: str = ""
    ) -> EncodingPlan:
        """Find texts in the shards of a folder, and split the missing ones into shards.

        Damaged shards are removed.

        Args:
            folder: folder of one side of the recipe.
            recipe: that side.
            keys: keys of the texts, uint64 ``(n, 2)``.
            tokens_sha256: digest of the shards to read and to make.
        """
        present = dict(read_shards(folder, tokens_sha256))
        while True:
            shards = tuple(present)
            stored = np.concatenate([np.empty((0, 2), np.uint64), *present.values()])
            positions = find_rows(keys, stored)
            starts = np.cumsum([0, *(shard.rows for shard in shards)])
            numbers = np.searchsorted(starts, positions[positions >= 0], side="right") - 1
            used = [shards[number] for number in np.unique(numbers).tolist()]
            with ThreadPoolExecutor() as pool:
                intact = list(pool.map(self._is_intact, used))
            broken = [shard for shard, good in zip(used, intact, strict=True) if not good]
            if not broken:
                break
            for shard in broken:
                del present[shard]
        rows = np.flatnonzero(positions < 0)
        missing = tuple(_split_into_shards(keys, rows, rows_per_shard(recipe), tokens_sha256))
        vectors = None if missing else StoredVectors(shards, positions, recipe.dim)
        return EncodingPlan(keys, vectors, missing)

    def _is_intact(self, shard: Shard) -> bool:
        """Check a shard once per process, and again if its file changes. Remove a damaged one."""
        try:
            status = shard.path.stat()
            stamp = status.st_size, status.st_mtime_ns
            if self._checked.get(shard) != stamp:
                shard.check()
        except (FileNotFoundError, BenchError):
            discard_if_damaged(shard.manifest_path)
            return False
        self._checked[shard] = stamp
        return True


def read_shards(folder: Path, tokens_sha256: str) -> Iterator[tuple[Shard, UInt64Array]]:
    """Yield the shards in ``folder`` with the digest ``tokens_sha256`` and their keys, by name."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if MANIFEST_NAME.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another process has just removed it
                try:
                    shard, keys = read_shard(path)
                    if shard.manifest.tokens_sha256 == tokens_sha256:
                        yield shard, keys
                except BenchError:
                    discard_if_damaged(path)


def rows_per_shard(recipe: Recipe) -> int:
    """Return the number of texts of a new shard of ``recipe``."""
    if recipe.kind == "endpoint":
        return ENDPOINT_SHARD_ROWS
    return SHARD_ROWS if recipe.dtype == "float32" else HALF_SHARD_ROWS


def _split_into_shards(
    keys: UInt64Array, rows: Int64Array, most: int, tokens_sha256: str
) -> Iterator[PendingShard]:
    """Yield the distinct texts among some rows, in order, as shards of limited size."""
    distinct = rows[first_occurrences(keys[rows])]
    for start in range(0, len(distinct), most):
        some = distinct[start : start + most]
        yield PendingShard(keys[some], some, tokens_sha256)


@dataclass(frozen=True)
class ShardEncoder:
    """Encoding of pending shards, shared with other processes.

    Attributes:
        folder: folder of the shards. The lock file ``NAME.lock`` is the lease of a shard.
        prepare: reads and tokenises the texts of a shard in a thread, and returns a function that
            encodes them. The function may have an attribute ``launch``, called to begin without
            waiting, and ``in_flight``, the number of shards to launch ahead.
        write: writes a shard, in another thread.
        advance: called with the number of texts encoded, by this or another process.
        overlap: encode a shard while the last one is written.
    """

    folder: Path
    prepare: Callable[[PendingShard], EncodeShard]
    write: Callable[[PendingShard, Float32Array], None]
    advance: Callback | None = None
    overlap: bool = True

    def encode(self, batches: Sequence[PendingShard]) -> int:
        """Encode shards, or wait for other processes that encode them.

        Args:
            batches: shards to encode.

        Returns:
            The number of texts that this process encoded.

        Raises:
            OSError: the disk is full.
            BenchError: the encoder fails.
        """
        refused: list[PendingShard] = []
        encoded = 0
        with (
            ExitStack() as leases,
            ThreadPoolExecutor(1) as writer,
            closing(self._prepare_ahead(self._lease_free(batches, refused, leases))) as prepared,
        ):
            writing: Future[None] | None = None
            for batch, lease, encode in launch_ahead(prepared):
                logger.info("shard %s: %d texts", batch.name, len(batch))
                if writing and not self.overlap:
                    writing.result()
                vectors = encode(self.advance)
                encoded += len(batch)
                if writing:
                    writing.result()
                writing = writer.submit(self._write_and_release, batch, lease, vectors)
            if writing:
                writing.result()
        if waiting := [batch for batch in refused if not self._exists(batch)]:
            logger.warning(
                "waiting for another process that encodes %d shards of these texts", len(waiting)
            )
        # without holding a lease, so that no two processes wait for each other
        return encoded + sum(map(self._wait_for, refused))

    def _lease_free(
        self, batches: Sequence[PendingShard], refused: list[PendingShard], leases: ExitStack
    ) -> Iterator[tuple[PendingShard, FileLock]]:
        """Lease one shard after the other. Shards leased by others are added to ``refused``."""
        for batch in batches:
            if self._is_done(batch):
                continue
            lease = FileLock.try_acquire(self._lock_path(batch))
            if lease is None:
                refused.append(batch)
                continue
            leases.callback(lease.release)
            if self._is_done(batch):
                lease.release()
            else:
                yield batch, lease

    def _prepare_ahead(
        self, leased: Iterator[tuple[PendingShard, FileLock]]
    ) -> Generator[tuple[PendingShard, FileLock, EncodeShard]]:
        """Prepare each shard while the previous one is in use."""
        with ThreadPoolExecutor(1) as ahead:
            coming = ((*each, ahead.submit(self.prepare, each[0])) for each in leased)
            for now, _ in pairwise(chain(coming, [None])):
                if now:
                    yield now[0], now[1], now[2].result()

    def _write_and_release(
        self, batch: PendingShard, lease: FileLock, vectors: Float32Array
    ) -> None:
        with lease:
            self.write(batch, vectors)

    def _wait_for(self, batch: PendingShard) -> int:
        """Wait for a shard, and return the number of texts encoded here if its process died."""
        with FileLock.acquire(self._lock_path(batch)):
            if self._is_done(batch):
                return 0
            self.write(batch, self.prepare(batch)(self.advance))  # the other process has died
            return len(batch)

    def _lock_path(self, batch: PendingShard) -> Path:
        return self.folder / f"{batch.name}.lock"

    def _exists(self, batch: PendingShard) -> bool:
        return (self.folder / f"{batch.name}.json").exists()

    def _is_done(self, batch: PendingShard) -> bool:
        there = self._exists(batch)
        if there and self.advance:
            self.advance(len(batch))
        return there


def launch_ahead(
    prepared: Iterator[tuple[PendingShard, FileLock, EncodeShard]],
) -> Iterator[tuple[PendingShard, FileLock, EncodeShard]]:
    """Launch shards ahead, as many as each asks for, and yield them in order.

    Args:
        prepared: shards with their leases and encoding functions.
    """
    flying: deque[tuple[PendingShard, FileLock, EncodeShard]] = deque()
    for shard in prepared:
        launch: Callable[[], None] | None = getattr(shard[2], "launch", None)
        if launch:
            launch()
        flying.append(shard)
        if len(flying) >= getattr(shard[2], "in_flight", 1):
            yield flying.popleft()
    yield from flying
