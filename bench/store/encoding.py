"""Encode what is missing, shard by shard, together with whoever works on the same store.

Texts of the next shard are tokenised and vectors of the last one written while one is encoded. On
a GPU some shards are launched before the first of them is waited for, so that it never idles
between two. A shard is locked before it is prepared; what another process has locked comes last,
when it is waited for.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from bench.store.keys import name_of
from foundation.arrays import Float32Array, Int64Array, UInt64Array
from foundation.locks import FileLock

Advance = Callable[[int], None]
Encode = Callable[[Advance | None], Float32Array]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts that become one shard: their keys, and their rows where they are read from."""

    keys: UInt64Array
    rows: Int64Array

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class ShardWork:
    """The work of turning batches into shards in a folder.

    Attributes:
        prepare: reads and tokenises a batch, and returns what encodes it; called in a thread.
            What it returns may have ``launch()``, which begins without waiting, and
            ``in_flight``, how many shards should be launched at a time.
        keep: writes a shard; called in another.
        advance: called with the number of texts done, here or by another process.
    """

    folder: Path
    prepare: Callable[[Batch], Encode]
    keep: Callable[[Batch, Float32Array], None]
    advance: Advance | None

    def do(self, batches: Sequence[Batch]) -> int:
        """Make all of these shards, or wait for them.

        Returns:
            How many texts were encoded here, not by another process.

        Raises:
            OSError: no space is left.
            BenchError: the encoder fails.
        """
        refused: list[Batch] = []
        encoded = 0
        with (
            ExitStack() as locks,
            ThreadPoolExecutor(1) as writer,
            closing(self._prepared(self._free(batches, refused, locks))) as prepared,
        ):
            writing: Future[None] | None = None
            for batch, lock, encode in launched(prepared):
                vectors = encode(self.advance)
                encoded += len(batch)
                if writing:
                    writing.result()
                writing = writer.submit(self._finish, batch, lock, vectors)
            if writing:
                writing.result()
        if refused:
            logger.warning(
                "waiting for another process: it encodes %d shards of these texts", len(refused)
            )
        for batch in refused:  # without another lock in hand, so that none waits for the other
            encoded += self._wait_for(batch)
        return encoded

    def _free(
        self, batches: Sequence[Batch], refused: list[Batch], locks: ExitStack
    ) -> Iterator[tuple[Batch, FileLock]]:
        """Lock one batch after the other; what others have locked goes to ``refused``."""
        for batch in batches:
            lock = FileLock.take(self._path(batch, ".lock"))
            if lock is None:
                refused.append(batch)
                continue
            locks.callback(lock.release)
            if self._is_there(batch):
                lock.release()
            else:
                yield batch, lock

    def _prepared(
        self, locked: Iterator[tuple[Batch, FileLock]]
    ) -> Generator[tuple[Batch, FileLock, Encode]]:
        """With what encodes each; the next one is prepared while one is in use."""
        with ThreadPoolExecutor(1) as ahead:
            last: tuple[Batch, FileLock, Future[Encode]] | None = None
            for batch, lock in locked:
                coming = batch, lock, ahead.submit(self.prepare, batch)
                if last:
                    yield last[0], last[1], last[2].result()
                last = coming
            if last:
                yield last[0], last[1], last[2].result()

    def _finish(self, batch: Batch, lock: FileLock, vectors: Float32Array) -> None:
        self.keep(batch, vectors)
        lock.release()

    def _wait_for(self, batch: Batch) -> int:
        """Wait for a shard; returns how many texts had to be encoded here after all."""
        with FileLock.wait(self._path(batch, ".lock")):
            if self._is_there(batch):
                return 0
            self.keep(batch, self.prepare(batch)(self.advance))  # the other process has died
            return len(batch)

    def _path(self, batch: Batch, suffix: str) -> Path:
        return self.folder / f"{name_of(batch.keys)}{suffix}"

    def _is_there(self, batch: Batch) -> bool:
        there = self._path(batch, ".json").exists()
        if there and self.advance:
            self.advance(len(batch))
        return there


def launched(
    prepared: Iterator[tuple[Batch, FileLock, Encode]],
) -> Iterator[tuple[Batch, FileLock, Encode]]:
    """Launch what can be, as many shards ahead as each says; in order."""
    flying: deque[tuple[Batch, FileLock, Encode]] = deque()
    for shard in prepared:
        launch: Callable[[], None] | None = getattr(shard[2], "launch", None)
        if launch:
            launch()
        flying.append(shard)
        if len(flying) >= getattr(shard[2], "in_flight", 1):
            yield flying.popleft()
    yield from flying
