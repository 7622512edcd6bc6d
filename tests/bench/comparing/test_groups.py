"""Groups of queries that depend on each other: read from the metadata, averaged, tested."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bench.comparing.slices import count_repeated, find_groups, group_queries
from bench.comparing.statistics import Resampling, ScorePair, average_groups
from bench.gate.decision import GateSettings, decide
from datasets_cfg.dataset import open_dataset
from foundation.errors import BenchError, UnavailableError
from tests.support.collections import SIXTY, with_metadata, write_collection


def test_fields_of_queries_are_columns_and_metadata(tmp_path):
    folder = with_metadata(tmp_path / "own", ["a", ["a", "b"], None])
    dataset = open_dataset(str(folder), cache_dir=tmp_path)
    first, second, third = dataset.queries.ids[:3]
    topics = dataset.reader.query_values("topic")
    assert (topics[first], topics[second]) == (("a",), ("a", "b"))
    assert third not in topics
    assert dataset.reader.query_values("source")[second] == ("1",)


def test_tables_have_the_same_fields_and_no_hash_depends_on_them(tmp_path):
    plain = write_collection(tmp_path / "plain", *SIXTY)
    folder = with_metadata(tmp_path / "own", ["a", "b"])
    path = folder / "queries.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    parquet.write_table(pa.Table.from_pylist(rows), folder / "queries.parquet")
    one, other = (open_dataset(str(each), cache_dir=tmp_path) for each in (plain, folder))
    assert other.reader.query_values("topic")[rows[1]["_id"]] == ("b",)
    assert one.queries_sha256 == other.queries_sha256


def test_an_unknown_field_is_refused_with_those_that_exist(tmp_path):
    dataset = open_dataset(str(with_metadata(tmp_path / "own", ["a"])), cache_dir=tmp_path)
    with pytest.raises(BenchError, match="has the field topics") as caught:
        dataset.reader.query_values("topics")
    assert caught.value.hint == "Did you mean topic?"
    with pytest.raises(BenchError) as caught:
        dataset.reader.query_values("xyz")
    assert caught.value.hint == "The fields are source, topic."
    plain = open_dataset(str(write_collection(tmp_path / "p", *SIXTY)), cache_dir=tmp_path)
    with pytest.raises(BenchError) as caught:
        plain.reader.query_values("topic")
    assert "no further fields" in caught.value.hint


def test_a_query_is_in_one_group_and_without_a_value_alone(tmp_path):
    dataset = open_dataset(str(with_metadata(tmp_path / "a", ["x", None])), cache_dir=tmp_path)
    groups = group_queries(dataset, "topic")
    assert len(set(groups.values())) == 1 + len(groups) // 2
    both = open_dataset(str(with_metadata(tmp_path / "b", [["x", "y"]])), cache_dir=tmp_path)
    with pytest.raises(BenchError, match="several values of topic"):
        group_queries(both, "topic")


def test_groups_have_the_mean_of_their_queries():
    scores = np.array([[0.0, 1.0], [1.0, 0.5], [0.5, 0.0]])
    means, names = average_groups(scores, ["q1", "q2", "q3"], {"q1": "b", "q2": "a", "q3": "b"})
    assert names == ["a", "b"]
    assert means.tolist() == [[1.0, 0.5], [0.25, 0.5]]


def test_a_collection_declares_its_groups_and_otherwise_repeated_texts_are_told(tmp_path):
    declared = with_metadata(tmp_path / "own", ["a", "b"], group="topic")
    found = find_groups("", {"own": open_dataset(str(declared), cache_dir=tmp_path)})
    assert set(found.groups["own"].values()) == {"a", "b"}
    assert "means of 2 groups by topic" in found.warnings[0]
    with pytest.raises(BenchError, match="not on this machine"):
        find_groups("topic", {"gone": UnavailableError("gone is not on this machine")})
    assert not find_groups("", {"gone": UnavailableError("gone is not on this machine")}).warnings
    texts = ["Is coffee healthy?", "is COFFEE  healthy", "healthy coffee is", "tea", "", ""]
    assert count_repeated(texts) == 2


@pytest.mark.slow
def test_a_true_loss_of_the_margin_passes_rarely_if_groups_are_tested_and_often_if_not():
    """Five paraphrases of each of 60 questions, which lose alike."""
    rng, passed = np.random.default_rng(1), []
    for _ in range(20):
        losses = (rng.normal(0, 0.15, 60) + 0.02).clip(-1, 1)
        passed.append(
            [
                decide(
                    [ScorePair("x", "RR@10", -one, np.zeros(len(one)))],
                    {"x": 1.0},
                    GateSettings(),
                    Resampling(39),
                ).outcome
                == "OK"
                for one in (losses, np.repeat(losses, 5))
            ]
        )
    by_group, by_query = np.mean(passed, axis=0)
    assert by_group <= 0.05 < 0.2 < by_query
