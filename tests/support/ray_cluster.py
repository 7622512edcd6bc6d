"""Ray on this machine, small: clusters for tests, and actors on them."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray.cluster_utils import Cluster

from bench.execution.actors import ActorPool, connect

SMALL = {"num_cpus": 1, "object_store_memory": 100 * 2**20}  # a node


@contextmanager
def two_actors(address: str | None = None) -> Iterator[ActorPool]:
    """Two workers with a processor each, on a cluster of their own where none is named."""
    own = {} if address else {**SMALL, "num_cpus": 2}
    pool = ActorPool(connect(address, **own), 2, cpus=1, gpus=0)
    try:
        yield pool
    finally:
        pool.close()


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster of one node, its head, with one processor."""
    nodes = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    try:
        yield nodes
    finally:
        nodes.shutdown()
