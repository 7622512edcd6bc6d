"""Training queries that are evaluated: by id within a collection, by text everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.training.training_sets import (
    find_leaks,
    leaked_queries,
    normalise_query,
    trained_collections,
)
from datasets_cfg.dataset import open_dataset
from foundation.errors import BenchError
from tests.support.collections import write_collection, write_qrels


def opened(folder, tmp_path, split="test"):
    return open_dataset(str(folder), cache_dir=tmp_path / "cache", split=split)


@pytest.fixture
def collection(tmp_path):
    queries = {"q1": "lift of a wing", "q2": "heat", "q3": "Lift, of a wing?", "q4": "slabs"}
    folder = write_collection(tmp_path / "mine", queries=queries, qrels={("q1", "d1"): 1})
    write_qrels(folder, {("q2", "d10"): 1, ("q3", "d2"): 1, ("q4", "d9"): 1}, "train")
    write_qrels(folder, {("q1", "d1"): 1, ("q4", "d9"): 1}, "overlap")
    return folder


def test_queries_that_read_like_held_out_ones_are_left_out_with_a_warning(
    collection, tmp_path, capsys
):
    training = opened(collection, tmp_path, "train")
    assert leaked_queries(training, [opened(collection, tmp_path)]) == {"q3"}
    assert (
        "1 training query of mine with the text of a test query of mine" in capsys.readouterr().err
    )


@pytest.mark.parametrize("split", ["test", "overlap"])
def test_a_split_that_is_evaluated_is_not_trained_on(collection, tmp_path, split):
    training = opened(collection, tmp_path, split)
    with pytest.raises(BenchError, match=f"split {split} of mine has 1 query of split test"):
        leaked_queries(training, [opened(collection, tmp_path)])


def test_a_copy_of_the_test_queries_under_other_ids_leaks_too(tmp_path):
    """Into another collection, where equal ids mean nothing."""
    one = write_collection(tmp_path / "one", queries={"q1": "Heat."}, qrels={("q1", "d10"): 1})
    queries, qrels = {"q1": "wings", "x": "heat"}, {("q1", "d1"): 1, ("x", "d10"): 1}
    two = write_collection(tmp_path / "two", queries=queries, qrels=qrels)
    found = find_leaks(opened(two, tmp_path), opened(one, tmp_path))
    assert found == ("x",)


@given(text=st.text(max_size=20))
def test_case_space_and_punctuation_do_not_distinguish_texts(text):
    assert normalise_query(f"  {normalise_query(text)}!") == normalise_query(text)


def test_a_family_of_collections_counts_as_seen():
    assert trained_collections(["msmarco/dev"]) == ("beir/msmarco", "msmarco", "msmarco-title")
    assert trained_collections(["beir/nfcorpus", "dpr/nq", "beir/nfcorpus"]) == (
        "beir/nfcorpus",
        "beir/nq",
        "dpr/nq",
    )


@pytest.mark.parametrize(("name", "count"), [("beir/scifact", 2), ("beir/nfcorpus", 4)])
def test_published_train_splits_share_questions_with_their_test_splits(
    bench_data, tmp_path, name, count
):
    training, test = (
        open_dataset(name, cache_dir=tmp_path, data_dir=bench_data, split=split)
        for split in ("train", "test")
    )
    found = find_leaks(training, test)
    assert len(found) == count
    assert trained_collections(["stdlib-code/train"]) == ("stdlib-code",)
