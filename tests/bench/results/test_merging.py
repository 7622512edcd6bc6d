"""Merging: a union of evaluations in which nothing is lost and conflicts are named."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results.find import find_results
from bench.results.interchange.claimed import Claimed, keep
from bench.results.merge import Duplicate, conflicts, union, write
from bench.results.result import RUN_FILE, SCORES_FILE, Stored
from foundation.errors import BenchError
from tests.support.leaderboards import MEASURE, result_of, store


def variant(model: str, scores: str, time: int, folder: str = "x") -> Duplicate:
    """As of a stored result; ``scores`` stands for them."""
    when = {"time": f"2026-01-{time:02}T00:00:00+00:00"}
    result = result_of(model, "one", conditions=when)
    return Duplicate(Stored(Path(folder), result), {MEASURE: scores})


VARIANTS = st.builds(
    variant,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["same", "other", "third"]),
    st.integers(1, 3),
    st.sampled_from(["here", "there"]),
)
FOLDERS = st.lists(VARIANTS, max_size=6)


def content(*folders: list[Duplicate]) -> dict:
    """What is kept, without where it came from: equal records may lie in two places."""
    return {
        key: {digest: one.standing for digest, one in variants.items()}
        for key, variants in union(one for folder in folders for one in folder).items()
    }


def flat(folder: list[Duplicate]) -> list[Duplicate]:
    return [one for variants in union(folder).values() for one in variants.values()]


@given(FOLDERS, FOLDERS)
def test_the_order_of_the_folders_does_not_matter(one, other):
    assert content(one, other) == content(other, one)


@given(FOLDERS, FOLDERS, FOLDERS)
def test_what_was_merged_may_be_merged_again_in_any_grouping(one, other, third):
    left = content(flat(one + other), third)
    right = content(one, flat(other + third))
    assert left == right == content(one, other, third)


@given(FOLDERS)
def test_a_folder_merged_with_itself_is_the_same(folder):
    assert content(folder, folder) == content(flat(folder)) == content(folder)


@given(FOLDERS)
def test_a_conflict_is_each_evaluation_with_two_scores_and_nothing_else(folder):
    scores: dict[str, set[str]] = {}
    for one in folder:
        scores.setdefault(one.stored.result.model, set()).add(one.digests[MEASURE])
    named = [one.model for one in conflicts(union(folder))]
    assert named == sorted(model for model, found in scores.items() if len(found) > 1)


def test_of_equal_evaluations_the_newest_record_is_kept():
    (kept,) = union([variant("a", "same", 1), variant("a", "same", 3), variant("a", "same", 2)])[
        variant("a", "same", 1).evaluation
    ].values()
    assert kept.stored.result.conditions.time.startswith("2026-01-03")


def read(*places: Path) -> list[Duplicate]:
    return [Duplicate.of(one) for place in places for one in find_results(place)]


def merged_into(out: Path, *places: Path, claims: tuple[Claimed, ...] = ()) -> tuple[int, list]:
    there = read(out)
    merged = union([*there, *read(*places)])
    return write(merged, there, claims, out, lambda done: None), conflicts(merged)


def everything(place: Path) -> dict[str, bytes]:
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def test_results_of_two_machines_lie_in_one_folder_byte_for_byte(tmp_path):
    one = store(tmp_path / "1", "a", "one", [0.5, 0.25])
    other = store(tmp_path / "2", "b", "one", [0.5, 0.125])
    out = tmp_path / "out"
    assert merged_into(out, tmp_path / "1", tmp_path / "2") == (2, [])
    found = {one.result.model: one.folder for one in find_results(out)}
    assert everything(found["a"]) == everything(one)
    assert everything(found["b"]) == everything(other)
    assert found["a"] == out / "one" / "a" / one.name


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_ranking_that_is_damaged_is_replaced_by_a_whole_one(tmp_path, damage, at_once):
    content = b"stands for a ranking"
    ranked = {"run_sha256": hashlib.sha256(content).hexdigest()}
    later = {"time": "2026-02-02T00:00:00+00:00"}
    whole = store(tmp_path / "1", "a", "one", [0.5, 0.25], **ranked)
    damaged = store(tmp_path / "2", "a", "one", [0.5, 0.25], conditions=later, **ranked)
    for folder in (whole, damaged):
        (folder / RUN_FILE).write_bytes(content)
    damage(damaged / RUN_FILE)
    out = tmp_path / "out"
    if at_once:
        assert merged_into(out, tmp_path / "2", tmp_path / "1") == (1, [])
    else:
        assert merged_into(out, tmp_path / "2") == (1, [])
        assert merged_into(out, tmp_path / "1") == (1, [])
    (kept,) = find_results(out)
    assert everything(kept.folder) == everything(whole)
    assert merged_into(out, tmp_path / "2", tmp_path / "1") == (0, [])


def test_the_same_scores_are_kept_once_though_the_queries_have_another_order(tmp_path):
    store(tmp_path / "1", "a", "one", [0.5, 0.25, 0.0])
    later = {"time": "2026-02-01T00:00:00+00:00", "threads": 64}
    ids = ["q2", "q0", "q1"]
    store(tmp_path / "2", "a", "one", [0.0, 0.5, 0.25], ids=ids, conditions=later)
    assert merged_into(tmp_path / "out", tmp_path / "1", tmp_path / "2") == (1, [])
    (kept,) = find_results(tmp_path / "out")
    assert kept.result.conditions.threads == 64


def test_other_scores_are_a_conflict_and_both_are_kept_side_by_side(tmp_path):
    one = store(tmp_path / "1", "a", "one", [0.5, 0.25])
    other = store(tmp_path / "2", "a", "one", [0.5, 0.0])
    copied, (conflict,) = merged_into(tmp_path / "out", tmp_path / "1", tmp_path / "2")
    assert copied == 2
    assert (conflict.model, conflict.collection, conflict.key) == ("a", "one", one.name)
    assert set(conflict.folders) == {str(one), str(other)}
    assert sorted(conflict.measures[MEASURE]) == [0.25, 0.375]
    kept = {one.result.measures[MEASURE] for one in find_results(tmp_path / "out")}
    assert kept == {0.25, 0.375}


def test_other_values_with_the_same_mean_are_a_conflict_too(tmp_path):
    store(tmp_path / "1", "a", "one", [0.5, 0.25])
    store(tmp_path / "2", "a", "one", [0.25, 0.5])
    _, (conflict,) = merged_into(tmp_path / "out", tmp_path / "1", tmp_path / "2")
    assert conflict.measures == {}


def test_a_further_measure_is_no_conflict_and_is_kept(tmp_path):
    store(tmp_path / "1", "a", "one", {MEASURE: [0.5, 0.25]})
    store(tmp_path / "2", "a", "one", {MEASURE: [0.5, 0.25], "R@100": [1.0, 0.0]})
    assert merged_into(tmp_path / "out", tmp_path / "1", tmp_path / "2") == (2, [])


def test_what_the_new_folder_holds_is_never_written_over(tmp_path):
    store(tmp_path / "1", "a", "one", [0.5, 0.25])
    store(tmp_path / "2", "a", "one", [0.5, 0.0])
    out = tmp_path / "out"
    merged_into(out, tmp_path / "1")
    before = everything(out)
    merged_into(out, tmp_path / "2")
    after = everything(out)
    assert before.items() <= after.items()
    assert len(find_results(out)) == 2


def test_merging_again_copies_nothing_and_names_the_conflict_again(tmp_path):
    store(tmp_path / "1", "a", "one", [0.5, 0.25])
    store(tmp_path / "2", "a", "one", [0.5, 0.0])
    out = tmp_path / "out"
    merged_into(out, tmp_path / "1", tmp_path / "2")
    before = everything(out)
    copied, found = merged_into(out, tmp_path / "2", tmp_path / "1", out)
    assert copied == 0
    assert len(found) == 1
    assert everything(out) == before


def test_claims_are_merged_too(tmp_path):
    claim = Claimed(model="a", collection="one", measures={MEASURE: 0.5}, source="a paper")
    merged_into(tmp_path / "out", claims=(claim, claim))
    files = everything(tmp_path / "out")
    assert list(files.values()) == [claim.content]
    keep([claim], tmp_path / "out")
    assert everything(tmp_path / "out") == files


def test_damaged_values_are_refused_by_name(tmp_path):
    folder = store(tmp_path / "1", "a", "one", [0.5, 0.25])
    (folder / SCORES_FILE).write_bytes(b"")
    with pytest.raises(BenchError, match=r"per_query\.parquet"):
        read(tmp_path / "1")


@settings(deadline=None, max_examples=25)
@given(
    values=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    at=st.integers(0, 2),
    changes=st.booleans(),
)
def test_a_change_of_one_bit_in_one_value_is_another_variant(values, at, changes, tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    other = list(values)
    if changes:
        at %= len(values)
        other[at] = float(np.nextafter(values[at], 0.5 if values[at] != 0.5 else 1.0))
    store(place / "1", "a", "one", values)
    store(place / "2", "a", "one", other)
    one, two = read(place)
    assert (one.digest == two.digest) is not changes
    assert one.evaluation == two.evaluation


def test_a_record_is_the_same_whatever_order_its_measures_have():
    first = result_of("a", "one", measures={"nDCG@10": 0.5, "R@100": 0.25})
    again = msgspec.structs.replace(first, measures={"R@100": 0.25, "nDCG@10": 0.5})
    standings = [Duplicate(Stored(Path("x"), one), {}).standing for one in (first, again)]
    assert standings[0] == standings[1]
