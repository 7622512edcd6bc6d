"""Ready vectors: forms of files, and what does not fit together."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from foundation.errors import BenchError
from retrievers.encoders.ready_vectors import ReadyVectors
from retrievers.models.read_vectors import read_vectors, vector_files
from retrievers.models.resolve import resolve_model

RNG = np.random.default_rng(0)
ARRAYS = {"documents": RNG.normal(size=(5, 4)), "queries": RNG.normal(size=(3, 4))}
VECTORS = {name: array.astype(np.float32) for name, array in ARRAYS.items()}
IDS = {"documents": ["b", "a", "10", "9", "é"], "queries": ["q1", "q2", "10"]}


def npy(folder: Path, name: str) -> None:
    np.save(folder / f"{name}.npy", VECTORS[name])
    (folder / f"{name}.ids.txt").write_text("\n".join(IDS[name]) + "\n", encoding="utf-8")


def npy_parts(folder: Path, name: str) -> None:
    for number, rows in {2: slice(0, 2), 10: slice(2, None)}.items():
        np.save(folder / f"{name}-{number}.npy", VECTORS[name][rows])
        np.save(folder / f"{name}-{number}-ids.npy", np.array(IDS[name][rows]))


def npz(folder: Path, name: str) -> None:
    np.savez(folder / f"{name}.npz", embeddings=VECTORS[name], ids=IDS[name])


def safetensors(folder: Path, name: str) -> None:
    save_file({"embeddings": VECTORS[name]}, folder / f"{name}.safetensors")
    (folder / f"{name}_ids.json").write_text(json.dumps(IDS[name]), encoding="utf-8")


def parquet(folder: Path, name: str) -> None:
    columns = {"doc_id": IDS[name], "text": ["-"] * len(IDS[name])}
    pq.write_table(pa.table({**columns, "vector": list(VECTORS[name])}), folder / f"{name}.parquet")


def fixed_parquet(folder: Path, name: str) -> None:
    flat = pa.array(VECTORS[name].ravel())
    vectors = pa.FixedSizeListArray.from_arrays(flat, VECTORS[name].shape[1])
    pq.write_table(pa.table({"id": IDS[name], "vector": vectors}), folder / f"{name}.parquet")


@pytest.mark.parametrize("queries", [npy, npz, safetensors, parquet, fixed_parquet, npy_parts])
@pytest.mark.parametrize("documents", [npy, npz, safetensors, parquet, fixed_parquet, npy_parts])
def test_forms_give_the_same_vectors(tmp_path, documents, queries):
    documents(tmp_path, "documents")
    queries(tmp_path, "queries")
    found = read_vectors(vector_files(tmp_path))
    for role, name in {"document": "documents", "query": "queries"}.items():
        np.testing.assert_array_equal(found[role].rows(IDS[name][::-1]), VECTORS[name][::-1])
        assert found[role].find_missing(["new", *IDS[name]]) == ["new"]


def test_half_precision_and_whole_numbers_as_ids_are_read(tmp_path):
    vectors = {name: array.astype(np.float16) for name, array in VECTORS.items()}
    ids = {"corpus_ids": np.arange(5), "query_ids": np.arange(3)}
    np.savez(tmp_path / "all.npz", corpus=vectors["documents"], queries=vectors["queries"], **ids)
    found = read_vectors(vector_files(tmp_path / "all.npz"))
    expected = vectors["documents"][[4, 0]].astype(np.float32)
    np.testing.assert_array_equal(found["document"].rows(["4", "0"]), expected)


def save(**arrays: object) -> Callable[[Path], None]:
    whole = {"documents": VECTORS["documents"], "document_ids": IDS["documents"]}
    whole |= {"queries": VECTORS["queries"], "query_ids": IDS["queries"]}
    kept = {name: array for name, array in {**whole, **arrays}.items() if array is not None}
    return lambda folder: np.savez(folder / "all.npz", **kept)


def write_pickle(folder: Path) -> None:
    (folder / "corpus.pkl").write_bytes(pickle.dumps((VECTORS["documents"], IDS["documents"])))


def write_damaged(folder: Path) -> None:
    (folder / "documents.npy").write_bytes(b"\x93NUMPY")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_pickle, r"corpus\.pkl is a pickle"),
        (write_damaged, r"documents\.npy cannot be read"),
        (lambda folder: None, "there are no vectors in"),
        (save(queries=None), "no vectors of query"),
        (save(query_ids=None), "no ids of query"),
        (save(query_ids=["q1", "q2"]), r"\[3\] vectors of query, but \[2\] ids"),
        (save(query_ids=["q1", "q2", "q1"]), "the query q1 has two vectors"),
        (save(queries=np.zeros((3, 5))), "documents have 4 dimensions, queries 5"),
        (save(queries=np.zeros((3, 4), np.int8)), "vectors of query are int8"),
        (save(other=np.zeros((3, 4))), "all.npz: other names neither documents nor queries"),
        (save(query_ids=np.array(IDS["queries"], object)), "all.npz cannot be read"),
    ],
)
def test_what_does_not_fit_together_is_one_error(tmp_path, write, message):
    write(tmp_path)
    with pytest.raises(BenchError, match=message):
        read_vectors(vector_files(tmp_path))


def opened(folder: Path, similarity: str = "") -> ReadyVectors:
    model = resolve_model(f"vectors:{folder}{similarity}")
    return ReadyVectors(model.recipe, model.checkpoint.files, model.card.title)


def test_lengths_other_than_one_need_a_similarity(tmp_path):
    npz(tmp_path, "documents")
    npz(tmp_path, "queries")
    with pytest.raises(BenchError, match="inner product and cosine rank differently"):
        opened(tmp_path).encode_queries(IDS["queries"])
    dot, cosine = (opened(tmp_path, f":{name}") for name in ("dot", "cos"))
    np.testing.assert_array_equal(dot.encode_queries(IDS["queries"]), VECTORS["queries"])
    lengths = np.linalg.norm(VECTORS["queries"], axis=1, keepdims=True)
    scaled = VECTORS["queries"] / lengths
    np.testing.assert_allclose(cosine.encode_queries(IDS["queries"]), scaled, rtol=1e-6)
    assert dot.recipe.fingerprint != cosine.recipe.fingerprint


@pytest.mark.parametrize(("value", "what"), [(np.nan, "not finite"), (0.0, "zero")])
def test_a_vector_that_cannot_be_compared_is_named(tmp_path, value, what):
    npz(tmp_path, "queries")
    documents = VECTORS["documents"].copy()
    documents[3] = value
    np.savez(tmp_path / "documents.npz", documents=documents, ids=IDS["documents"])
    with pytest.raises(BenchError, match=f"the vector of document 9 is {what}"):
        opened(tmp_path, ":dot").encode_documents([""] * 5, IDS["documents"])


def test_other_vectors_are_another_model_and_a_moved_folder_is_the_same(tmp_path):
    fingerprints = []
    for name, factor in {"one": 1, "copy": 1, "other": 2}.items():
        folder = tmp_path / name
        folder.mkdir()
        npz(folder, "queries")
        vectors = VECTORS["documents"] * factor
        np.savez(folder / "documents.npz", documents=vectors, ids=IDS["documents"])
        fingerprints.append(resolve_model(f"vectors:{folder}:dot").recipe.fingerprint)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
