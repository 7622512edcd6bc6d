"""Mined negatives against a loop over every document."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.errors import BenchError
from retrievers.index.hits import Hits
from retrievers.training.finetune.training_data import (
    MinedHits,
    TextKeys,
    TrainingSet,
    merge_negatives,
    select_negatives,
)
from retrievers.training.preset import Mining
from tests.support.small_finetuning import ListedDocuments, Search, examples, ranked

DOCUMENTS = 12


def by_hand(scores, training, settings):
    """Walk down each query's ranking, in plain Python."""
    documents, found = training.documents, []
    for query, positives in enumerate(training.positives):
        relevant = {(documents.titles[row], documents.texts[row]) for row in positives}
        lowest = min(scores[query][row] for row in positives)
        order = sorted(range(DOCUMENTS), key=lambda row: -scores[query][row])[: settings.depth]
        wrong = [
            row for row in order if (documents.titles[row], documents.texts[row]) not in relevant
        ][settings.skip :]
        if settings.margin is not None:
            limit = np.float32(lowest) - np.float32(settings.margin)
            wrong = [row for row in wrong if scores[query][row] <= limit]
        found.append(wrong[: settings.keep])
    return found


@given(
    seed=st.integers(0, 10_000),
    depth=st.integers(1, DOCUMENTS),
    skip=st.integers(0, 3),
    keep=st.integers(1, 6),
    margin=st.none() | st.floats(-1, 1, width=16),
    repeats=st.lists(st.integers(0, DOCUMENTS - 1), min_size=DOCUMENTS, max_size=DOCUMENTS),
)
def test_negatives_are_those_of_a_walk_down_the_ranking(seed, depth, skip, keep, margin, repeats):
    rng = np.random.default_rng(seed)
    documents = ListedDocuments(
        [f"t{n % 2}" for n in range(DOCUMENTS)], [f"text {repeats[n]}" for n in range(DOCUMENTS)]
    )
    training = TrainingSet(
        ("x", "y", "z"),
        tuple(np.sort(rng.choice(DOCUMENTS, n, replace=False)) for n in (1, 2, 3)),
        documents,
        (),
    )
    scores = rng.permuted(np.linspace(-1, 1, 3 * DOCUMENTS, dtype=np.float32)).reshape(3, -1)
    settings = Mining(sources=("model",), depth=depth, skip=skip, keep=keep, margin=margin)
    expected = by_hand(scores, training, settings)
    if not any(expected):
        with pytest.raises(BenchError, match="found no negatives"):
            select_negatives(ranked(scores, training, depth), training, settings)
        return
    rows = select_negatives(ranked(scores, training, depth), training, settings)
    assert [row[row >= 0].tolist() for row in rows] == expected


def test_unfilled_ranks_of_a_search_are_not_negatives():
    training = examples(1)
    hits = Hits(np.array([[1, -np.inf]], np.float32), np.array([[20, -1]]))
    rows = select_negatives(
        MinedHits(hits, np.array([np.inf], np.float32)), training, Mining(keep=2)
    )
    assert rows.tolist() == [[20, -1]]


def test_sources_are_merged_without_repetition():
    pools = [np.array([[3, 1, -1], [2, -1, -1]]), np.array([[1, 5], [-1, -1]])]
    assert merge_negatives(pools, 2).tolist() == [[3, 1, 5], [2, -1, -1]]


def test_negatives_of_bm25_have_no_margin():
    settings = Mining(sources=("bm25", "model"), depth=40, keep=3, margin=100.0)
    assert (select_negatives(Search()(None, 40), examples(), settings) >= 0).all()


def test_equal_keys_are_equal_texts():
    documents = ListedDocuments(["a", "", "a", ""], ["b c", "a b c", "b c", "ab c"])
    keys = TextKeys.read(documents, [np.array([[3, -1], [0, 1]]), np.array([2])])
    found = keys.of(np.array([0, 1, 2, 3])).tolist()
    assert found[0] == found[2]
    assert len(set(found)) == 3
