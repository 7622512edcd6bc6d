"""``--index bm25``: what BM25 finds, ranked by its score times the similarity."""

import numpy as np
import pytest

from bench.evaluation.pipeline import evaluate
from bench.evaluation.retriever import EvaluationOptions
from bench.runner.workspace import Workspace
from retrievers.index.faiss_index import IndexSpec
from retrievers.index.hits import Hits, multiply_by_similarity, sort_canonically
from tests.support.collections import DOCUMENTS, QUERIES, write_collection

PRODUCT = EvaluationOptions(index=IndexSpec.parse("bm25"), depth=4, measures=())
METADATA = 'name = "tiny"\nmain_measure = "nDCG@2"\n'


def evaluated(tmp_path, name, options, metadata=METADATA):
    folder = tmp_path / "collection"
    if not folder.exists():
        write_collection(folder, metadata=metadata)
    workspace = Workspace(tmp_path / "cache")
    loaded = workspace.load(name)
    return evaluate(workspace.prepare(workspace.open(str(folder)), loaded, options)), loaded


def rankings(evaluation):
    return {
        query: list(zip(ids, scores.tolist(), strict=True))
        for query, ids, scores in evaluation.run.rankings()
    }


def test_every_score_is_that_of_bm25_times_the_inner_product(tmp_path):
    found, loaded = evaluated(tmp_path, "hashing", PRODUCT)
    encoder = loaded.require_encoder()
    words, _ = evaluated(tmp_path, "bm25", EvaluationOptions(depth=4, measures=()))
    by_words, products = rankings(words), rankings(found)
    assert any(by_words.values())
    for query, ranking in by_words.items():
        asked = encoder.encode_queries([QUERIES[query]]).astype(np.float64)[0]
        expected = []
        for name, score in ranking:
            title, text = DOCUMENTS[name]
            document = encoder.encode_documents([title], [text]).astype(np.float64)[0]
            expected.append((np.float32(score * (asked @ document)), name.encode()))
        expected.sort(reverse=True)  # ties: the larger id first
        own = products[query]
        assert [name for name, _ in own] == [name.decode() for _, name in expected]
        assert [score for _, score in own] == pytest.approx([s for s, _ in expected], rel=1e-6)


def test_the_result_of_an_approximate_index_is_marked_and_kept_apart(tmp_path):
    found, _ = evaluated(tmp_path, "hashing", PRODUCT)
    exact, _ = evaluated(tmp_path, "hashing", EvaluationOptions(depth=4, measures=()))
    assert (found.record.index, found.record.index_recall) == ("bm25", {})
    assert found.record.fingerprint == exact.record.fingerprint
    assert rankings(found) != rankings(exact)


def test_dropping_the_own_document_of_a_query_keeps_the_depth(tmp_path):
    metadata = f"{METADATA}exclude_self = true\n"
    options = EvaluationOptions(index=IndexSpec.parse("bm25"), depth=2, measures=())
    found, _ = evaluated(tmp_path, "hashing", options, metadata)
    own = [name for name, _ in rankings(found)["q3"]]
    assert "q3" not in own
    assert len(own) == 2


def test_unfilled_ranks_stay_unfilled_and_negative_products_come_last():
    vectors = np.array([[1.0, 0.0], [-1.0, 0.0], [0.5, 0.0]], np.float32)
    hits = Hits(
        np.array([[3.0, 2.0, 1.0, -np.inf]], np.float32), np.array([[1, 0, 2, -1]], np.int64)
    )
    queries = np.array([[2.0, 7.0]], np.float32)
    products = multiply_by_similarity(hits, queries, lambda rows: vectors[rows])
    ordered = sort_canonically(products, np.arange(3), 4)
    assert ordered.rows.tolist() == [[0, 2, 1, -1]]
    assert ordered.scores.tolist() == [[4.0, 1.0, -6.0, -np.inf]]
