"""What a search does to rankings is named by the documents that it loses."""

import numpy as np
import pytest

from bench.evaluation.runs import Run
from bench.explain.causes import describe_search, find_filter

QUERIES, DOCUMENTS, ROWS = 225, 1_400, 12


def run_of(rankings: list[list[int]]) -> Run:
    rows = [(f"q{query}", f"d{row}") for query, ids in enumerate(rankings) for row in ids]
    queries, documents = zip(*rows, strict=True)
    return Run.from_rows(queries, documents, -np.arange(len(rows)))


@pytest.fixture
def rankings() -> list[list[int]]:
    """Short rankings, in which many documents occur once."""
    rng = np.random.default_rng(0)
    return [rng.choice(DOCUMENTS, ROWS, replace=False).tolist() for _ in range(QUERIES)]


def test_documents_that_no_short_ranking_has_are_those_of_a_filter(rankings):
    hidden = set(range(0, DOCUMENTS, 4))
    left = [[row for row in ids if row not in hidden] for ids in rankings]
    found = find_filter(run_of(rankings), run_of(left))
    assert found is not None
    assert found.name.startswith("filter after the search")


def test_rows_that_are_lost_at_random_are_not_those_of_a_filter(rankings):
    rng = np.random.default_rng(1)
    left = [[row for row in ids if rng.random() > 0.25] for ids in rankings]
    assert find_filter(run_of(rankings), run_of(left)) is None


def test_a_search_stops_early_if_nearly_all_queries_have_the_same_number_of_rows(rankings):
    rows = [ids[:4] for ids in rankings]
    rows[7] = rankings[7][:5]
    cause = describe_search(run_of(rankings), run_of(rows), ROWS)
    assert cause.name == "the search stops early: it returns 4 of 12 rows"
    rows = [ids[: 3 + query % 3] for query, ids in enumerate(rankings)]
    cause = describe_search(run_of(rankings), run_of(rows), ROWS)
    assert cause.name.startswith("approximate search: 3 to 5 of 12 rows")
