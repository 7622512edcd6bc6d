"""Tasks on a Ray cluster: the vectors and errors of one process, and a missing cluster."""

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


def test_tasks_return_the_vectors_and_the_error_of_one_process(collection, card, tmp_path):
    bed, advanced = Bed(tmp_path / "cluster", collection, card), []
    shards, weights = bed.missing(), Path(card).parent / "checkpoint" / "model.safetensors"
    ray_cluster = RayCluster(None, 2, "cpu", num_cpus=2, object_store_memory=100 * 2**20)
    with ray_cluster.encoding(bed.workspace, bed.work) as spread:
        bed.encoder = spread(bed.model).for_dataset(bed.opened.name).encoder
        weights.rename(tmp_path / "weights")
        with pytest.raises(BenchError, match=r"model\.safetensors"):
            bed.encode()
        (tmp_path / "weights").rename(weights)
        assert bed.encode(advanced.append).encoded == len(bed.corpus)
    assert sum(advanced) == len(bed.corpus) < bed.encoder.timer.counts["tokens"]
    files = files_of(shards, bed.workspace.vectors_dir)
    assert len(files) == 3 * SHARDS
    alone = Bed(tmp_path / "alone", collection, card)
    alone.encode_on_one_thread()
    assert files == files_of(shards, alone.workspace.vectors_dir)


def test_a_missing_cluster_is_reported_with_what_to_type():
    with pytest.raises(BenchError, match=r"no Ray cluster at 127\.0\.0\.1:1: ") as refused:
        RayCluster("127.0.0.1:1", 2, "cpu")
    assert "ray start --head" in refused.value.hint
