"""Leases among machines, on a real S3 server: one holder at a time, and none for ever."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foundation.locks import FileLocks
from foundation.object_leases import ObjectLeases
from foundation.object_store import RemotePath
from tests.support import s3

TTL_S = 1.0


@pytest.fixture
def machine(server, monkeypatch, tmp_path):
    """Leases of a machine, by its name: each has a local folder of its own."""
    s3.allow(monkeypatch, server.address)

    def leases(name: str, ttl_s: float = TTL_S) -> ObjectLeases:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        place = RemotePath(f"s3://bucket/{tmp_path.name}")
        return ObjectLeases(place, FileLocks(folder), ttl_s)

    return leases


def objects(server, tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (server.folder / "bucket" / tmp_path.name).glob("*"))


def die(lease) -> None:
    """End a holder as the end of its machine would: nothing is renewed or removed."""
    lease._ended.set()
    lease._renewing.join()


def test_one_of_many_machines_has_a_lease_until_it_gives_it_back(machine, server, tmp_path):
    machines = [machine(f"machine {number}") for number in range(8)]
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            leases = list(pool.map(lambda each: each.take("a"), machines))
        (lease,) = [lease for lease in leases if lease]
        assert lease.held
        lease.release()
        lease.release()
        assert not lease.held
    assert objects(server, tmp_path) == []
    assert list(tmp_path.rglob("*.lock")) == []


def test_leases_of_several_names_are_independent(machine):
    first, second = machine("first").take("a"), machine("second").take("b")
    assert first is not None
    assert second is not None
    first.release()
    second.release()


def test_a_lease_that_is_renewed_outlives_its_time(machine):
    lease, other = machine("first").take("a"), machine("second")
    deadline = time.monotonic() + 3 * TTL_S
    while time.monotonic() < deadline:
        assert other.take("a") is None
        time.sleep(TTL_S / 10)
    assert lease.held
    lease.release()


def test_whoever_waits_has_the_lease_when_it_is_given_back(machine):
    lease = machine("first").take("a")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(machine("second").wait, "a")
        time.sleep(2 * TTL_S)
        assert not waiting.done()
        lease.release()
        waiting.result(TTL_S * 10).release()


def test_the_lease_of_a_machine_that_is_no_more_goes_to_one_other(machine, server, tmp_path):
    die(machine("first").take("a"))
    others = [machine(f"machine {number}") for number in range(6)]
    start = time.monotonic()
    held = []

    def work(other: ObjectLeases) -> None:
        lease = other.wait("a")
        held.append(lease)
        assert len(held) == 1
        time.sleep(0.05)
        held.remove(lease)
        lease.release()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, others))
    assert time.monotonic() - start >= TTL_S
    assert objects(server, tmp_path)[0] == "a.lease-0"  # what expired is never removed


def test_time_runs_from_when_the_lease_was_first_seen_unchanged(machine):
    die(machine("first").take("a"))
    other = machine("second")
    time.sleep(1.5 * TTL_S)
    assert other.take("a") is None  # by its own clock, nothing has passed yet
    time.sleep(1.5 * TTL_S)
    lease = other.take("a")
    assert lease is not None
    lease.release()
    again = other.take("a")  # what was given back is free at once
    assert again is not None
    again.release()


def test_a_holder_that_slept_sees_that_another_has_followed(machine, server, tmp_path):
    lease, other = machine("first").take("a"), machine("second")
    renewing, lease._ended.wait = threading.Event(), lambda _: not renewing.wait(60)  # it sleeps
    time.sleep(TTL_S / 2)
    followed = other.wait("a")
    renewing.set()
    lease._renewing.join(10)
    assert (lease.held, followed.held) == (False, True)
    lease.release()
    assert objects(server, tmp_path) == ["a.lease-0", "a.lease-1"]
    assert machine("third").take("a") is None
    followed.release()


def test_a_holder_from_the_same_folder_that_died_is_not_waited_for(machine):
    here = machine("first", ttl_s=600)
    lease = here.take("a")
    die(lease)
    lease._lock.release()  # as the kernel does when a process ends
    again = machine("first", ttl_s=600).take("a")
    assert again is not None
    again.release()


def test_a_process_of_the_same_folder_is_refused_without_a_request(machine, monkeypatch):
    lease = machine("first").take("a")
    monkeypatch.setattr(RemotePath, "_ask", lambda *_: pytest.fail("a request"))
    assert machine("first").take("a") is None
    monkeypatch.undo()
    lease.release()


def test_a_lease_outlives_a_store_that_is_away_for_longer_than_its_time(machine, server):
    lease, other = machine("first").take("a"), machine("second")
    assert other.take("a") is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, "a")
        time.sleep(TTL_S / 2)
        server.stop()
        time.sleep(2.5 * TTL_S)
        server.start()
        time.sleep(1.5 * TTL_S)
        assert lease.held
        assert not waiting.done()
        lease.release()
        waiting.result(TTL_S * 10).release()


def test_the_time_of_a_lease_begins_anew_where_the_store_was_slow_to_answer(machine, monkeypatch):
    die(machine("first").take("a"))
    other, read = machine("second"), RemotePath.read_bytes
    assert other.take("a") is None
    time.sleep(1.2 * TTL_S)

    def slowly(path: RemotePath) -> bytes:
        time.sleep(TTL_S / 2)  # its holder had no answer either
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(RemotePath, "read_bytes", slowly)
        assert other.take("a") is None
    assert other.take("a") is None
    other.wait("a").release()
