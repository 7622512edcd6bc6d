"""Ray on this machine, small: a cluster for one test, and actors on it."""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.engines.actors import ActorPool, connect

OBJECTS = 100 * 2**20  # bytes of the object store of a node


@contextmanager
def two_actors() -> Iterator[ActorPool]:
    """Two workers with a processor each, on a cluster that ends with the block."""
    pool = ActorPool(connect(None, num_cpus=2, object_store_memory=OBJECTS), 2, cpus=1, gpus=0)
    try:
        yield pool
    finally:
        pool.close()
