"""Compressed documents: rankings, bytes and stored vectors, against NumPy and FAISS."""

import hashlib
import json
import subprocess
import sys

import faiss
import msgspec
import numpy as np
import pytest

import bench as api
from bench.evaluation.vector_search import bytes_per_document
from bench.result_store.find import find_named
from bench.result_store.result import load
from bench.store.indexes import INDEXES, MANIFEST_FILE, IndexFolder
from foundation.errors import BenchError
from retrievers.encoders.transformer import open_encoder
from retrievers.index.faiss_index import IndexSpec
from retrievers.models.card import Compression, Recipe
from retrievers.models.resolve import resolve_model
from tests.support.collections import NUMBERED, write_collection

TEXTS, QUERIES, QRELS = NUMBERED
COMMON = ("--model", "hashing", "--depth", 20, "--measure", "R@10", "--recompute")
IDS = list(TEXTS)


@pytest.fixture
def folder(tmp_path):
    return write_collection(tmp_path / "words", TEXTS, QUERIES, QRELS)


def run(bench, folder, *options):
    done = bench("run", folder, *COMMON, *options)
    assert done.code == 0, done.stderr
    return load(max((bench.out / "words" / "hashing").iterdir(), key=_written))


def _written(path):
    return path.stat().st_mtime_ns


def encode():
    encoder = open_encoder(resolve_model("hashing"))
    documents = encoder.encode_documents(*map(list, zip(*TEXTS.values(), strict=True)))
    return documents, encoder.encode_queries(list(QUERIES.values()))


def cut(vectors, dimensions):
    kept = vectors[:, :dimensions]
    if kept.shape == vectors.shape:
        return vectors
    return kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-30)


def quantise(vectors, precision):
    """Values that the codes of sentence-transformers stand for."""
    if precision == "float16":
        return vectors.astype(np.float16).astype(np.float64)
    if precision.endswith("int8"):
        low, high = vectors.min(axis=0), vectors.max(axis=0)
        step = np.where(high == low, np.float32(1), (high - low) / 255)
        return low + (np.clip(np.floor((vectors - low) / step), 0, 255) + 0.5) * step
    return np.where(vectors > 0, 1.0, -1.0) if "binary" in precision else vectors


def ranked(scores, names):
    pairs = sorted(zip(scores.astype(np.float32), names, strict=True))
    return sorted(pairs, key=lambda one: (one[0], one[1].encode()), reverse=True)


@pytest.mark.parametrize(
    ("dimensions", "precision"),
    [
        *((None, "float16"), (None, "int8"), (40, "int8"), (40, "uint8")),
        *((None, "ubinary"), (40, "binary")),
    ],
)
def test_rankings_are_those_of_brute_force(bench, folder, dimensions, precision):
    options = ["--precision", precision, *(["--dimensions", dimensions] if dimensions else [])]
    found = run(bench, folder, *options)
    documents, queries = (cut(vectors, dimensions) for vectors in encode())
    queries = quantise(queries, precision) if "binary" in precision else queries
    scores = queries.astype(np.float64) @ quantise(documents, precision).T.astype(np.float64)
    for line, (_, names, theirs) in zip(scores, found.run.rankings(), strict=True):
        expected = ranked(line, IDS)[:20]
        np.testing.assert_allclose(theirs, [score for score, _ in expected], rtol=2e-6)
        by_name = dict(zip(IDS, line, strict=True))
        np.testing.assert_allclose([by_name[name] for name in names], theirs, rtol=2e-6)
        if "binary" in precision:  # whole numbers, with many ties
            assert list(names) == [name for _, name in expected]
    assert found.record.recipe.compression.precision == precision


@pytest.mark.parametrize("by", ["", ":int8"])
def test_candidates_are_scored_again_by_all_dimensions(bench, folder, by):
    found = run(bench, folder, "--dimensions", 40, "--precision", "binary", "--rescore", f"12{by}")
    documents, queries = encode()
    signs = quantise(cut(queries, 40), "binary") @ quantise(cut(documents, 40), "binary").T
    whole = quantise(documents, "int8") if by else documents
    for query, line, (_, names, scores) in zip(queries, signs, found.run.rankings(), strict=True):
        candidates = [name for _, name in ranked(line, IDS)[:12]]
        rows = [IDS.index(name) for name in candidates]
        again = whole[rows].astype(np.float64) @ query.astype(np.float64)
        expected = ranked(again, candidates)
        assert sorted(names) == sorted(candidates)
        np.testing.assert_allclose(scores, [score for score, _ in expected], rtol=2e-6)
    assert found.record.protocol.depth == 20, "comparable with the uncompressed result"
    assert found.record.bytes_per_document == 5 + documents.shape[1] * (1 if by else 4)


def test_rescoring_every_document_is_exact_search_to_the_depth(bench, folder):
    plain = run(bench, folder)
    found = run(bench, folder, "--precision", "binary", "--rescore", 300)
    for one, other in zip(plain.run.rankings(), found.run.rankings(), strict=True):
        assert (one[0], list(one[1])) == (other[0], list(other[1]))
        np.testing.assert_array_equal(one[2], other[2])
    assert found.measures == plain.measures


def test_all_settings_share_one_encoding_and_results_are_selected_by_them(bench, folder):
    plain = run(bench, folder)
    settings = [
        ("--dimensions", 40),
        ("--precision", "int8"),
        ("--precision", "binary"),
        ("--dimensions", 40, "--precision", "int8"),
    ]
    results = [run(bench, folder, *options) for options in settings]
    assert plain.record.timings.encoded_documents == 300
    assert [one.record.timings.encoded_documents for one in results] == [0, 0, 0, 0]
    assert len({one.record.key for one in (plain, *results)}) == 5
    dim = plain.record.recipe.dim
    sizes = [one.record.bytes_per_document for one in (plain, *results)]
    assert sizes == [4 * dim, 160, dim, dim // 8, 40]
    whole = run(bench, folder, "--dimensions", dim)
    assert whole.record.key == plain.record.key, "all dimensions are no compression"
    (found,) = find_named("hashing@dimensions=40@precision=int8", bench.out)
    assert found.record.key == results[-1].record.key
    board = bench("leaderboard", "--results", bench.out).stdout
    rows = [line for line in board.splitlines() if "precision=int8" in line]
    assert any("dimensions=40" in line for line in rows)
    assert "bytes per document" in board


@pytest.mark.parametrize(
    ("index", "precision", "spec"),
    [
        ("Flat", "binary", "BFlat"),
        ("IVF4,Flat?nprobe=4", "ubinary", "BIVF4?nprobe=4"),
        ("HNSW8?efSearch=300", "binary", "BHNSW8?efSearch=300"),
        ("HNSW32?efSearch=300", "int8", "HNSW32,SQ8?efSearch=300"),
        ("Flat", "uint8", "SQ8"),
        ("IVF4,Flat?nprobe=4", "float16", "IVF4,SQfp16?nprobe=4"),
    ],
)
def test_the_index_of_faiss_stores_the_precision(bench, folder, index, precision, spec):
    found = run(bench, folder, "--dimensions", 48, "--precision", precision, "--index", index)
    flat = run(bench, folder, "--dimensions", 48, "--precision", precision)
    assert found.record.index == spec
    links = {"BHNSW8": 70, "HNSW32,SQ8": 282, "BIVF4": 8, "IVF4,SQfp16": 8}
    extra = links.get(spec.partition("?")[0], 0)
    assert found.record.bytes_per_document == flat.record.bytes_per_document + extra
    assert 0 < found.record.index_recall["recall@10"] <= 1
    for one, other in zip(found.run.rankings(), flat.run.rankings(), strict=True):
        # Values on the border of a step may have the next code, and IVF rounds residuals.
        np.testing.assert_allclose(one[2], other[2], atol=0 if "binary" in precision else 1 / 200)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dimensions", 5000), "5000 dimensions of vectors that have"),
        (("--rescore", 12), "--rescore changes nothing"),
        (("--precision", "int8", "--rescore", 5), "--rescore leaves 5"),
        (("--precision", "int8", "--rescore", "many"), "rescore is 'many'"),
        (("--precision", "int8", "--index", "IVF4,PQ4"), "cannot store documents in int8"),
        (("--index", "BFlat"), "cannot store documents in float32"),
    ],
)
def test_what_cannot_be_compressed_is_one_error(bench, folder, options, message):
    done = bench("run", folder, *COMMON, *options)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr


def test_python_objects_and_candidates_of_the_gate_are_compressed(bench, folder):
    encoder, options = open_encoder(resolve_model("hashing")), {"dimensions": 40, "rescore": 20}
    settings = {"cache_dir": bench.cache, "depth": 20, "measure": "R@10"}
    stated = {"name": "mine", "similarity": "cos", "fingerprint": "1"}
    found = api.evaluate(encoder, folder, **stated, **settings, **options)
    named = run(bench, folder, "--dimensions", 40, "--rescore", 20)
    assert found.measures == named.measures
    assert found.record.bytes_per_document == 4 * (40 + 256)
    plain = api.evaluate(encoder, folder, **stated, **settings)
    assert plain.record.fingerprint != found.record.fingerprint
    base = api.evaluate("hashing", folder, cache_dir=bench.cache)
    gate = bench.place / "gate"
    check = api.check(
        "hashing", base, on=folder, results=gate, cache_dir=bench.cache, precision="int8"
    )
    (candidate,) = find_named("hashing@precision=int8", gate)
    assert candidate.record.timings.encoded_documents == 0
    assert check.exit_code in (0, 3)


def test_an_index_of_an_earlier_version_is_still_read(bench, folder):
    """Its manifest has no compression, and its checksum is of the fields that it has."""
    run(bench, folder, "--index", "IVF4,Flat")
    (path,) = (bench.cache / "vectors").glob(f"*/{INDEXES}/*/{MANIFEST_FILE}")
    fields = json.loads(path.read_text())
    del fields["recipe"]["compression"]
    content = msgspec.json.encode({**fields, "checksum": ""})
    path.write_text(json.dumps({**fields, "checksum": hashlib.sha256(content).hexdigest()}))
    assert IndexFolder(path.parent).manifest().recipe.compression == Compression()
    path.write_text(path.read_text().replace("words", "wordy"))
    with pytest.raises(BenchError, match="is damaged"):
        IndexFolder(path.parent).manifest()


@pytest.mark.slow
def test_an_exported_index_is_searched_without_this_program(bench, folder, tmp_path):
    chosen = ("--dimensions", 40, "--precision", "binary")
    out = tmp_path / "exported"
    typed = ("--model", "hashing", "--index", "HNSW16", "--out", out, *chosen)
    assert bench("index", folder, *typed, "--cache-dir", bench.cache).code == 0
    np.save(tmp_path / "queries.npy", encode()[1])
    command = [sys.executable, out / "search.py", tmp_path / "queries.npy", "12"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    printed = [json.loads(line) for line in lines]
    found = run(bench, folder, *chosen, "--index", out, "--rescore", 12)
    for number, (_, names, _) in enumerate(found.run.rankings()):
        assert {name for query, name, _ in printed if query == number} == set(names)
    plain = run(bench, folder, "--index", out)
    assert plain.record.recipe.compression == Compression(dimensions=40, precision="binary")
    refused = bench("run", folder, *COMMON, "--index", out, "--dimensions", 20)
    assert (refused.code, "--dimensions 40 --precision binary" in refused.stderr) == (2, True)


def test_bytes_are_counted_once_for_what_is_searched_and_what_is_scored_again():
    recipe = Recipe(model="m", kind="hashing", dim=384, store_dtype="float16")
    cases = {
        ("flat", Compression()): 768,
        ("flat", Compression(dimensions=100, precision="binary")): 13,
        ("flat", Compression(precision="int8", rescore=40)): 384 + 768,
        ("HNSW32", Compression(dimensions=256, precision="int8")): 256 + 282,
        ("IVF64,Flat", Compression(precision="float16")): 768 + 8,
        ("IVF64,PQ16", Compression(rescore=40, rescore_by="int8")): 16 + 8 + 384,
    }
    for (index, compression), expected in cases.items():
        of = msgspec.structs.replace(recipe, compression=compression)
        assert bytes_per_document(of, IndexSpec.parse(index)) == expected, (index, compression)


def test_codes_of_faiss_are_those_of_the_ranges():
    """FAISS trained on the ranges alone has the codes of `encode_codes`."""
    from retrievers.encoders.views import encode_codes

    vectors = np.random.default_rng(0).standard_normal((200, 32)).astype(np.float32)
    ranges = np.vstack([vectors.min(axis=0), vectors.max(axis=0)])
    index = faiss.index_factory(32, "SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(ranges)
    theirs = index.sa_encode(vectors)
    ours = encode_codes(vectors, "uint8", ranges)
    assert np.abs(theirs.astype(int) - ours).max() <= 1
    assert (theirs == ours).mean() > 0.999
