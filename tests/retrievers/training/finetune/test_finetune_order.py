"""Which queries come together, and what is drawn for them."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.training.finetune.student import TextInputs, build_student
from retrievers.training.finetune.training_data import (
    Batches,
    NegativePool,
    TextKeys,
    TrainingSet,
    draw_negatives,
    plan_order,
)
from tests.support.examples import with_examples
from tests.support.small_finetuning import DOCUMENTS, ListedDocuments, examples, model


def order(training, batch_size, steps, seed=0):
    keys = TextKeys.read(training.documents, training.positives)
    return plan_order(training, keys, batch_size, steps, seed)


def test_every_epoch_shows_every_query_once_with_a_relevant_document():
    found = order(examples(6), batch_size=3, steps=8)
    shown = found.queries.reshape(4, 6)
    assert (np.sort(shown, axis=1) == np.arange(6)).all()
    assert len({tuple(epoch) for epoch in shown.tolist()}) > 1
    pairs = zip(found.queries.ravel(), found.positives.ravel(), strict=True)
    assert all(row in examples().positives[query] for query, row in pairs)
    assert set(found.positives.ravel()) == set(np.concatenate(examples(6).positives))


def test_a_longer_training_begins_like_a_shorter_one():
    short, long = order(examples(), 3, 4), order(examples(), 3, 9)
    assert (long.queries[:4] == short.queries).all()


@with_examples(25)
@given(seed=st.integers(0, 1000), groups=st.integers(3, 6))
def test_no_batch_holds_a_document_that_is_relevant_to_two_of_its_queries(seed, groups):
    """Queries of a group share their documents, some under another row with the same text."""
    count = 4 * groups
    texts = [f"text {row % count}" for row in range(2 * count)]
    positives = tuple(
        np.sort(np.array([query % groups, groups + query % groups + count * (query % 2)]))
        for query in range(count)
    )
    documents = ListedDocuments([""] * len(texts), texts)
    names = tuple(map(str, range(count)))
    training = TrainingSet(names, positives, documents, ())
    for queries in order(training, 3, 6, seed).queries.tolist():
        assert len({query % groups for query in queries}) == 3


@with_examples(25)
@given(seed=st.integers(0, 1000), count=st.integers(4, 9))
def test_dense_relevance_still_gives_batches_and_warns(seed, count):
    names = tuple(map(str, range(count)))
    documents = ListedDocuments(["", ""], ["x", "y"])
    training = TrainingSet(names, (np.array([0]),) * count, documents, ())
    found = order(training, 4, 6, seed)
    assert found.queries.shape == (6, 4)
    assert all(len(set(queries)) == 4 for queries in found.queries.tolist())
    assert found.conflicting_batches == 6
    assert order(examples(), 2, 3, seed).conflicting_batches == 0


def keys_of(*rows):
    return TextKeys.read(DOCUMENTS, [np.array(rows)])


def test_negatives_are_drawn_without_repetition_while_there_are_enough():
    pool, keys = np.array([5, 6, 7, 8, -1]), keys_of(5, 6, 7, 8)
    rng = np.random.default_rng(0)
    drawn = [draw_negatives(pool, (), keys, 3, rng) for _ in range(50)]
    assert all(len(set(one)) == 3 for one in drawn)
    assert set(np.concatenate(drawn)) == {5, 6, 7, 8}
    assert set(draw_negatives(pool, (), keys, 9, rng)) == {5, 6, 7, 8}


def test_documents_relevant_to_another_query_of_the_batch_are_not_drawn():
    pool, keys = np.array([5, 6, 7]), keys_of(5, 6, 7)
    banned = keys.of(np.array([5, 7])).tolist()
    rng = np.random.default_rng(0)
    assert draw_negatives(pool, banned, keys, 2, rng).tolist() == [6, 6]
    assert draw_negatives(pool[:1], banned, keys, 2, rng).tolist() == [-1, -1]


@pytest.fixture
def batches(tmp_path):
    start = model(tmp_path)
    trained = build_student(start, start.recipe)
    inputs = TextInputs(trained[0].processor, trained[0].model, start.recipe)

    def make(pool, count=2, seed=0, **fields):
        training = examples()
        keys = TextKeys.read(DOCUMENTS, [*training.positives, pool])
        own = order(training, 3, 4)
        return Batches(training, own, NegativePool(pool, **fields), keys, inputs, count, seed)

    return make


@dataclass(frozen=True)
class RecordedDocuments(ListedDocuments):
    """Documents in memory that record which of them are read."""

    rows: list[int] = field(default_factory=list)

    def read(self, rows):
        self.rows.extend(rows.tolist())
        return super().read(rows)


def rows_at(made, place):
    """The rows that a batch with only this position reads: a relevant document and negatives."""
    documents = RecordedDocuments(DOCUMENTS.titles, DOCUMENTS.texts)
    replace(made, examples=replace(made.examples, documents=documents))([{"index": place}])
    return np.array(documents.rows)


def test_a_position_always_draws_the_same_negatives(batches):
    pool = np.array([list(range(30, 42))] * 7)
    one, other = batches(pool), batches(pool)
    forwards = [rows_at(one, place).tolist() for place in range(12)]
    backwards = [rows_at(other, place).tolist() for place in reversed(range(12))]
    assert forwards == backwards[::-1]
    assert forwards != [rows_at(batches(pool, seed=1), place).tolist() for place in range(12)]


def test_the_relevant_document_comes_first_and_negatives_are_of_the_pool(batches):
    pool = np.array([list(range(30, 42))] * 7)
    made = batches(pool)
    for place in range(12):
        positive, *negatives = rows_at(made, place).tolist()
        query = made.order.queries.ravel()[place]
        assert positive in examples().positives[query]
        assert set(negatives) <= set(pool[query])


def test_a_query_without_negatives_gets_random_documents_that_are_not_its_own(batches):
    made = batches(np.full((7, 3), -1), count=400)
    query = made.order.queries.ravel()[0]
    assert set(rows_at(made, 0)[1:]) == {*range(42)} - set(examples().positives[query])


def test_labels_are_the_teachers_scores_of_the_drawn_documents(batches):
    pool = np.array([[30, 31, 32, 33]] * 7)
    scores = np.arange(28, dtype=np.float32).reshape(7, 4)
    own = [np.array([100 + query, 200 + query], np.float32) for query in range(7)]
    made = batches(pool, scores=scores, positive_scores=own)
    labels = made([{"index": place} for place in range(3)])["label"].numpy()
    for place, label in enumerate(labels):
        query = made.order.queries.ravel()[place]
        rows = rows_at(made, place)
        which = examples().positives[query].tolist().index(rows[0])
        expected = [own[query][which], *(scores[query][row - 30] for row in rows[1:])]
        assert label.tolist() == expected
