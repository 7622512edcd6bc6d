"""Index specs as users type them, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.errors import BenchError
from retrievers.index.faiss_index import (
    INDEX_EXAMPLES,
    FaissIndex,
    IndexSpec,
    import_faiss,
    resolve_device,
)

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1).filter(lambda name: name != "seed")


def test_a_spec_is_read_into_factory_parameters_and_seed():
    spec = IndexSpec.parse("IVF4096,PQ64?nprobe=64&seed=3&ht=7")
    assert spec == IndexSpec("IVF4096,PQ64", (("ht", 7.0), ("nprobe", 64.0)), 3)
    assert str(spec) == "IVF4096,PQ64?ht=7&nprobe=64&seed=3"
    assert [IndexSpec.parse(text).needs_faiss for text in ("Flat", " flat ")] == [True, False]


@given(
    factory=st.sampled_from(["HNSW32", "IVF16,Flat", "OPQ8_32,IVF16_HNSW32,PQ8x4fs"]),
    parameters=st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False)),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_spec_survives_its_text(factory, parameters, seed):
    spec = IndexSpec(factory, tuple(sorted(parameters.items())), seed)
    assert IndexSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?nprobe=1",
        "IVF16,Flat?nprobe",
        "IVF16,Flat?=1",
        "IVF16,Flat?nprobe=many",
        "IVF16,Flat?nprobe=nan",
        "IVF16,Flat?nprobe=1&nprobe=2",
        "IVF16,Flat?nprobe=1=2",
        "IVF16,Flat?seed=0.5",
        "IVF16,Flat?seed=-1",
        "IVF16,Flat?seed=2147483648",
        "flat?nprobe=1",
    ],
)
def test_a_malformed_spec_is_refused_with_an_example(text):
    with pytest.raises(BenchError, match="cannot read the index") as raised:
        IndexSpec.parse(text)
    assert "nprobe=64" in raised.value.hint


def test_examples_are_read_and_made():
    pytest.importorskip("faiss")
    for text in INDEX_EXAMPLES:
        spec = IndexSpec.parse(text)
        assert str(IndexSpec.parse(str(spec))) == str(spec)
        if spec.needs_faiss:
            assert FaissIndex(spec, 384).dim == 384


@pytest.fixture
def made():
    pytest.importorskip("faiss")
    return lambda text, dim=32: FaissIndex(IndexSpec.parse(text), dim)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("IVX16,Flat", "could not parse index string IVX16", "HNSW32"),
        ("PQ7", "should be a multiple", ""),
        ("LSH", "LSH", ""),
        ("IVF16,PQ8?nprobes=4", "no parameter 'nprobes'", "Did you mean nprobe? Use one of ht, "),
        ("IVF16,Flat?verbose=1", "no parameter 'verbose'", ""),  # it writes among the results
        ("flat", "without an index", ""),
    ],
)
def test_an_invalid_composition_is_refused(text, message, hint, made):
    with pytest.raises(BenchError, match=message) as raised:
        made(text)
    assert hint in raised.value.hint


def test_parameters_reach_the_index(made):
    faiss = import_faiss()
    index = made("IVF16,PQ8?nprobe=5&seed=9")
    inner = faiss.downcast_index(index._index)
    assert inner.nprobe == 5
    assert inner.cp.seed == inner.pq.cp.seed == 9
    assert inner.metric_type == faiss.METRIC_INNER_PRODUCT


def test_too_few_vectors_to_train_says_how_many_are_needed(made):
    with pytest.raises(BenchError, match="at least 4096 training vectors, not 1000"):
        made("IVF4096,Flat").train(np.ones((1000, 32), np.float32))
    with pytest.raises(BenchError, match="at least 256 training vectors, not 100"):
        made("PQ8").train(np.ones((100, 32), np.float32))


@pytest.mark.parametrize("text", ["IVF16,PQ8", "PQ8,Refine(PQ4)"])
def test_training_writes_one_plain_warning_where_there_are_few_vectors(made, text, capfd, caplog):
    index = made(text)
    index.train(np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32))
    assert capfd.readouterr() == ("", "")
    (line,) = caplog.messages
    assert f"trained on 500 vectors, and FAISS advises {39 * 256} or more" in line


def test_the_training_sample_is_sorted_distinct_and_seeded(made):
    rows = made("IVF16,Flat").training_rows(100_000)
    assert len(rows) == 16 * 256
    assert (np.diff(rows) > 0).all()
    assert rows.max() < 100_000
    assert rows.tolist() == made("IVF16,Flat").training_rows(100_000).tolist()
    assert rows.tolist() != made("IVF16,Flat?seed=1").training_rows(100_000).tolist()
    assert made("IVF16,Flat").training_rows(7).tolist() == list(range(7))


def test_a_file_of_another_dimension_or_metric_and_a_damaged_one_are_refused(made, tmp_path):
    faiss, path = import_faiss(), tmp_path / "x.index"

    def refused(dim: int, message: str) -> None:
        with pytest.raises(BenchError, match=message):
            FaissIndex.load(path, IndexSpec.parse("HNSW16?efSearch=20"), dim)

    refused(32, "cannot read the index")
    index = made("HNSW16?efSearch=20")
    index.add(np.eye(32, dtype=np.float32))
    index.save(path)
    refused(16, r"has 32 dimensions .* not 16")
    path.write_bytes(path.read_bytes()[:200])
    refused(32, "cannot read the index")
    other = faiss.IndexHNSWFlat(32, 16, faiss.METRIC_L2)
    other.add(np.eye(32, dtype=np.float32))
    faiss.write_index(other, str(path))
    refused(32, "metric")


def test_the_flat_index_of_another_tool_is_readable(bench_data):
    """A FAISS IndexFlatIP that FlashRAG wrote: the same library, so the same products."""
    faiss = pytest.importorskip("faiss")
    theirs = faiss.read_index(str(bench_data / "vectors" / "e5-1000x768.flat.index"))
    vectors = theirs.reconstruct_n(0, theirs.ntotal)
    ours = FaissIndex(IndexSpec.parse("Flat"), 768)
    ours.add(vectors)
    hits = ours.search(vectors[:20], 10)
    scores, rows = theirs.search(vectors[:20], 10)
    assert hits.rows.tolist() == rows.tolist()
    assert hits.scores.tolist() == scores.tolist()


def test_devices_are_the_cpu_or_a_gpu_that_exists():
    faiss = pytest.importorskip("faiss")
    assert resolve_device("cpu") == ()
    if not (hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus()):
        with pytest.raises(BenchError, match="sees 0 GPUs"):
            FaissIndex(IndexSpec("Flat"), 8, device="cuda")


def test_missing_faiss_names_the_extras(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(BenchError) as raised:
        FaissIndex(IndexSpec("Flat"), 8)
    assert "retrieval-bench[cpu]" in raised.value.hint
    assert "[gpu]" in raised.value.hint
