"""BM25 against bm25s, and the rules for words and ties."""

import bm25s
import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN
from hypothesis import given, settings
from hypothesis import strategies as st

from foundation.errors import BenchError
from retrievers.encoders import bm25
from retrievers.encoders.bm25 import BM25
from retrievers.index.hits import sort_canonically
from retrievers.models.card import Option, Recipe

DOCUMENTS = [
    ("Wings", "The lift of a wing grows with the angle of attack"),
    ("", "wing wing wing"),
    ("Boundary layers", "Transition in the boundary layer of a swept wing"),
    ("", ""),
    ("Heat", "Slabs that conduct heat"),
    ("Heat", "Slabs that conduct heat"),
]


def build(documents=DOCUMENTS, **options: Option) -> BM25:
    model = BM25(Recipe(model="bm25", kind="bm25", dim=0, options=options))
    titles, texts = zip(*documents, strict=True)
    model.index([(titles[:2], texts[:2]), (titles[2:], texts[2:])])
    return model


def test_documents_without_a_shared_word_are_unfilled_never_arbitrary():
    hits = build().search(["wing", "unheard", "", "the of"], 5)
    assert (hits.rows >= 0).sum(axis=1).tolist() == [3, 0, 0, 0]
    assert (hits.scores[hits.rows < 0] == -np.inf).all()


def test_all_ties_at_the_cut_are_returned_so_that_ids_decide():
    model = build()
    hits = model.search(["heat"], 1)
    assert sorted(hits.rows[0]) == [4, 5]
    assert hits.scores[0, 0] == hits.scores[0, 1]
    for ranks, first in (([0, 1, 2, 3, 9, 4], 4), ([0, 1, 2, 3, 4, 9], 5)):
        assert sort_canonically(model.search(["heat"], 1), np.array(ranks), 1).rows.tolist() == [
            [first]
        ]


def test_progress_counts_every_document_and_stop_words_are_an_option():
    done: list[int] = []
    model = BM25(Recipe(model="bm25", kind="bm25", dim=0))
    model.index([(["", ""], ["a b", "c"]), ([""], ["d"])], done.append)
    assert sum(done) == len(model) == 3
    assert (build(stopwords="none").search(["the"], 1).rows >= 0).any()
    assert (build().search(["the"], 1).rows == -1).all()
    assert frozenset(STOPWORDS_EN) == bm25.STOP_WORDS, "Lucene's"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k2": 1.0}, "unknown field 'k2'"),
        ({"k1": "high"}, "k1 is 'high'"),
        ({"b": float("nan")}, "b is nan"),
        ({"method": "bm25+"}, "method is 'bm25\\+'"),
        ({"stopwords": "latin"}, "stopwords is 'latin'"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(BenchError, match=message):
        BM25(Recipe(model="bm25", kind="bm25", dim=0, options=options))


def test_stemming_joins_the_forms_of_a_word():
    stemmed = build(stemmer="porter").search(["conducting"], 6)
    assert sorted(stemmed.rows[0][stemmed.rows[0] >= 0]) == [4, 5]
    with pytest.raises(BenchError, match="no stemmer 'porte'"):
        build(stemmer="porte")


WORDS = st.lists(st.integers(0, 5), max_size=12)


@settings(deadline=None)
@given(
    corpus=st.lists(WORDS, min_size=1, max_size=20),
    query=WORDS,
    block=st.integers(1, 20),
    merged=st.integers(1, 20),
)
def test_scores_are_those_of_bm25s_to_the_bit_however_it_is_built(corpus, query, block, merged):
    texts = [" ".join(f"w{number}" for number in words) for words in corpus]
    options: dict[str, Option] = {"k1": 1.2, "b": 0.75}
    model = BM25(Recipe(model="bm25", kind="bm25", dim=0, options=options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "BLOCK_WORDS", block)
        patch.setattr(bm25, "MERGED_POSTINGS", merged)
        patch.setattr(bm25, "MAX_CACHED_FORMS", 2)
        model.index([([""] * len(texts), texts)])
    own = model.search([" ".join(f"w{number}" for number in query)], len(texts))
    filled = own.rows[0] >= 0
    known = {number for words in corpus for number in words}
    asked = [number for number in query if number in known]
    expected = np.zeros(len(texts), np.float32)
    if asked:
        theirs = bm25s.BM25(k1=1.2, b=0.75, method="lucene", backend="numpy")
        numbered = {f"w{number}": place for place, number in enumerate(sorted(known))}
        tokens = [[numbered[f"w{number}"] for number in words] for words in corpus]
        theirs.index((tokens, numbered), create_empty_token=False, show_progress=False)
        expected = theirs.get_scores_from_ids([numbered[f"w{number}"] for number in asked])
    assert sorted(own.rows[0][filled]) == np.flatnonzero(expected > 0).tolist()
    np.testing.assert_array_equal(own.scores[0][filled], expected[own.rows[0][filled]])
