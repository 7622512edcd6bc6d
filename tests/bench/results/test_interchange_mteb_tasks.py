"""Names that MTEB and the Hub use, and ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.results.interchange.mteb_tasks import TASKS, collection_of, our_measure, their_measure
from datasets_cfg.catalogue import dataset_names, expand

KINDS = st.sampled_from(["nDCG", "R", "AP", "P", "RR", "Success"])


@given(KINDS, st.integers(1, 10_000))
def test_a_measure_with_a_cutoff_comes_back_from_their_name(kind, cutoff):
    name = f"{kind}@{cutoff}"
    assert our_measure(their_measure(name)) == name


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ndcg_at_10", "nDCG@10"),
        ("cosine_ndcg@10", "nDCG@10"),
        ("dot_map@100", "AP@100"),
        ("mrr_at_10", "RR@10"),
        ("recall_at_100", "R@100"),
        ("hit_rate_at_5", "Success@5"),
        ("main_score", ""),
        ("nauc_ndcg_at_10_max", ""),
        ("cosine_accuracy@1", ""),
    ],
)
def test_their_measures_have_our_names_or_none(theirs, ours):
    assert our_measure(theirs) == ours


def test_a_measure_that_mteb_does_not_have_has_no_name_there():
    assert [their_measure(name) for name in ("AP", "AP(rel=2)@100", "Judged@10")] == ["", "", ""]


def test_every_task_is_of_a_declared_collection_and_none_occurs_twice():
    assert set(TASKS) <= set(dataset_names())
    for field in ("name", "dataset", "revision"):
        assert len({getattr(task, field) for task in TASKS.values()}) == len(TASKS)


def test_the_public_suite_has_a_task_for_each_collection():
    assert set(expand(["beir"])) <= set(TASKS)


@pytest.mark.parametrize("collection", sorted(TASKS))
def test_a_collection_is_found_by_its_task_and_by_its_data_set_on_the_hub(collection):
    task = TASKS[collection]
    for name in (collection, task.name, f"MTEB {task.name}", task.dataset, task.dataset.upper()):
        assert collection_of(name) == collection


def test_the_mean_of_the_forums_is_a_claim_on_the_suite():
    assert collection_of("CQADupstackRetrieval") == "beir/cqadupstack"


@pytest.mark.parametrize("name", ["", "STS12", "mteb/stsbenchmark-sts"])
def test_another_task_is_no_collection(name):
    assert collection_of(name) == ""
