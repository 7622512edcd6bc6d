"""Nodes and heads of Ray clusters that are lost, and clusters that are not there."""

import time

import pytest

from tests.support import s3
from tests.support.collections import Bench, files_below, finish
from tests.support.engines import Bed, files_of, several_shards

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

from bench.execution.actors import actor_pool
from foundation.errors import BenchError
from tests.support.ray_cluster import SMALL, cluster, two_actors


def test_a_node_that_is_removed_costs_what_it_had_in_hand(
    undisturbed, collection, card, tmp_path, monkeypatch
):
    monkeypatch.setattr("bench.execution.pool.RETRY_S", 1.0)
    bed = Bed(tmp_path, collection, card)
    shards = bed.missing()
    with cluster() as nodes:
        removed = nodes.add_node(**SMALL)
        nodes.wait_for_nodes()
        with two_actors(nodes.address) as pool:
            left = [removed]

            def advance(_):
                if left:
                    nodes.remove_node(left.pop())

            encoded = bed.pooled(pool).encode(shards, advance)
    assert left == []
    assert encoded.shards == set(shards)
    assert files_of(shards, bed.space.vectors_dir) == files_of(
        shards, undisturbed.space.vectors_dir
    )


def test_a_head_that_is_lost_is_told_and_the_same_command_goes_on_with_another(card, tmp_path):
    bench, collection = Bench(tmp_path), several_shards(tmp_path / "words", shards=12)
    words = ("run", collection, "--model", card, "--device", "cpu", "--engine", "ray")
    with cluster() as nodes:
        run = bench.start(*words, "--workers", 1, "--address", nodes.address)
        wait_for_a_shard(bench, run)
    stopped = finish(run)
    assert stopped.code == 2
    assert "is gone\n  try: start it, and type the same command again" in stopped.stderr
    kept = len(list(bench.cache.glob("vectors/*/*.json")))
    assert kept < 12
    with cluster() as nodes:
        done = finish(bench.start(*words, "--workers", 1, "--address", nodes.address))
    assert done.code == 0, done.stderr
    bed = Bed(tmp_path, collection, card)
    assert bed.missing() == []


def test_nodes_with_caches_of_their_own_share_vectors_below_a_url(
    undisturbed, collection, card, server, bench, monkeypatch, tmp_path
):
    s3.allow(monkeypatch, server.address)
    folders = [tmp_path / name for name in ("driver", "head", "node")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders[1]))
    with cluster() as nodes:
        nodes.add_node(**SMALL, env_vars={"XDG_CACHE_HOME": str(folders[2])})
        nodes.wait_for_nodes()
        monkeypatch.setenv("XDG_CACHE_HOME", str(folders[0]))
        url = f"s3://bucket/{tmp_path.name}"
        words = ("run", collection, "--model", card, "--device", "cpu", "--engine", "ray")
        words += ("--workers", 2, "--address", nodes.address, "--cache-dir", url)
        done = finish(bench.start(*words))
    assert done.code == 0, done.stderr
    assert all(list(folder.rglob("*.f32")) for folder in folders)
    stored = files_below(server.folder / "bucket" / tmp_path.name)
    ours = {path.name: path.read_bytes() for path in stored if path.suffix == ".f32"}
    theirs = files_below(undisturbed.space.vectors_dir)
    assert ours.items() >= {p.name: p.read_bytes() for p in theirs if p.suffix == ".f32"}.items()


def wait_for_a_shard(bench, process, limit_s=90.0):
    end = time.monotonic() + limit_s
    while not list(bench.cache.glob("vectors/*/*.f32")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no shard was written"
        time.sleep(0.05)


def test_a_cluster_that_is_not_there_is_told_with_what_to_type():
    with pytest.raises(BenchError, match=r"no Ray cluster at 127\.0\.0\.1:1: ") as refused:
        actor_pool("127.0.0.1:1", 2, None)
    assert "ray start --head" in refused.value.hint


def test_more_gpus_than_any_node_has_are_refused_before_anything_waits_for_them():
    with (
        cluster() as nodes,
        pytest.raises(BenchError, match="no node of this cluster has 2 GPUs: all have 0"),
    ):
        actor_pool(nodes.address, 2, 2.0)
