"""Tasks on a Ray cluster: the vectors of one process, and clusters, nodes and workers that go."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.runner.engines import RayCluster
from foundation.errors import BenchError
from tests.support.engines import SHARDS, Bed, files_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[ray]'"),
]

SMALL = {"num_cpus": 1, "object_store_memory": 100 * 2**20}  # a node


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
    assert len(files) == 3 * SHARDS
    assert files == files_of(shards, undisturbed.workspace.vectors_dir)


def test_a_failed_task_is_reported_as_in_this_process(collection, card, tmp_path):
    bed = Bed(tmp_path, collection, card)
    (Path(card).parent / "checkpoint" / "model.safetensors").rename(tmp_path / "weights")
    with pytest.raises(BenchError, match=r"model\.safetensors"):
        encode_with(RayCluster(None, 1, "cpu", **SMALL), bed)
    (tmp_path / "weights").rename(Path(card).parent / "checkpoint" / "model.safetensors")


def test_a_missing_cluster_is_reported_with_what_to_type():
    with pytest.raises(BenchError, match=r"no Ray cluster at 127\.0\.0\.1:1: ") as refused:
        RayCluster("127.0.0.1:1", 2, "cpu")
    assert "ray start --head" in refused.value.hint
