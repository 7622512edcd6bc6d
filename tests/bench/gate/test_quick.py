"""The ledger of first looks: written once, completed when full results exist, never lost."""

from types import SimpleNamespace

import msgspec
import pytest

from bench.gate.quick import FULL_FILE, LEDGER, LOOK_FILE, Look, complete, digest, relation
from bench.gate.quick import remember as write_down
from bench.results.result import Protocol
from foundation.object_store import RemotePath
from tests.support import results as records

PROTOCOL = msgspec.structs.replace(records.PROTOCOL, collection="one")
LOOK = msgspec.structs.replace(records.LOOK, protocol=digest(PROTOCOL))


def stored(fingerprint: str, value: float, protocol: Protocol = PROTOCOL, index: str = "flat"):
    """As much of a stored result as the ledger reads."""
    result = SimpleNamespace(
        fingerprint=fingerprint, protocol=protocol, index=index, measures={"RR@10": value}
    )
    return SimpleNamespace(collection=protocol.collection, result=result)


@pytest.fixture(params=["folder", "object store"])
def results(request, tmp_path):
    """A place of results."""
    return tmp_path if request.param == "folder" else RemotePath(f"memory://bucket{tmp_path}")


def test_a_look_waits_until_both_full_results_are_there(results):
    write_down(results, [LOOK])
    assert complete(results, lambda: [stored("a", 0.5)]) == []
    (found,) = complete(results, lambda: [stored("a", 0.5), stored("b", 0.48)])
    assert found.full == pytest.approx(0.02)


def test_a_pair_stays_when_its_results_are_gone_and_they_are_not_read_again(results):
    write_down(results, [LOOK])
    complete(results, lambda: [stored("a", 0.5), stored("b", 0.48)])
    (found,) = complete(results, lambda: pytest.fail("nothing waits"))
    assert found.full == pytest.approx(0.02)


@pytest.mark.parametrize(
    "other",
    [
        stored("b", 0.4, msgspec.structs.replace(PROTOCOL, depth=20)),
        stored("b", 0.4, index="IVF4,Flat"),
        stored("c", 0.4),
    ],
)
def test_results_of_another_evaluation_complete_nothing(tmp_path, other):
    write_down(tmp_path, [LOOK])
    assert complete(tmp_path, lambda: [stored("a", 0.5), other]) == []


def test_the_same_look_is_written_once(tmp_path):
    again = msgspec.structs.replace(LOOK, time="2031-01-01T00:00:00+00:00")
    write_down(tmp_path, [LOOK])
    write_down(tmp_path, [again, msgspec.structs.replace(LOOK, seed=1)])
    assert len(list((tmp_path / LEDGER).rglob(LOOK_FILE))) == 2
    kept = msgspec.json.decode((tmp_path / LEDGER / LOOK.key / LOOK_FILE).read_bytes(), type=Look)
    assert kept == LOOK


def test_a_damaged_file_is_named_and_left_out(tmp_path, caplog):
    other = msgspec.structs.replace(LOOK, seed=1)
    write_down(tmp_path, [LOOK, other])
    (tmp_path / LEDGER / LOOK.key / LOOK_FILE).write_bytes(b'{"format": 1')
    both = [stored("a", 0.5), stored("b", 0.48)]
    assert [look.seed for look in complete(tmp_path, lambda: both)] == [1]
    assert LOOK.key in caplog.text
    assert not (tmp_path / LEDGER / LOOK.key / FULL_FILE).exists()


def test_relation_counts_signs_and_intervals():
    pairs = [(0.03, 0.02), (0.01, -0.01), (-0.02, -0.04)]
    looks = [
        msgspec.structs.replace(LOOK, difference=d, low=d - 0.015, high=d + 0.015, full=full)
        for d, full in pairs
    ]
    found = relation(looks)
    assert (found.looks, found.same_sign, found.covered) == (3, 2, 1)
    assert found.bias == pytest.approx(0.05 / 3)
    assert (found.lowest, found.highest) == pytest.approx((0.01, 0.02))
    assert relation([]) is None


def test_a_look_at_a_whole_collection_is_no_relation():
    whole = msgspec.structs.replace(LOOK, documents=100, full=LOOK.difference)
    assert relation([whole]) is None
    assert relation([whole, msgspec.structs.replace(LOOK, full=0.01)]).looks == 1
