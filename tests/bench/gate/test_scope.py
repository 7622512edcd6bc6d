"""Which collections a check is on, and what is remembered of a baseline."""

import pytest

from bench.gate.check_record import StoredModel
from bench.gate.scope import determine_scope, previously_checked, remember_checked
from bench.result_store.find import find_results
from foundation.errors import BenchError
from foundation.locations import RemotePath
from tests.support.collections import Bench, write_collection

BEFORE, OWN = "the baseline was checked there before", "the candidate has one"


@pytest.fixture(params=["folder", "object store"])
def results(request, tmp_path):
    """A place of results."""
    return tmp_path if request.param == "folder" else RemotePath(f"memory://bucket{tmp_path}")


def test_without_on_a_check_covers_all_collections_of_either_side_and_of_earlier_checks():
    scope = determine_scope([], ["b", "a"], {BEFORE: ["a", "c"], OWN: ["c", "d"]})
    assert list(scope.weights) == ["a", "b", "c", "d"]
    assert sum(scope.weights.values()) == pytest.approx(1)
    assert scope.reasons == {"c": BEFORE, "d": OWN}
    assert scope.left_out == ()


def test_on_says_what_a_check_is_on_and_what_it_leaves_out_is_known():
    scope = determine_scope(["b", "z"], ["b", "a"], {BEFORE: ["c"]})
    assert list(scope.weights) == ["b", "z"]
    assert scope.reasons == {}
    assert scope.left_out == ("a", "c")


def test_a_suite_expands_to_all_of_its_members():
    scope = determine_scope(["beir"], ["beir/scifact", "stdlib-code"], {})
    assert "beir/scifact" in scope.weights
    assert scope.left_out == ("stdlib-code",)


def test_a_check_on_nothing_is_an_error():
    with pytest.raises(BenchError, match="no collections to check on"):
        determine_scope([], [], {})


def test_a_gap_names_who_needs_the_collection_and_what_to_type(tmp_path):
    scope = determine_scope([], ["a"], {OWN: ["c"]})
    (stored,) = results_of(tmp_path)
    known = StoredModel("baseline", "old", {"a": stored})
    assert scope.gaps(known) == {"c": "old has no result, but the candidate has one"}
    (hint,) = scope.hints(known)
    assert hint.startswith("run `python -m bench run c --model hashing`")
    assert "--on" in hint
    complete = StoredModel("anchor", "older", {"a": stored, "c": stored})
    assert (scope.gaps(complete), scope.hints(complete)) == ({}, [])


def results_of(folder):
    bench = Bench(folder)
    assert bench("run", write_collection(folder / "a"), "--model", "hashing").code == 0
    return find_results(bench.out)


def test_the_collections_of_earlier_checks_are_remembered_per_baseline(results):
    assert previously_checked(results, "old") == []
    remember_checked(results, "old", ["beir/scifact", "a"])
    remember_checked(results, "old", ["a"])
    remember_checked(results, "other", ["b"])
    assert previously_checked(results, "old") == ["a", "beir/scifact"]
    assert previously_checked(results, "other") == ["b"]
