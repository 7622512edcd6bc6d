"""The engine of several workers: shards and tiles are shared out, and what a lost worker leaves.

Every worker is given all shards, each beginning elsewhere: the leases of the store see to it that
no two encode the same. So workers of other commands may join and leave, and nothing is decided
here that a lost message could undo.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from bench.execution.corpus_worker import CorpusJob
from bench.execution.protocol import Advance, Encoded, TreeMerge
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from retrievers.encoders.clock import Clock
from retrievers.index.faiss_index import Hits

POLL_S = 0.5
PATIENCE_S = 120.0
LAST_ANSWER_S = 5.0
RETRY_S = 15.0  # until an idle worker tries again what others had: their leases tell who is lost
MOST_LOSSES = 3  # of one worker within `RECENT_S`, until it is given up
RECENT_S = 3600.0
LEAST_TILE_ROWS = 1 << 16  # fewer are searched before a worker has looked for their shards
TILES_PER_WORKER = 2  # so that a faster worker searches more

logger = logging.getLogger(__name__)


class Event(NamedTuple):
    """News of a worker: texts or rows that it is through with, an answer, an error, its end."""

    worker: int
    kind: Literal["advanced", "answered", "failed", "lost"]
    value: Any


class WorkerPool(Protocol):
    """Workers, by number; each does one call of a method of `Worker` at a time."""

    @property
    def size(self) -> int:
        """Number of workers."""
        ...

    @property
    def spreads_search(self) -> bool:
        """True where workers search with what this process does not have, such as other GPUs."""
        ...

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Send work to a worker, which is started where there is none."""
        ...

    def wait(self, timeout_s: float) -> Iterable[Event]:
        """Events since the last call; waits up to ``timeout_s`` for the first."""
        ...

    def end(self, worker: int) -> None:
        """End a worker, whatever it does. No event tells of it."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


class PooledEngine:
    """Works on a job with the workers of a pool.

    Args:
        tie_rank: of the whole corpus.
        patience_s: how long a worker may do nothing while others have nothing left to do. Then it
            is ended, and its shards are theirs.
    """

    def __init__(
        self, pool: WorkerPool, job: CorpusJob, tie_rank: Int64Array, patience_s: float = PATIENCE_S
    ) -> None:
        self.pool = pool
        self._job, self._tie_rank, self._patience_s = job, tie_rank, patience_s

    def encode(self, shards: Sequence[str], advance: Advance) -> Encoded:
        """Write shards into the store. Left is what no worker could do, or somebody else does."""
        left, clock, texts = dict.fromkeys(shards), Clock(), 0
        tried: dict[int, tuple[int, float]] = {}  # losses so far and the time, by idle worker

        def next_call(worker: int, _: Collection[int], losses: int) -> tuple[Any, ...] | None:
            losses_then, when = tried.get(worker, (-1, 0.0))
            if losses_then == losses and time.monotonic() < when + RETRY_S:
                return None  # what is left is in the hands of others
            tried[worker] = losses, time.monotonic()
            names = list(left)
            first = len(names) * worker // self.pool.size
            return self._job, names[first:] + names[:first]

        def take(worker: int, encoded: Encoded) -> None:
            nonlocal texts
            tried[worker] = tried[worker][0], time.monotonic()
            texts += encoded.texts
            clock.add(encoded.seconds, encoded.counts)
            for name in encoded.shards:
                left.pop(name, None)

        self._share("encode", next_call, take, lambda: not left, advance)
        return Encoded(frozenset(shards) - left.keys(), texts, clock.seconds, clock.counts)

    def tiles(self, rows: int) -> list[range]:
        """Some tiles for each worker, unless they are few rows or the workers bring nothing."""
        count = self.pool.size * TILES_PER_WORKER if self.pool.spreads_search else 1
        step = max(LEAST_TILE_ROWS, -(-rows // count))
        return [range(first, min(first + step, rows)) for first in range(0, rows, step)]

    def search(
        self, tiles: Sequence[range], queries: Float32Array, k: int, advance: Advance
    ) -> Hits:
        """The best documents of the tiles; each is searched by one worker."""
        left, at_work = list(tiles), dict[int, range]()
        merged = TreeMerge(self._tie_rank, k)

        def next_call(worker: int, busy: Collection[int], _: int) -> tuple[Any, ...] | None:
            taken = [at_work[other] for other in busy]
            free = [tile for tile in left if tile not in taken]
            if not free:
                return None
            at_work[worker] = free[0]
            return self._job, free[:1], queries, k

        def take(worker: int, hits: Hits) -> None:
            left.remove(at_work[worker])
            merged.add(hits)

        self._share("search", next_call, take, lambda: not left, advance)
        if left:
            raise BenchError(
                f"all {self.pool.size} workers were lost while they searched",
                "type the same command again: the vectors are kept; fewer --workers take less "
                "memory",
            )
        return merged.hits(len(queries))

    def _share(
        self,
        method: str,
        next_call: Callable[[int, Collection[int], int], tuple[Any, ...] | None],
        take: Callable[[int, Any], None],
        is_done: Callable[[], bool],
        advance: Advance,
    ) -> None:
        """Keep the workers busy until all is done, or nobody is left who could do it.

        Args:
            next_call: arguments for a worker without work, None for nothing; called with the busy
                workers, and how often workers have been lost so far.
            take: takes an answer.

        Raises:
            Exception: what the first worker failed with, where none is left.
        """
        heard: dict[int, float] = {}  # busy workers: when each was last heard of
        losses: list[tuple[int, float]] = []  # workers, and when each was lost
        failures: dict[int, Exception] = {}
        while not is_done():
            able = self._able(losses, failures)
            for worker in able:
                if worker not in heard:
                    call = next_call(worker, heard.keys(), len(losses) + len(failures))
                    if call is not None:
                        heard[worker] = time.monotonic()
                        self.pool.call(worker, method, *call)
            if not heard:
                break
            for worker, kind, value in self.pool.wait(POLL_S):
                heard[worker] = time.monotonic()
                if kind == "advanced":
                    advance(value)
                    continue
                del heard[worker]
                if kind == "answered":
                    take(worker, value)
                elif kind == "failed":
                    failures[worker] = value
                    logger.warning("worker %d failed: %s", worker, value)
                else:
                    losses.append((worker, time.monotonic()))
                    logger.warning("worker %d was lost: %s", worker, value)
            for worker in self._stragglers(heard, able):
                logger.warning(
                    "worker %d has done nothing for %.0f s, and others wait: it is ended",
                    worker,
                    self._patience_s,
                )
                self.pool.end(worker)
                losses.append((worker, time.monotonic()))
                del heard[worker]
        self._dismiss(heard, take)
        if failures and not is_done():
            raise next(iter(failures.values()))

    def _able(self, losses: Sequence[tuple[int, float]], failures: Collection[int]) -> list[int]:
        """Workers that may get work: none that has failed, or is lost again and again."""
        since = time.monotonic() - RECENT_S
        often = Counter(worker for worker, when in losses if when > since)
        numbers = range(self.pool.size)
        return [n for n in numbers if n not in failures and often[n] <= MOST_LOSSES]

    def _dismiss(self, heard: dict[int, float], take: Callable[[int, Any], None]) -> None:
        """Take the last answers of workers for whom nothing is left; end those that give none."""
        end = time.monotonic() + LAST_ANSWER_S
        while heard and time.monotonic() < end:
            for worker, kind, value in self.pool.wait(POLL_S):
                if kind != "advanced":
                    del heard[worker]
                if kind == "answered":
                    take(worker, value)
        for worker in heard:
            self.pool.end(worker)

    def _stragglers(self, heard: dict[int, float], able: Sequence[int]) -> list[int]:
        """Workers that have done nothing for long, while others have nothing left to do."""
        if all(worker in heard for worker in able):
            return []
        limit = time.monotonic() - self._patience_s
        return [worker for worker, last in heard.items() if last < limit]
