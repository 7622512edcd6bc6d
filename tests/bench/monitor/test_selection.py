"""The best of many checkpoints, and its differences from the others."""

import numpy as np
import pytest

from bench.comparing.statistics import Resampling, ScoreMatrix, holm, paired_difference
from bench.monitor import select_checkpoint

FAST = Resampling(resamples=199)


def read_scores(scores: np.ndarray, name: str = "one", resampling=FAST) -> ScoreMatrix:
    columns = {f"checkpoint-{place}": place for place in range(scores.shape[1])}
    return ScoreMatrix(name, "nDCG@10", columns, scores, resampling)


def sparse_curve(rng: np.random.Generator, queries: int, checkpoints: int) -> np.ndarray:
    """Checkpoints that differ from one another on a fifth of the queries, exchangeably."""
    shared = rng.choice([0.0, 0.3, 1.0], (queries, 1))
    other = rng.choice([0.13, 0.37, 0.5, 0.63], (queries, checkpoints))
    return np.where(rng.random((queries, checkpoints)) < 0.2, other, shared)


def test_p_is_corrected_for_all_pairs_of_checkpoints():
    panel = read_scores(sparse_curve(np.random.default_rng(4), 200, 4))
    names = list(panel.columns)
    p_values = {
        frozenset({a, b}): paired_difference([panel.minus(a, b)]).p
        for place, a in enumerate(names)
        for b in names[:place]
    }
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    found = select_checkpoint([panel], [1.0])
    assert found.pairs == len(p_values) == 6
    for rival in found.rivals:
        assert rival.p_adjusted == adjusted[frozenset({rival.a, rival.b})]


def test_the_best_checkpoint_is_the_first_of_equals_and_lists_those_not_distinguishable():
    rng = np.random.default_rng(6)
    scores = np.clip(sparse_curve(rng, 200, 4), 0, 1)
    scores[:, 2] = scores[:, 1] = scores[:, 1] + 0.2
    found = select_checkpoint([read_scores(scores)], [1.0])
    assert found.best == "checkpoint-1"
    assert found.indistinguishable == ("checkpoint-2",)
    assert {one.b: one.verdict for one in found.rivals} == {
        "checkpoint-0": "a",
        "checkpoint-2": "neither",
        "checkpoint-3": "a",
    }


def test_two_collections_weigh_as_they_are_told():
    rng = np.random.default_rng(10)
    one, other = sparse_curve(rng, 30, 3), sparse_curve(rng, 50, 3)
    found = select_checkpoint([read_scores(one), read_scores(other, "two")], [0.25, 0.75])
    means = 0.25 * one.mean(axis=0) + 0.75 * other.mean(axis=0)
    assert found.best == f"checkpoint-{means.argmax()}"
    for rival in found.rivals:
        column = int(rival.b.rpartition("-")[2])
        assert rival.difference == pytest.approx(means.max() - means[column])
