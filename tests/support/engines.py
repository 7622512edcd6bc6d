"""A collection of some shards, a model for it, and engines of every kind over one store."""

import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.execution.local import LocalEngine
from bench.execution.opening import engine_for
from bench.execution.pool import Event, PooledEngine, WorkerPool
from bench.execution.processes import ProcessPool, environments
from bench.store.planning import SHARD_ROWS
from bench.workspace import LoadedModel, OpenDataset, Workspace
from tests.support.collections import write_collection
from tests.support.tiny_checkpoints import WORDS, write_bert, write_card

SHARDS = 5


def several_shards(folder: Path, shards: int = SHARDS, seed: int = 0) -> Path:
    """A collection whose documents fill some shards; many have the vector of another."""
    rng = np.random.default_rng(seed)
    rows = shards * SHARD_ROWS - SHARD_ROWS // 2
    drawn = rng.choice(WORDS, (rows, 6))
    documents = {
        f"d{row}": (str(row % 7), f"{' '.join(words)} {row}") for row, words in enumerate(drawn)
    }
    queries = {f"q{n}": " ".join(rng.choice(WORDS, 3)) for n in range(9)}
    return write_collection(folder, documents, queries, {(name, "d1"): 1 for name in queries})


def tiny_bert(folder: Path) -> Path:
    """The card of a checkpoint with random weights, in ``folder``."""
    write_bert(folder / "checkpoint", num_hidden_layers=6)  # a shard takes long enough to be met
    return write_card(
        folder / "tiny.toml",
        name="tiny",
        checkpoint=str(folder / "checkpoint"),
        pooling="mean",
        normalize=True,
        max_query_tokens=16,
        max_document_tokens=16,
    )


class Bed:
    """A collection and a model, opened, with a cache of its own below ``folder``."""

    def __init__(self, folder: Path, collection: Path, model: str) -> None:
        self.space = Workspace(cache_dir=folder / "cache", device="cpu")
        self.opened: OpenDataset = self.space.open(str(collection))
        self.model: LoadedModel = self.space.load(model)
        self.encoder = self.model.on(self.opened.name).encoder
        assert self.encoder is not None
        self.corpus = self.opened.dataset.corpus

    @property
    def store(self):
        return self.space.store

    def missing(self) -> list[str]:
        return [batch.name for batch in self.store.plan(self.encoder, self.corpus).missing]

    def local(self) -> LocalEngine:
        return LocalEngine(self.corpus, self.encoder, self.store)

    def pooled(self, pool: WorkerPool, patience_s: float = 60.0) -> PooledEngine:
        engine = engine_for(pool, self.space, self.opened, self.model)
        assert engine is not None
        return PooledEngine(pool, engine._job, self.corpus.tie_rank, patience_s)

    def queries(self) -> np.ndarray:
        return self.store.queries(self.encoder, self.opened.dataset.queries.texts)

    def vectors(self) -> np.ndarray:
        stored = self.store.plan(self.encoder, self.corpus).vectors
        assert stored is not None
        return stored.rows(np.arange(len(self.corpus)))


@contextmanager
def two_processes() -> Iterator[ProcessPool]:
    """Two workers of one thread each, which end with the block."""
    pool = ProcessPool(environments(workers=2, threads=2, gpus=0), spreads_search=True)
    try:
        yield pool
    finally:
        pool.close()


class Disturbed:
    """A pool to whose busy workers something is done in the middle of a shard, so many times."""

    def __init__(self, pool: WorkerPool, act: Callable[[int], object], times: int) -> None:
        self._pool, self._act, self.times_left = pool, act, times
        self._through: dict[int, int] = {}  # texts, by worker
        self._disturbed: set[int] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._pool, name)

    def wait(self, timeout_s: float) -> Iterator[Event]:
        for event in self._pool.wait(timeout_s):
            if event.kind == "advanced":
                self._disturb(event.worker, event.value)
            if event.kind == "lost":
                self._through.pop(event.worker, None)
                self._disturbed.discard(event.worker)
            yield event

    def _disturb(self, worker: int, texts: int) -> None:
        through = self._through[worker] = self._through.get(worker, 0) + texts
        half = SHARD_ROWS // 8 < through % SHARD_ROWS < SHARD_ROWS // 2
        if half and self.times_left and worker not in self._disturbed:
            self.times_left -= 1
            self._disturbed.add(worker)
            self._act(worker)


def kill(pool: ProcessPool) -> Callable[[int], None]:
    return lambda worker: os.kill(pool.pids[worker], signal.SIGKILL)


def files_of(shards: Collection[str], store: Path) -> dict[str, bytes]:
    """Files of shards by name: what must not depend on who encoded them."""
    files = [path for path in sorted(store.glob("*/*")) if path.stem in shards]
    return {path.name: path.read_bytes() for path in files if path.suffix != ".lock"}
