"""Ready vectors as a model: rankings of FAISS, and ids that do not match the collection."""

from collections import defaultdict

import numpy as np
import pytest

from bench.evaluation.pipeline import Job, evaluate
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from tests.support.collections import DOCUMENTS, QUERIES, write_collection


@pytest.mark.slow
def test_tevatron_s_vectors_rank_as_faiss_ranked_them(bench_data, tmp_path):
    """The file is the ranking of IndexFlatIP over the same vectors, made by Tevatron's search."""
    workspace = Workspace(tmp_path, device="cpu")
    model = workspace.load(f"vectors:{bench_data / 'vectors' / 'scifact-768d.npz'}:dot")
    dataset = workspace.open(str(bench_data / "beir" / "scifact"))
    run = evaluate(workspace.prepare(dataset, model)).run
    found = {query: (ids, scores) for query, ids, scores in run.rankings()}
    expected = defaultdict(list)
    with (bench_data / "vectors" / "scifact-768d.rank.txt").open() as lines:
        for query, document, score in map(str.split, lines):
            if query in found:
                expected[query].append((document, float(score)))
    assert len(expected) == 300
    for query, rows in expected.items():
        ids, scores = found[query]
        np.testing.assert_allclose(scores[: len(rows)], [score for _, score in rows], atol=2e-5)
        assert set(ids[:10]) == {name for name, _ in rows[:10]}


@pytest.fixture
def prepare(tmp_path):
    """Prepares an evaluation of random vectors of these documents and queries."""

    def with_ids(documents: list[str], queries: list[str]) -> Job:
        rng = np.random.default_rng(0)
        for name, ids in {"documents": documents, "queries": queries}.items():
            vectors = rng.normal(size=(len(ids), 4))
            np.savez(tmp_path / f"{name}.npz", vectors=vectors, ids=ids)
        collection = write_collection(tmp_path / "collection")
        workspace = Workspace(tmp_path / "cache", device="cpu")
        model = workspace.load(f"vectors:{tmp_path}:dot")
        return workspace.prepare(workspace.open(str(collection)), model)

    return with_ids


def test_documents_with_equal_texts_keep_their_own_vectors_and_others_are_counted(prepare):
    """The texts of d9 and d10 are equal."""
    done = evaluate(prepare([*DOCUMENTS, "x1", "x2"], [*QUERIES, "other"]))
    rankings = list(done.run.rankings())
    assert all(len(set(scores.tolist())) == len(scores) for _, _, scores in rankings)
    (note,) = [line for line in done.record.preflight["warnings"] if "are ignored" in line]
    assert note.startswith("2 of 8 document vectors are ignored: collection does not contain")
    assert note.endswith("(x1, x2)")


@pytest.mark.parametrize(
    ("documents", "queries", "message"),
    [
        ([*DOCUMENTS][1:], [*QUERIES], "1 of 6 ids has no document vector: d1; the 5 vectors"),
        ([*DOCUMENTS], [*QUERIES][1:], "1 of 3 ids has no query vector: q1; the 3 vectors"),
    ],
)
def test_an_id_without_a_vector_is_refused_before_the_search(prepare, documents, queries, message):
    with pytest.raises(BenchError, match=message):
        prepare(documents, queries)
