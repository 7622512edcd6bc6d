"""The best of many checkpoints: brute force as oracle, and simulations of what is claimed."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.comparing.statistics import ALPHA, Resampling, ScoreMatrix
from bench.monitor.curve import adjust_all_pairs, select_checkpoint
from tests.support.examples import with_examples

FAST = Resampling(resamples=199)
VALUES = [0.0, 0.0, 0.25, 0.5, 1.0]  # exact in binary, so that sums tie exactly


def read_scores(scores: np.ndarray, name: str = "one", resampling=FAST) -> ScoreMatrix:
    columns = {f"checkpoint-{place}": place for place in range(scores.shape[1])}
    return ScoreMatrix(name, "nDCG@10", columns, scores, resampling)


def all_pairs(scores: np.ndarray) -> list[tuple[int, int]]:
    return list(combinations(range(scores.shape[1]), 2))


def sparse_curve(rng: np.random.Generator, queries: int, checkpoints: int) -> np.ndarray:
    """Checkpoints that differ from one another on a fifth of the queries, exchangeably."""
    shared = rng.choice([0.0, 0.3, 1.0], (queries, 1))
    other = rng.choice([0.13, 0.37, 0.5, 0.63], (queries, checkpoints))
    return np.where(rng.random((queries, checkpoints)) < 0.2, other, shared)


def brute_force(parts: list[np.ndarray], weights: list[float]) -> list[float]:
    """p of every pair over every flip of every query, the equal ones too."""
    pairs = all_pairs(parts[0])
    shares = np.concatenate([w / len(one) * one for one, w in zip(parts, weights, strict=True)])
    differences = np.array([shares[:, i] - shares[:, j] for i, j in pairs])
    roots = np.sqrt((differences**2).sum(axis=1))
    roots[roots == 0] = np.inf
    seen = np.abs(differences.sum(axis=1)) / roots
    largest = np.array(
        [
            (np.abs(differences @ np.array(signs)) / roots).max()
            for signs in product((1, -1), repeat=len(shares))
        ]
    )
    return [float(np.mean(largest >= one - 1e-9)) for one in seen]


curves = st.tuples(st.integers(2, 6), st.integers(2, 4)).flatmap(
    lambda shape: st.lists(
        st.sampled_from(VALUES), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]
    ).map(lambda values: np.array(values).reshape(shape))
)


def adjusted_pairs(scores: list[np.ndarray], weights: list[float], resampling=FAST) -> list[float]:
    """p of every pair, in the order of `all_pairs`."""
    panels = [read_scores(one, str(place), resampling) for place, one in enumerate(scores)]
    adjusted = adjust_all_pairs(panels, weights)
    return [adjusted[pair] for pair in all_pairs(scores[0])]


@with_examples(30)
@given(curves)
def test_p_is_that_of_every_flip_by_brute_force(scores):
    found = adjusted_pairs([scores], [1.0], Resampling())
    assert found == pytest.approx(brute_force([scores], [1.0]), abs=0.025)


def test_p_over_two_collections_flips_the_queries_of_both():
    rng = np.random.default_rng(1)
    scores = [rng.choice(VALUES, (count, 3)) for count in (3, 4)]
    found = adjusted_pairs(scores, [0.75, 0.25], Resampling())
    assert found == pytest.approx(brute_force(scores, [0.75, 0.25]), abs=0.025)


@with_examples(40)
@given(curves)
def test_adjusted_p_is_never_below_the_p_of_the_pair_alone(scores):
    for rival in select_checkpoint([read_scores(scores)], [1.0]).rivals:
        assert rival.p_adjusted >= rival.p


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "checkpoints"), [(50, 8), (300, 4)])
def test_curves_without_a_difference_give_a_claim_in_at_most_5_of_100(queries, checkpoints):
    rng = np.random.default_rng(4)
    curves, false = 300, 0
    for _ in range(curves):
        scores = sparse_curve(rng, queries, checkpoints)
        false += min(adjusted_pairs([scores], [1.0])) <= ALPHA
    assert false / curves <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / curves)


def test_the_best_checkpoint_is_the_first_of_equals_and_lists_those_not_distinguishable():
    rng = np.random.default_rng(6)
    scores = np.clip(sparse_curve(rng, 200, 4), 0, 1)
    scores[:, 2] = scores[:, 1] = scores[:, 1] + 0.2
    found = select_checkpoint([read_scores(scores)], [1.0])
    assert found.best == "checkpoint-1"
    assert found.indistinguishable == ("checkpoint-2",)
    assert {one.b: one.verdict_on_b for one in found.rivals} == {
        "checkpoint-0": "worse",
        "checkpoint-2": "not significant",
        "checkpoint-3": "worse",
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
