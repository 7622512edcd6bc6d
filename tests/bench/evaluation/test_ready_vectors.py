"""Ready vectors as a model: rankings of FAISS, and ids that do not match the collection."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from bench.evaluation.pipeline import evaluate
from bench.runner.workspace import Workspace
from foundation.errors import BenchError
from tests.support.collections import DOCUMENTS, QUERIES, write_collection


@pytest.mark.slow
def test_tevatron_s_vectors_rank_as_faiss_ranked_them(bench_data, tmp_path):
    """The file is the ranking of IndexFlatIP over the same vectors, made by Tevatron's search."""
    workspace = Workspace(tmp_path, device="cpu")
    model = workspace.load(f"vectors:{bench_data / 'vectors' / 'scifact-768d.npz'}:dot")
    dataset = workspace.open(str(bench_data / "beir" / "scifact"))
    found = {query: (ids, scores) for query, ids, scores in evaluate_all(workspace, dataset, model)}
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


def evaluate_all(workspace, dataset, model):
    return evaluate(workspace.prepare(dataset, model)).run.rankings()


def write_vectors(folder: Path, documents: list[str], queries: list[str]) -> str:
    rng = np.random.default_rng(0)
    for name, ids in {"documents": documents, "queries": queries}.items():
        np.savez(folder / f"{name}.npz", vectors=rng.normal(size=(len(ids), 4)), ids=ids)
    return f"vectors:{folder}:dot"


def test_documents_with_equal_texts_keep_their_own_vectors(tmp_path):
    collection = write_collection(tmp_path / "collection")
    name = write_vectors(tmp_path, [*DOCUMENTS], [*QUERIES])  # d9 and d10 have the same text
    workspace = Workspace(tmp_path / "cache", device="cpu")
    run = evaluate_all(workspace, workspace.open(str(collection)), workspace.load(name))
    assert all(len(set(scores.tolist())) == len(scores) for _, _, scores in run)


@pytest.mark.parametrize(
    ("documents", "queries", "message"),
    [
        ([*DOCUMENTS][1:], [*QUERIES], "1 of 6 ids has no document vector: d1; the 5 vectors"),
        ([*DOCUMENTS], [*QUERIES][1:], "1 of 3 ids has no query vector: q1; the 3 vectors"),
    ],
)
def test_an_id_without_a_vector_is_refused_before_the_search(tmp_path, documents, queries, message):
    collection = write_collection(tmp_path / "collection")
    name = write_vectors(tmp_path, documents, queries)
    workspace = Workspace(tmp_path / "cache", device="cpu")
    with pytest.raises(BenchError, match=message):
        workspace.prepare(workspace.open(str(collection)), workspace.load(name))


def test_vectors_of_other_documents_are_counted(tmp_path):
    collection = write_collection(tmp_path / "collection")
    name = write_vectors(tmp_path, [*DOCUMENTS, "x1", "x2"], [*QUERIES, "other"])
    workspace = Workspace(tmp_path / "cache", device="cpu")
    done = evaluate(workspace.prepare(workspace.open(str(collection)), workspace.load(name)))
    (note,) = [line for line in done.record.preflight["warnings"] if "are ignored" in line]
    assert note.startswith("2 of 8 document vectors are ignored: collection does not contain")
    assert note.endswith("(x1, x2)")
