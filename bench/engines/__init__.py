"""Engines: who encodes documents, besides this process.

`Engine` is the interface. `children.Children` are processes of this machine that fill the same
store: its leases schedule, so they need no messages. `ray.RayCluster` runs tasks, each of which
returns the vectors of one shard. Read this file first, then either of the two.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from bench.evaluate.pipeline import CollectionName
from bench.evaluate.retrieval import LoadedModel
from bench.workspace import Workspace
from retrievers.models.model import Model

Spread = Callable[[LoadedModel], LoadedModel]


@dataclass(frozen=True)
class Work:
    """A corpus to encode: a collection and a model, as another process finds them; picklable."""

    collection: CollectionName
    model: Model


class Engine(Protocol):
    """Encodes together with this process."""

    @property
    def machines(self) -> int:
        """How many times as fast as this process it encodes."""
        ...

    @contextmanager
    def encoding(self, space: Workspace, work: Sequence[Work]) -> Iterator[Spread]:
        """Help with the work while the block lasts.

        Returns:
            What makes of a loaded model one whose documents the engine encodes.
        """
        ...


class ThisProcess:
    """No help."""

    machines = 1

    @contextmanager
    def encoding(self, space: Workspace, work: Sequence[Work]) -> Iterator[Spread]:
        """Do nothing."""
        yield lambda model: model


def worker_count(asked: int, processors: int, gpus: int) -> int:
    """Number of workers: as asked; for 0 one for each GPU, or for every eight processors."""
    return asked or gpus or max(1, processors // 8)
