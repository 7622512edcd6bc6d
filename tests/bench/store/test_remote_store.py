"""Vectors below a URL, on a real S3 server: encoded once among machines, whole or absent."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from bench.store import RemoteStore, VectorStore, planning
from foundation import object_store
from foundation.errors import BenchError
from foundation.object_store import RemotePath
from retrievers.encoders.hashing import HashingEncoder
from tests.support import s3
from tests.support.stores import (
    RECIPE,
    CountingEncoder,
    corpus_of,
    directly,
    encode,
    everything,
    files_below,
    numbered,
)

ROWS = 4  # of a shard, in these tests
TTL_S = 1.5
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(planning, "SHARD_ROWS", ROWS)


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """Folder of the server that has what is below the URL of this test."""
    s3.allow(monkeypatch, server.address)
    return server.folder / "bucket" / tmp_path.name


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(numbered(10), tmp_path / "corpus")


@pytest.fixture
def machine(bucket, tmp_path):
    """The store of a machine, by its name, as a new process of it would open it."""

    def store(name: str, patience_s: float = 120.0) -> VectorStore:
        url = RemotePath(f"s3://bucket/{tmp_path.name}", patience_s)
        return VectorStore(tmp_path / name, RemoteStore(url, TTL_S))

    return store


def encoded(store: VectorStore, corpus) -> int:
    """How many texts a store encodes; its vectors are those of the encoder."""
    encoder = CountingEncoder()
    vectors = encode(store, corpus, encoder)
    assert everything(vectors).tobytes() == directly(corpus).tobytes()
    assert vectors.encoded == len(encoder.documents)
    return vectors.encoded


def shards_of(bucket: Path) -> list[Path]:
    """Manifests of the shards in the bucket."""
    return sorted(path for path in bucket.rglob("*.json") if path.name != "recipe.json")


def test_a_second_machine_copies_what_the_first_has_encoded(machine, corpus, bucket, tmp_path):
    assert encoded(machine("first"), corpus) == 10
    assert encoded(machine("second"), corpus) == 0
    first, second = (files_below(tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert {name: content for name, content in first.items() if "keys/" not in name} == (
        files_below(bucket)
    )


def test_queries_are_shared_as_documents_are(machine):
    encoder, texts = CountingEncoder(), ["one query", "another", "one query"]
    expected = HashingEncoder(RECIPE).encode_queries(texts)
    for name in ("first", "second"):
        assert machine(name).queries(encoder, texts).tobytes() == expected.tobytes()
    assert encoder.queries == texts[:2]


def test_what_was_encoded_before_the_machines_shared_is_sent(machine, corpus, bucket, tmp_path):
    encode(VectorStore(tmp_path / "first"), corpus)
    assert encoded(machine("first"), corpus) == 0
    assert len(shards_of(bucket)) == 3
    assert encoded(machine("second"), corpus) == 0


def test_another_collection_encodes_only_what_it_does_not_share(machine, corpus, tmp_path):
    encode(machine("first"), corpus)
    encode(machine("first"), corpus_of(numbered(30, first=100), tmp_path / "far"))
    other = corpus_of([*numbered(3, first=90), *reversed(numbered(8))], tmp_path / "other")
    assert encoded(machine("second"), other) == 3
    copies = len(shards_of(tmp_path / "second"))
    assert copies == 2 + 1  # those that hold any of the eight, and the new one


def test_a_lagging_listing_costs_nothing_among_machines_of_one_collection(
    machine, corpus, monkeypatch, tmp_path
):
    """As S3 was until 2020: objects are found by their keys at once, in listings later or never."""
    original = object_store._store

    class Lagging:
        def __init__(self, store):
            self._store = store

        def find(self, path):
            return []

        def __getattr__(self, name):
            assert name not in ("ls", "glob", "walk", "du", "isdir"), f"{name} is a listing"
            return getattr(self._store, name)

    monkeypatch.setattr(object_store, "_store", lambda place: Lagging(original(place)))
    assert encoded(machine("first"), corpus) == 10
    second = machine("second")
    assert second.plan(CountingEncoder(), corpus).missing_rows == 0
    assert encoded(second, corpus) == 0
    late = machine("third")  # that planned before others were there, and works when they are done
    encoder = CountingEncoder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteStore, "pull", lambda *_: False)
        plan = late.plan(encoder, corpus)
    assert plan.missing_rows == 10
    assert late.documents(encoder, corpus, plan).encoded == 0
    assert encoder.documents == []
    part = machine("fourth").plan(encoder, corpus, slice(5, 10))  # as one that searches some rows
    assert everything(part.vectors).tobytes() == directly(corpus)[5:].tobytes()
    assert len(shards_of(tmp_path / "fourth")) == 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("suffix", [".f32", ".keys", ".json"])
def test_a_torn_object_counts_as_absent_and_is_mended(suffix, damage, machine, corpus, bucket):
    encode(machine("first"), corpus)
    whole = files_below(bucket)
    damage(shards_of(bucket)[1].with_suffix(suffix))
    store = machine("second")
    rows = store.plan(CountingEncoder(), corpus).missing_rows
    assert 0 < rows <= ROWS
    assert encoded(store, corpus) == rows
    assert files_below(bucket) == whole
    assert encoded(machine("third"), corpus) == 0


def test_a_shard_that_was_mended_meanwhile_is_copied(machine, corpus, bucket, caplog):
    encode(machine("first"), corpus)
    path = shards_of(bucket)[0].with_suffix(".f32")
    whole = path.read_bytes()
    flip(path)
    store, encoder = machine("second"), CountingEncoder()
    plan = store.plan(encoder, corpus)
    assert plan.missing_rows > 0
    assert f"{path.stem}.json is damaged" in caplog.text
    path.write_bytes(whole)
    assert store.documents(encoder, corpus, plan).encoded == 0


WORK = """
    import logging, sys, time
    from pathlib import Path
    from tests.support.stores import CountingEncoder, encode
    from bench.store import RemoteStore, VectorStore, planning
    from datasets_cfg.corpus import Corpus
    from foundation.object_store import RemotePath

    class SlowEncoder(CountingEncoder):
        def encode_documents(self, titles, texts, advance=None):
            time.sleep(float(sys.argv[4]))
            vectors = super().encode_documents(titles, texts, advance)
            print("encoded", *titles, sep="|", flush=True)
            return vectors

    planning.SHARD_ROWS = 4
    encoder, corpus = SlowEncoder(), Corpus.open(Path(sys.argv[1]))
    store = VectorStore(Path(sys.argv[2]), RemoteStore(RemotePath(sys.argv[3]), float(sys.argv[5])))
    vectors = encode(store, corpus, encoder)
    print("done", vectors.encoded, sep="|", flush=True)
"""


class Worker:
    """A process that encodes a corpus, on a machine of its own."""

    def __init__(self, tmp_path: Path, name: str, pause_s: float) -> None:
        url = f"s3://bucket/{tmp_path.name}"
        arguments = [tmp_path / "corpus", tmp_path / name, url, pause_s, TTL_S]
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORK), *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def next_shard(self) -> list[str]:
        """Titles of the next shard; waits until it is encoded."""
        return self.process.stdout.readline().strip().split("|")[1:]

    def titles(self) -> list[str]:
        """Titles of all texts from the next shard on; waits until the process ends."""
        lines = self.process.communicate(timeout=240)[0].splitlines()
        encoded = [line.split("|")[1:] for line in lines if line.startswith("encoded")]
        return [title for titles in encoded for title in titles]


def test_two_machines_share_the_work_and_the_result(bucket, tmp_path):
    corpus = corpus_of(numbered(60), tmp_path / "corpus")
    both = [Worker(tmp_path, name, pause_s=0.3) for name in ("first", "second")]
    titles = [worker.titles() for worker in both]
    assert [worker.process.returncode for worker in both] == [0, 0]
    assert all(titles)
    assert sorted(titles[0] + titles[1]) == sorted(title for title, _ in numbered(60))
    assert files_below(tmp_path / "first") == files_below(tmp_path / "second")
    assert not list(bucket.rglob("*.lease-*"))
    assert encoded(VectorStore(tmp_path / "first"), corpus) == 0


def test_the_shard_of_a_machine_that_died_is_made_by_the_other(bucket, tmp_path):
    corpus = corpus_of(numbered(40), tmp_path / "corpus")
    killed = Worker(tmp_path, "killed", pause_s=0.3)
    before = killed.next_shard() + killed.next_shard()
    killed.process.send_signal(signal.SIGKILL)
    before += killed.titles()
    survivor = Worker(tmp_path, "survivor", pause_s=0)
    after = survivor.titles()
    assert survivor.process.returncode == 0
    twice = set(before) & set(after)
    assert len(twice) <= 2 * ROWS  # the shard that was being sent, and the one after it
    assert set(before) | set(after) == {title for title, _ in numbered(40)}
    assert encoded(VectorStore(tmp_path / "survivor"), corpus) == 0
    again = Worker(tmp_path, "killed", pause_s=0)
    assert again.titles() == []
    assert again.process.returncode == 0


def test_the_others_do_not_wait_for_a_machine_that_is_stopped(bucket, tmp_path):
    corpus_of(numbered(24), tmp_path / "corpus")
    stopped = Worker(tmp_path, "stopped", pause_s=0.4)
    before = stopped.next_shard()
    stopped.process.send_signal(signal.SIGSTOP)
    other = Worker(tmp_path, "other", pause_s=0)
    after = other.titles()
    assert other.process.returncode == 0
    stopped.process.send_signal(signal.SIGCONT)
    late = stopped.titles()
    assert stopped.process.returncode == 0
    assert set(before) | set(after) == {title for title, _ in numbered(24)}
    assert set(late) <= set(after)
    assert len(late) <= 2 * ROWS  # what it had in hand
    assert files_below(tmp_path / "stopped") == files_below(tmp_path / "other")


@pytest.mark.slow
def test_machines_killed_twenty_times_lose_a_shard_each_at_most(bucket, tmp_path):
    """A shard is lost where it was not sent yet; two where sending takes as long as encoding."""
    corpus = corpus_of(numbered(200), tmp_path / "corpus")
    encode(VectorStore(tmp_path / "undisturbed"), corpus)
    moments, titles, kills = random.Random(0), [], 0
    for number in range(20):
        worker = Worker(tmp_path, f"machine {number % 2}", pause_s=0.2)
        titles += worker.next_shard()
        time.sleep(moments.uniform(0, 0.2))
        worker.process.send_signal(signal.SIGKILL)
        titles += worker.titles()
        kills += worker.process.returncode == -signal.SIGKILL
    last = Worker(tmp_path, "last", pause_s=0)
    titles += last.titles()
    assert last.process.returncode == 0
    assert kills >= 15
    assert len(titles) - 200 <= kills * ROWS
    undisturbed, now = files_below(tmp_path / "undisturbed"), files_below(tmp_path / "last")
    assert now == undisturbed


def test_a_store_that_is_away_for_some_seconds_costs_no_text(bucket, server, tmp_path):
    corpus_of(numbered(40), tmp_path / "corpus")
    both = [Worker(tmp_path, name, pause_s=0.4) for name in ("first", "second")]
    titles = [worker.next_shard() for worker in both]
    server.stop()
    time.sleep(2 * TTL_S)
    server.start()
    titles += [worker.titles() for worker in both]
    assert [worker.process.returncode for worker in both] == [0, 0]
    everything_once = sorted(title for title, _ in numbered(40))
    assert sorted(title for each in titles for title in each) == everything_once
    assert files_below(tmp_path / "first") == files_below(tmp_path / "second")


def test_a_store_that_stays_away_is_one_clear_error_and_nothing_is_lost(
    machine, corpus, bucket, server
):
    store, encoder = machine("first", patience_s=0.5), CountingEncoder()
    plan = store.plan(encoder, corpus)

    def stop(_: int) -> None:
        if len(encoder.documents) == ROWS:
            server.stop()

    try:
        with pytest.raises(BenchError, match=r"s3://bucket/.*connect") as error:
            store.documents(encoder, corpus, plan, stop)
        assert "what is finished is kept" in error.value.hint
    finally:
        server.stop()
        server.start()
    kept = len(encoder.documents)
    assert ROWS <= kept < 10
    assert encoded(machine("first"), corpus) <= 10 - ROWS
    assert len(shards_of(bucket)) == 3
    assert encoded(machine("second"), corpus) == 0


def test_a_url_that_never_answers_is_refused_at_once(machine, corpus, monkeypatch):
    s3.allow(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it is asked again"))
    with pytest.raises(BenchError, match="connect"):
        encode(machine("first"), corpus)
