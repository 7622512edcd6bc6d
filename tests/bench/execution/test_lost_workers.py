"""Workers that are killed, stopped or out of room: the work is done, and almost none of it twice.

Real processes, a real model. What is encoded twice is counted: texts that workers went through,
beyond those that there are.
"""

import os
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from bench.execution import pool as pool_module
from bench.store.planning import SHARD_ROWS
from tests.bench.cli.test_full_disk import limited
from tests.support.collections import Bench, finish
from tests.support.engines import Bed, Disturbed, files_of, kill, several_shards

K = 10


def encode_disturbed(bed, pool, patience_s=60.0):
    """Encode all shards; returns their names, and how many texts were encoded twice."""
    shards, through = bed.missing(), []
    encoded = bed.pooled(pool, patience_s).encode(shards, through.append)
    assert encoded.shards == set(shards)
    return shards, sum(through) - len(bed.corpus)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_worker_costs_at_most_its_shard_and_changes_no_byte(
    kills, processes, card, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(pool_module, "MOST_LOSSES", kills)
    collection = several_shards(tmp_path / "words", shards=max(5, kills))
    alone, bed = (Bed(tmp_path / name, collection, card) for name in ("alone", "bed"))
    disturbed = Disturbed(processes, kill(processes), kills)
    shards, twice = encode_disturbed(bed, disturbed)
    assert disturbed.times_left == 0
    assert 0 < twice <= kills * SHARD_ROWS
    encode_disturbed(alone, processes)
    store, undisturbed = bed.space.vectors_dir, alone.space.vectors_dir
    assert files_of(shards, store) == files_of(shards, undisturbed)
    lost = [record.message for record in caplog.records if "was lost: killed" in record.message]
    assert len(lost) == kills


def test_a_worker_that_stops_is_ended_once_the_others_have_nothing_left(
    undisturbed, processes, collection, card, tmp_path, caplog
):
    bed = Bed(tmp_path, collection, card)
    stopped = Disturbed(processes, lambda n: os.kill(processes.pids[n], signal.SIGSTOP), 1)
    shards, twice = encode_disturbed(bed, stopped, patience_s=5.0)
    assert 0 < twice <= SHARD_ROWS
    assert files_of(shards, bed.space.vectors_dir) == files_of(
        shards, undisturbed.space.vectors_dir
    )
    assert "has done nothing for 5 s, and others wait: it is ended" in caplog.text


def test_workers_that_are_lost_again_and_again_are_given_up_and_the_rest_is_left(
    processes, collection, card, tmp_path, monkeypatch
):
    monkeypatch.setattr(pool_module, "MOST_LOSSES", 0)
    bed = Bed(tmp_path, collection, card)
    shards = bed.missing()
    disturbed = Disturbed(processes, kill(processes), 2)
    encoded = bed.pooled(disturbed).encode(shards, lambda texts: None)
    left = set(shards) - encoded.shards
    assert left == set(bed.missing()) != set()
    stored = bed.store.documents(bed.encoder, bed.corpus, bed.store.plan(bed.encoder, bed.corpus))
    assert stored.shape[0] == len(bed.corpus)


def test_tiles_of_a_lost_worker_are_searched_by_another(undisturbed, processes):
    bed, queries = undisturbed, undisturbed.queries()
    tiles = [range(first, first + 1024) for first in range(0, len(bed.corpus), 1024)]
    expected = bed.local().search(tiles, queries, K, lambda rows: None)
    engine, kills = bed.pooled(processes), [0, 1, 0]

    def advance(_):
        if kills:
            os.kill(processes.pids[kills.pop()], signal.SIGKILL)

    hits = engine.search(tiles, queries, K, advance)
    assert (hits.rows == expected.rows).all()
    assert (hits.scores == expected.scores).all()


def run_with_workers(bench, collection, card, **popen):
    words = ("run", collection, "--model", card, "--workers", 2, "--device", "cpu")
    return bench.start(*words, **popen)


def test_a_full_disk_is_told_once_in_words_and_the_same_command_goes_on(
    collection, card, tmp_path, undisturbed
):
    bench = Bench(tmp_path)
    assert bench("run", collection, "--model", "bm25").code == 0  # the corpus is built
    shard_bytes = SHARD_ROWS * 32 * 4
    full = finish(
        run_with_workers(bench, collection, card, preexec_fn=partial(limited, shard_bytes - 1))
    )
    assert full.code == 2
    assert "Traceback" not in full.stderr
    assert re.search(r"error: \S*\.f32: File too large\n  try: make room", full.stderr)
    done = finish(run_with_workers(bench, collection, card))
    assert done.code == 0, done.stderr
    same_as(undisturbed, bench)


def test_workers_end_with_the_command_that_is_killed_and_the_next_one_goes_on(
    collection, card, tmp_path, undisturbed
):
    bench = Bench(tmp_path)
    killed = run_with_workers(bench, collection, card)
    workers = started_by(killed)
    killed.kill()
    killed.communicate()
    end = time.monotonic() + 20
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() < end, "workers outlive the command"
        time.sleep(0.05)
    assert finish(run_with_workers(bench, collection, card)).code == 0
    same_as(undisturbed, bench)


def started_by(process, limit_s=60.0):
    """Process ids of the two workers of a command, once they are there."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + limit_s
    while True:
        pids = [int(pid) for pid in children.read_text().split() if is_alive(pid)]
        if len(pids) == 2:
            return pids
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no workers were started"
        time.sleep(0.02)


def is_alive(pid):
    try:
        return "bench.execution" in Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return False


def same_as(undisturbed, bench):
    names = [batch.stem for batch in undisturbed.space.vectors_dir.glob("*/*.f32")]
    assert files_of(names, bench.cache / "vectors") == files_of(
        names, undisturbed.space.vectors_dir
    )
