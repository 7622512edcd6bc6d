"""Encode what is missing, shard by shard, together with whoever works on the same store.

Texts of the next shard are tokenised and vectors of the last one written while one is encoded. On
a GPU some shards are launched before the first of them is waited for, so that it never idles
between two. A shard is leased before it is prepared; what another process has leased comes last,
when it is waited for.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

from bench.store.keys import name_of
from foundation.arrays import Float32Array, Int64Array, UInt64Array
from foundation.locks import FileLock, FileLocks

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

    @property
    def name(self) -> str:
        """Name of the shard."""
        return name_of(self.keys)


@dataclass(frozen=True)
class ShardWork:
    """The work of turning batches into shards.

    Attributes:
        leases: by name of the shard; whoever has one may write the shard.
        is_there: tells whether the shard of a batch is written.
        prepare: reads and tokenises a batch, and returns what encodes it; called in a thread.
            What it returns may have ``launch()``, which begins without waiting, and
            ``in_flight``, how many shards should be launched at a time.
        keep: writes a shard; called in another.
        advance: called with the number of texts that are encoded here.
        advance_by_others: called with the number of texts that another process has encoded.
    """

    leases: FileLocks
    is_there: Callable[[Batch], bool]
    prepare: Callable[[Batch], Encode]
    keep: Callable[[Batch, Float32Array], None]
    advance: Advance | None = None
    advance_by_others: Advance | None = None

    def do(self, batches: Sequence[Batch]) -> int:
        """Make all of these shards, or wait for them.

        Returns:
            How many texts were encoded here, not by another process.

        Raises:
            OSError: no space is left.
            BenchError: the encoder fails.
        """
        encoded, refused = self.do_free(batches)
        if waiting := [batch for batch in refused if not self.is_there(batch)]:
            logger.warning(
                "waiting for another process: it encodes %d shards of these texts", len(waiting)
            )
        for batch in refused:  # without another lease in hand, so that none waits for the other
            encoded += self._wait_for(batch)
        return encoded

    def do_free(self, batches: Sequence[Batch]) -> tuple[int, list[Batch]]:
        """Make those of the shards that no other process has leased.

        Returns:
            How many texts were encoded here, and the shards that others had leased.

        Raises:
            OSError: no space is left.
            BenchError: the encoder fails.
        """
        refused: list[Batch] = []
        encoded = 0
        with (
            ExitStack() as held,
            ThreadPoolExecutor(1) as writer,
            closing(self._prepared(self._free(batches, refused, held))) as prepared,
        ):
            writing: Future[None] | None = None
            for batch, lease, encode in launched(prepared):
                logger.info("shard %s: %d texts", batch.name, len(batch))
                vectors = encode(self.advance)
                encoded += len(batch)
                if writing:
                    writing.result()
                writing = writer.submit(self._finish, batch, lease, vectors)
            if writing:
                writing.result()
        return encoded, refused

    def _free(
        self, batches: Sequence[Batch], refused: list[Batch], held: ExitStack
    ) -> Iterator[tuple[Batch, FileLock]]:
        """Lease one batch after the other; what others have leased goes to ``refused``."""
        for batch in batches:
            if self._is_done(batch):
                continue
            lease = self.leases.take(batch.name)
            if lease is None:
                refused.append(batch)
                continue
            held.callback(lease.release)
            if self._is_done(batch):
                lease.release()
            else:
                yield batch, lease

    def _prepared(
        self, leased: Iterator[tuple[Batch, FileLock]]
    ) -> Generator[tuple[Batch, FileLock, Encode]]:
        """With what encodes each; the next one is prepared while one is in use."""
        with ThreadPoolExecutor(1) as ahead:
            last: tuple[Batch, FileLock, Future[Encode]] | None = None
            for batch, lease in leased:
                coming = batch, lease, ahead.submit(self.prepare, batch)
                if last:
                    yield last[0], last[1], last[2].result()
                last = coming
            if last:
                yield last[0], last[1], last[2].result()

    def _finish(self, batch: Batch, lease: FileLock, vectors: Float32Array) -> None:
        with lease:
            self.keep(batch, vectors)

    def _wait_for(self, batch: Batch) -> int:
        """Wait for a shard; returns how many texts had to be encoded here after all."""
        lease = self.leases.wait(batch.name)
        try:
            if self._is_done(batch):
                return 0
            self.keep(batch, self.prepare(batch)(self.advance))  # the other process has died
            return len(batch)
        finally:
            lease.release()

    def _is_done(self, batch: Batch) -> bool:
        there = self.is_there(batch)
        if there and self.advance_by_others:
            self.advance_by_others(len(batch))
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
