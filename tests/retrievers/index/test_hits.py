"""The one order, self-matches, and recall against exact search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.errors import BenchError
from retrievers.index.hits import (
    MAX_RANK,
    Hits,
    canonical_order,
    exclude_documents,
    recall_at_k,
    sort_canonically,
)
from tests.support.exact_oracle import assert_same

INF = float("inf")


@given(
    hits=st.lists(st.tuples(st.floats(allow_nan=False, width=32), st.integers(-1, 50)), max_size=30)
)
def test_order_is_score_then_rank_falling_with_unfilled_ranks_last(hits):
    scores = np.array([score for score, _ in hits], np.float32)
    tie_rank = np.array([rank for _, rank in hits], np.int64)
    expected = sorted(
        range(len(hits)),
        key=lambda i: (hits[i][1] < 0, -hits[i][0], -hits[i][1]) if hits[i][1] >= 0 else (True,),
    )
    assert canonical_order(scores, tie_rank).tolist() == expected


def test_order_compares_scores_as_float32_and_refuses_what_its_keys_cannot_hold():
    assert canonical_order([0.1, 0.1 + 1e-12], [1, 0]).tolist() == [0, 1]
    assert canonical_order([-0.0, 0.0], [1, 0]).tolist() == [0, 1]
    assert canonical_order([1.0, 1.0], [0, MAX_RANK]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="tie ranks"):
        canonical_order([1.0], [MAX_RANK + 1])
    with pytest.raises(BenchError, match="NaN"):
        canonical_order([1.0, np.nan], [0, 1])
    assert canonical_order([1.0, np.nan], [0, -1]).tolist() == [0, 1]


def hits_of(scores: list[list[float]], rows: list[list[int]]) -> Hits:
    return Hits(np.array(scores, np.float32), np.array(rows, np.int64))


def test_hits_are_cut_or_padded_and_an_unfilled_row_never_becomes_the_last_document():
    hits = hits_of([[9.0, 1.0, 1.0]], [[-1, 0, 2]])
    assert_same(sort_canonically(hits, np.arange(3), 1), hits_of([[1.0]], [[2]]))
    padded = hits_of([[1.0, 1.0, -INF, -INF]], [[2, 0, -1, -1]])
    assert_same(sort_canonically(hits, np.arange(3), 4), padded)


# Self-matches


def test_dropping_the_self_match_keeps_the_depth():
    hits = hits_of(
        [[3, 2, 1], [3, 2, 1], [3, 2, 1], [3, -INF, -INF]],
        [[7, 8, 9], [7, 8, 9], [7, 8, 9], [7, -1, -1]],
    )
    left = exclude_documents(hits, np.array([8, -1, 5, -1]), 2)
    expected = hits_of([[3, 1], [3, 2], [3, 2], [3, -INF]], [[7, 9], [7, 8], [7, 8], [7, -1]])
    assert_same(left, expected)


def test_dropping_self_matches_needs_one_more_than_the_depth():
    with pytest.raises(ValueError, match="depth 2"):
        exclude_documents(hits_of([[3, 2]], [[7, 8]]), np.array([7]), 2)
    with pytest.raises(ValueError, match="fewer than 2"):
        exclude_documents(hits_of([[3, 2, 1]], [[7, 8, 9]]), np.array([[7, 8]]), 2)


# Recall against exact


def test_recall_is_the_share_of_the_true_neighbours_of_each_query():
    """Neither unfilled ranks nor rows of another query count."""
    none = -INF
    truth = hits_of(
        [[3, 2], [3, 2], [3, none], [none, none], [3, 2], [3, none]],
        [[1, 2], [1, 2], [0, -1], [-1, -1], [5, 6], [-1, 4]],
    )
    found = hits_of(
        [[3, 2], [3, 2], [3, none], [3, 2], [3, none], [3, none]],
        [[2, 1], [2, 9], [-1, 0], [1, 2], [-1, 4], [5, -1]],
    )
    assert recall_at_k(found, truth, 2).tolist() == [1.0, 0.5, 1.0, 1.0, 0.0, 0.0]
    assert recall_at_k(found, truth, 1).tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]
