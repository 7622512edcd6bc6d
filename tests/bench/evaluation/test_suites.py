"""Means over suites, against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation.judging import suite_mean, suites_inner_first
from datasets_cfg.catalogue import expand_names, suite_for, suite_names

FORUMS = suite_for("beir/cqadupstack").members
PLAIN = tuple(name for name in suite_for("beir").members if name != "beir/cqadupstack")
SINGLE = (*PLAIN, *FORUMS)
scores_of_beir = st.lists(st.floats(0, 1), min_size=len(SINGLE), max_size=len(SINGLE)).map(
    lambda values: dict(zip(SINGLE, values, strict=True))
)
NOTHING_LESS = dict.fromkeys(SINGLE, 0.5)


def plain_mean(values: dict[str, float]) -> float:
    """Mean over 13 collections and the mean of the 12 forums."""
    forums = np.mean([values[name] for name in FORUMS])
    return float(np.mean([*(values[name] for name in PLAIN), forums]))


def without(name: str) -> dict[str, float]:
    return {key: value for key, value in NOTHING_LESS.items() if key != name}


@given(st.sampled_from(PLAIN))
def test_without_a_member_there_is_no_mean_and_the_gap_has_a_name(name):
    mean = suite_mean("beir", "nDCG@10", without(name))
    assert (mean.value, mean.zero_shot, mean.missing) == (None, None, (name,))


@given(st.sampled_from(FORUMS))
def test_one_missing_forum_leaves_a_gap_where_all_forums_stand(name):
    assert suite_mean("beir", "nDCG@10", without(name)).missing == ("beir/cqadupstack",)
    assert suite_mean("beir/cqadupstack", "nDCG@10", without(name)).missing == (name,)


@given(scores_of_beir, st.sets(st.sampled_from(PLAIN), max_size=12))
def test_a_suite_inside_counts_once_and_zero_shot_means_leave_out_what_was_trained_on(
    values, trained
):
    mean = suite_mean("beir", "nDCG@10", values, trained)
    forums = float(np.mean([values[name] for name in FORUMS]))
    unseen = [values[name] for name in PLAIN if name not in trained] + [forums]
    assert mean.zero_shot == pytest.approx(np.mean(unseen), abs=1e-12)
    assert mean.zero_shot_members == 14 - len(trained)
    assert mean.value == pytest.approx(plain_mean(values), abs=1e-12)
    assert (mean.suite, mean.measure, mean.members, mean.missing) == ("beir", "nDCG@10", 14, ())


def test_a_model_trained_on_one_forum_is_not_zero_shot_on_the_forums():
    mean = suite_mean("beir", "nDCG@10", NOTHING_LESS, {FORUMS[3]})
    assert mean.zero_shot_members == 13
    inner = suite_mean("beir/cqadupstack", "nDCG@10", NOTHING_LESS, {FORUMS[3]})
    assert inner.zero_shot_members == 11


def test_inner_suites_come_before_the_suite_that_holds_them_and_once():
    assert suites_inner_first(["beir", "stdlib-code", "beir/cqadupstack"]) == [
        "beir/cqadupstack",
        "beir",
    ]
    assert suites_inner_first(["beir/scifact"]) == []


@pytest.mark.parametrize("suite", suite_names())
def test_every_suite_is_complete_with_the_collections_it_expands_to(suite):
    names = expand_names([suite])
    assert suite_mean(suite, "x", dict.fromkeys(names, 0.25)).value == 0.25
    assert suite_mean(suite, "x", dict.fromkeys(names[1:], 0.25)).value is None
