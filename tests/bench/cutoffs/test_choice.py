"""The choice of a cut-off: exact cases, brute force, ties, order and transformations of scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.cutoffs.cutoff import (
    ScoredRankings,
    choose_cutoff,
    least_queries,
    lower_bound,
    lower_bounds,
)
from tests.support.examples import with_examples

DRAWS = 199


def quick(kept):
    return lower_bound(kept, DRAWS)


def one_relevant(scores):
    """Queries with one document each, which is relevant."""
    column = np.asarray(scores, dtype=np.float32)[:, None]
    return ScoredRankings(column, np.ones_like(column, dtype=bool), 1)


@st.composite
def rankings(draw):
    """Rankings of five documents with ties; three count, and one of these is relevant."""
    queries = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 1_000))
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.integers(-8, 9, (queries, 5)), axis=1).astype(np.float32)
    relevant = rng.random((queries, 5)) < 0.4
    relevant[np.arange(queries), rng.integers(0, 3, queries)] = True
    return ScoredRankings(scores, relevant, 3)


def brute_force(part, keep):
    """Test every score from low to high, and stop at the first failure."""
    best = None
    for cutoff in sorted(set(part.scores[:, :3][part.relevant[:, :3]].tolist())):
        shares = []
        for scores, relevant in zip(part.scores[:, :3], part.relevant[:, :3], strict=True):
            of_query = [s >= cutoff for s, r in zip(scores, relevant, strict=True) if r]
            shares.append(sum(of_query) / len(of_query))
        if quick(np.array(shares)) < keep:
            break
        best = cutoff
    return best


@given(rankings(), st.sampled_from([0.3, 0.6, 0.8, 0.9]))
@with_examples(50)
def test_the_choice_is_that_of_a_sequence_of_tests_from_low_to_high(part, keep):
    assert choose_cutoff([part], [keep], quick) == brute_force(part, keep)


@given(rankings(), rankings(), st.sampled_from([0.3, 0.6, 0.8]))
@with_examples(25)
def test_the_cutoff_of_several_parts_is_the_highest_that_each_of_them_passes(one, other, keep):
    parts = [one, other]
    chosen = choose_cutoff(parts, [keep, keep], quick)
    scores = np.unique(np.concatenate([part.relevant_scores for part in parts]))
    passed = [s for s in scores if all(quick(part.kept(float(s))) >= keep for part in parts)]
    assert chosen == max(passed, default=None)


@pytest.mark.parametrize(("queries", "keep"), [(70, 0.95), (300, 0.95), (300, 0.9), (450, 0.8)])
def test_one_relevant_document_of_each_query_has_the_cutoff_of_clopper_and_pearson(queries, keep):
    scores = np.random.default_rng(queries).permutation(queries)
    chosen = choose_cutoff([one_relevant(scores)], [keep])
    lost = np.arange(queries)
    kept = 1 - stats.beta.ppf(0.95, lost + 1, queries - lost)
    assert np.abs(kept - keep).min() > 5e-4  # not decided by random weights
    assert chosen == np.count_nonzero(kept >= keep) - 1


@pytest.mark.parametrize("slices", [2, 8, 40])
def test_bounds_at_the_level_of_several_slices_are_those_of_clopper_and_pearson(slices):
    for queries, lost in ((30, 0), (100, 3), (300, 20)):
        kept = np.repeat([0.0, 1.0], [lost, queries - lost])
        exact = 1 - stats.beta.ppf(1 - 0.05 / slices, lost + 1, queries - lost)
        assert lower_bound(kept, level=1 - 0.05 / slices) == pytest.approx(exact, abs=3e-3)


@pytest.mark.parametrize(("keep", "needed"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_the_least_queries_are_those_whose_power_is_below_5_percent(keep, needed):
    assert keep**needed <= 0.05 < keep ** (needed - 1)
    assert least_queries(keep) == needed
    scores = np.arange(needed)
    assert choose_cutoff([one_relevant(scores)], [keep]) == 0
    assert choose_cutoff([one_relevant(scores[1:])], [keep]) is None


def test_no_number_of_queries_below_ten_million_keeps_nearly_everything():
    assert least_queries(1 - 1e-8) is None


def test_the_best_other_document_is_found_below_relevant_ones_and_may_be_missing():
    scores = np.array([[3, 2, 1], [3, 2, 1], [3, -np.inf, -np.inf], [-np.inf] * 3], np.float32)
    relevant = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=bool)
    part = ScoredRankings(scores, relevant, 1)
    np.testing.assert_equal(part.best_other, np.array([1, np.nan, -np.inf, -np.inf], np.float32))
    assert len(part.answered) == 3


def test_bounds_of_several_cutoffs_are_those_of_each():
    kept = np.random.default_rng(0).random((50, 3))
    assert lower_bounds(kept) == pytest.approx([lower_bound(column) for column in kept.T])


def test_scores_that_depend_on_the_rank_alone_are_noticed():
    ranks = np.array([[-1, -2], [-1, -np.inf]], np.float32)
    assert ScoredRankings(ranks, ranks == -1, 1).has_only_ranks
    ranks[1, 0] = -1.5
    assert not ScoredRankings(ranks, ranks == -1, 1).has_only_ranks
