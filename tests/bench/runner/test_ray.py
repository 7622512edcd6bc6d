"""Tasks on a Ray cluster: the vectors of one process, and clusters, nodes and workers that go."""

import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.runner.engines import RayCluster
from foundation.errors import BenchError
from tests.support.collections import Bench, finish
from tests.support.engines import Bed, files_of, several_shards

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[ray]'"),
]

SMALL = {"num_cpus": 1, "object_store_memory": 100 * 2**20}  # a node


@contextmanager
def cluster():
    """A cluster of one node, its head, with one processor."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    try:
        yield nodes
    finally:
        nodes.shutdown()


def encode_with(ray_cluster, bed, advance=None):
    with ray_cluster.encoding(bed.workspace, bed.work) as spread:
        bed.encoder = spread(bed.model).for_dataset(bed.opened.name).encoder
        return bed.encode(advance)


def test_tasks_return_the_vectors_of_one_process_byte_by_byte(
    undisturbed, collection, card, tmp_path
):
    bed, advanced = Bed(tmp_path, collection, card), []
    shards = bed.missing()
    ray_cluster = RayCluster(None, 2, "cpu", **{**SMALL, "num_cpus": 2})
    assert encode_with(ray_cluster, bed, advanced.append).encoded == len(bed.corpus)
    assert sum(advanced) == len(bed.corpus) < bed.encoder.timer.counts["tokens"]
    files = files_of(shards, bed.workspace.vectors_dir)
    assert len(files) == 15
    assert files == files_of(shards, undisturbed.workspace.vectors_dir)


def test_a_removed_node_repeats_only_its_current_task(undisturbed, collection, card, tmp_path):
    bed = Bed(tmp_path, collection, card)
    shards = bed.missing()
    with cluster() as nodes:
        added = [nodes.add_node(**SMALL) for _ in range(2)]
        nodes.wait_for_nodes()
        ray_cluster, removed = RayCluster(nodes.address, 3, "cpu"), []
        own = ray_cluster.ray.get_runtime_context().get_node_id()  # this process ends with it

        def advance(_):
            if not removed:
                removed.append(next(node for node in added if node.node_id != own))
                nodes.remove_node(removed[0])

        encode_with(ray_cluster, bed, advance)
    assert removed
    assert files_of(shards, bed.workspace.vectors_dir) == files_of(
        shards, undisturbed.workspace.vectors_dir
    )


def test_a_failed_task_is_reported_as_in_this_process(collection, card, tmp_path):
    bed = Bed(tmp_path, collection, card)
    (Path(card).parent / "checkpoint" / "model.safetensors").rename(tmp_path / "weights")
    with pytest.raises(BenchError, match=r"model\.safetensors"):
        encode_with(RayCluster(None, 1, "cpu", **SMALL), bed)
    (tmp_path / "weights").rename(Path(card).parent / "checkpoint" / "model.safetensors")


def test_a_lost_head_node_is_reported_and_the_same_command_continues_on_another(card, tmp_path):
    bench, collection = Bench(tmp_path), several_shards(tmp_path / "words", shards=12)
    words = ("run", collection, "--model", card, "--device", "cpu", "--engine", "ray")
    with cluster() as nodes:
        run = bench.start(*words, "--workers", 1, "--address", nodes.address)
        end = time.monotonic() + 90
        while not list(bench.cache.glob("vectors/*/*.f32")):
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < end, "no shard was written"
            time.sleep(0.05)
    stopped = finish(run)
    if stopped.code == 1:  # Ray ends a process that is in the middle of a request to the head
        assert "GCS may have been killed" in stopped.stderr
    else:
        assert stopped.code == 2, stopped.stderr
        assert "is gone\n  Repeat the command" in stopped.stderr
    assert len(list(bench.cache.glob("vectors/*/*.json"))) < 12
    with cluster() as nodes:
        done = finish(bench.start(*words, "--workers", 1, "--address", nodes.address))
    assert done.code == 0, done.stderr
    assert Bed(tmp_path, collection, card).missing() == []


def test_a_missing_cluster_is_reported_with_what_to_type():
    with pytest.raises(BenchError, match=r"no Ray cluster at 127\.0\.0\.1:1: ") as refused:
        RayCluster("127.0.0.1:1", 2, "cpu")
    assert "ray start --head" in refused.value.hint
