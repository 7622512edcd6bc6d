"""Approximate indexes on a GPU of FAISS: what is checked without one, and with one if it is there.

`Board` stands for what FAISS's GPU library refuses, with its own words.
"""

import logging
from dataclasses import dataclass

import numpy as np
import pytest

from foundation.errors import BenchError
from retrievers.index.faiss_index import FaissIndex, IndexSpec, lookup_table_bytes

faiss = pytest.importorskip("faiss")
FULL = (
    "Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const AllocRequest&)"
    " at /project/faiss/gpu/StandardGpuResources.cpp:530: Error: 'err == cudaSuccess' failed: "
    "StandardGpuResources: alloc fail type IVFLists dev 0 space Device stream 0x7f size 4513349632"
    " bytes (cudaMalloc error out of memory [2])"
)


@dataclass
class Options:
    """As FAISS's ``GpuMultipleClonerOptions``."""

    useFloat16: bool = False  # noqa: N815  it is FAISS's name
    shard: bool = False


@dataclass
class Board:
    """An index in the memory of a GPU that is too small for some of it."""

    index: object
    most_documents: int = 10**9

    def add(self, tile: np.ndarray) -> None:
        if len(tile) > self.most_documents:
            raise RuntimeError(FULL)
        self.index.add(tile)

    def __getattr__(self, name: str) -> object:
        return getattr(self.index, name)


@pytest.fixture
def board(monkeypatch) -> dict[str, int]:
    """Limits of the GPU that FAISS seems to have."""
    limits: dict[str, int] = {}

    def index_cpu_to_gpu_multiple_py(resources, index, options, gpus):
        if len(gpus) > 1:
            return several(index, options, len(gpus))
        width = 2 if options.useFloat16 else 4
        needed = lookup_table_bytes(index) // 4 * width
        if needed > 49152:
            raise RuntimeError(
                f"Error in void faiss::gpu::GpuIndexIVFPQ::verifyPQSettings_() const at "
                f"/project/faiss/gpu/GpuIndexIVFPQ.cu:607: Error: 'requiredSmemSize <= "
                f"getMaxSharedMemPerBlock(config_.device)' failed: Device 0 has 49152 bytes of "
                f"shared memory, while 8 bits per code requires {needed} bytes"
            )
        return Board(index, **limits)

    def several(index, options, count):
        """As FAISS's cloner for several GPUs: a copy for each, or a part."""
        if not options.shard and index.ntotal > limits.get("most_documents", 10**9):
            raise RuntimeError(FULL)
        together = (
            faiss.IndexShards(index.d, True, True) if options.shard else faiss.IndexReplicas()
        )
        vectors = index.reconstruct_n(0, index.ntotal)
        for part in np.array_split(vectors, count) if options.shard else [vectors] * count:
            own = faiss.IndexFlatIP(index.d)
            own.add(part)
            parts.append(own)
            (together.add_shard if options.shard else together.add_replica)(own)
        return together

    parts = []  # FAISS does not own them
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    for made in (Options, index_cpu_to_gpu_multiple_py):
        name = "GpuMultipleClonerOptions" if made is Options else made.__name__
        monkeypatch.setattr(faiss, name, made, raising=False)
    monkeypatch.setattr(faiss, "index_gpu_to_cpu", lambda board: board.index, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: limits.pop("gpus", 1), raising=False)
    return limits


def vectors_of(rows: int, dim: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, dim)).astype(np.float32)


def built(spec: str, vectors: np.ndarray, device: str = "cuda") -> FaissIndex:
    index = FaissIndex(IndexSpec.parse(spec), vectors.shape[1], device)
    if index.needs_training:
        index.train(vectors)
    index.add(vectors)
    return index


def test_tables_are_float16_where_float32_exceeds_shared_memory_and_only_there(board, caplog):
    vectors = vectors_of(600, 128)
    with caplog.at_level(logging.WARNING):
        built("IVF2,PQ32", vectors)
        assert "float16" not in caplog.text
        built("IVF2,PQ64", vectors)
    assert "lookup tables are float16 on the GPU: float32 takes 65536 bytes" in caplog.text


def test_codes_that_no_table_fits_are_refused_with_what_to_type(board):
    with pytest.raises(BenchError, match=r"IVF2,PQ128 cannot be on a GPU: .*shared") as raised:
        built("IVF2,PQ128", vectors_of(600, 128))
    assert "--device cpu" in raised.value.hint


@pytest.mark.parametrize(
    ("spec", "depth"),
    [
        ("Flat", 2048),
        ("SQfp16", 2048),
        ("OPQ8,IVF2,PQ8", 2048),
        ("IVF2,Flat", 2048),
        ("IVF2,SQfp16", 2048),
        ("IVF2,SQ8", 100),
        *((spec, 0) for spec in ("HNSW8", "SQ8", "PQ8", "IVF2,PQ8,RFlat")),
        *((spec, 0) for spec in ("IVF2,PQ8x4fs", "BFlat", "BHNSW8")),
    ],
)
def test_an_index_that_no_gpu_holds_is_searched_on_the_cpu(board, caplog, spec, depth):
    vectors = vectors_of(600, 32)
    expected = built(spec, vectors, "cpu").search(vectors[:5], 200)
    with caplog.at_level(logging.WARNING):
        index = built(spec, vectors)
        assert isinstance(index._index, Board) == (depth > 0)
        found = index.search(vectors[:5], 200)
    np.testing.assert_array_equal(found.rows, expected.rows)
    assert isinstance(index._index, Board) == (depth > 200)
    assert (f"{spec} is searched on the CPU" in caplog.text) == (depth <= 200)


def test_documents_beyond_the_memory_of_a_gpu_give_one_clear_error(board):
    board["most_documents"] = 100
    with pytest.raises(BenchError, match=r"the memory of the GPU is too small: .*4513349632") as e:
        built("IVF4,Flat?nprobe=4", vectors_of(600, 16))
    assert "Error in virtual" not in str(e.value)
    assert "--device cpu, or a smaller index" in e.value.hint


@pytest.mark.parametrize("room", [10**9, 400])
def test_several_gpus_have_copies_or_parts_and_find_the_same(room, board, caplog):
    board |= {"gpus": 3, "most_documents": room}
    vectors = vectors_of(1000, 16)
    index = built("Flat", vectors)
    with caplog.at_level(logging.WARNING):
        hits = index.search(vectors[:50], 7)
    kind = faiss.IndexReplicas if room > len(vectors) else faiss.IndexShards
    assert isinstance(index._index, kind)
    assert ("split over 3 GPUs" in caplog.text) == (kind is faiss.IndexShards)
    whole = faiss.IndexFlatIP(16)
    whole.add(vectors)
    scores, rows = whole.search(vectors[:50], 7)
    np.testing.assert_array_equal(hits.rows, rows)
    np.testing.assert_array_equal(hits.scores, scores)


@pytest.mark.parametrize("spec", ["Flat", "IVF16,Flat?nprobe=16", "IVF16,PQ64?nprobe=16"])
def test_a_gpu_finds_what_the_cpu_finds(spec):
    if not (hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus()):
        pytest.skip("needs a GPU and faiss-gpu")
    vectors = vectors_of(5000, 128)
    on_cpu = FaissIndex(IndexSpec.parse(spec), 128)
    if on_cpu.needs_training:
        on_cpu.train(vectors)
    on_cpu.add(vectors)
    cpu, there = (each.search(vectors[:100], 10) for each in (on_cpu, built(spec, vectors)))
    shared = [len({*a} & {*b}) for a, b in zip(cpu.rows.tolist(), there.rows.tolist(), strict=True)]
    assert np.mean(shared) > 9
