"""Approximate indexes on a GPU of FAISS: what is checked without one, and with one if it is there.

`Board` stands for what FAISS's GPU library refuses, with its own words.
"""

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foundation.errors import BenchError
from retrievers.index.faiss_index import (
    FaissIndex,
    IndexSpec,
    largest_gpu_depth,
    lookup_table_bytes,
    trained_on,
)
from tests.support.collections import Bench, write_collection

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


class Board(faiss.IndexReplicas):
    """An index in the memory of a GPU that is too small for some of it. C++ can use it, too."""

    most_documents = 10**9

    def add(self, tile: np.ndarray) -> None:
        if len(tile) > self.most_documents:
            raise RuntimeError(FULL)
        super().add(tile)


@pytest.fixture
def boards(monkeypatch) -> list[object]:
    """Indexes on the GPUs that FAISS seems to have, the newest last."""
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "GpuMultipleClonerOptions", Options, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    made: list[object] = []

    def index_cpu_to_gpu_multiple_py(resources, index, options, gpus):
        if len(gpus) > 1:
            made.append(several(index, options, len(gpus)))
            return made[-1]
        width = 2 if options.useFloat16 else 4
        needed = lookup_table_bytes(index) // 4 * width
        if needed > 49152:
            raise RuntimeError(
                f"Error in void faiss::gpu::GpuIndexIVFPQ::verifyPQSettings_() const at "
                f"/project/faiss/gpu/GpuIndexIVFPQ.cu:607: Error: 'requiredSmemSize <= "
                f"getMaxSharedMemPerBlock(config_.device)' failed: Device 0 has 49152 bytes of "
                f"shared memory, while 8 bits per code requires {needed} bytes"
            )
        board = Board(index.d)
        board.addIndex(index)
        made.extend([index, board])
        return board

    def several(index, options, count):
        """As FAISS's cloner for several GPUs: a copy for each, or a part."""
        if not options.shard and index.ntotal > Board.most_documents:
            raise RuntimeError(FULL)
        together = (
            faiss.IndexShards(index.d, True, True) if options.shard else faiss.IndexReplicas()
        )
        vectors = index.reconstruct_n(0, index.ntotal)
        for part in np.array_split(vectors, count) if options.shard else [vectors] * count:
            own = faiss.IndexFlatIP(index.d)
            own.add(part)
            made.append(own)  # FAISS does not own it
            (together.add_shard if options.shard else together.add_replica)(own)
        return together

    monkeypatch.setattr(
        faiss, "index_cpu_to_gpu_multiple_py", index_cpu_to_gpu_multiple_py, raising=False
    )
    monkeypatch.setattr(
        faiss, "index_gpu_to_cpu", lambda board: faiss.downcast_index(board.at(0)), raising=False
    )
    return made


def vectors_of(rows: int, dim: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, dim)).astype(np.float32)


def built(spec: str, vectors: np.ndarray, device: str = "cuda") -> FaissIndex:
    index = FaissIndex(IndexSpec.parse(spec), vectors.shape[1], device)
    if index.needs_training:
        index.train(vectors)
    index.add(vectors)
    return index


def test_tables_are_float16_where_float32_exceeds_shared_memory_and_only_there(boards, caplog):
    vectors = vectors_of(600, 128)
    with caplog.at_level(logging.WARNING):
        built("IVF2,PQ32", vectors)
        assert "float16" not in caplog.text
        built("IVF2,PQ64", vectors)
    assert "lookup tables are float16 on the GPU: float32 takes 65536 bytes" in caplog.text


@pytest.mark.parametrize(
    ("spec", "depth"),
    [
        ("Flat", 2048),
        ("SQfp16", 2048),
        ("RR32,IVF2,PQ8", 2048),
        ("IVF2,Flat", 2048),
        ("IVF2,SQfp16", 2048),
        ("IVF2,SQ8", 512),
        *((spec, 0) for spec in ("HNSW8", "SQ8", "PQ8", "IVF2,PQ8,RFlat")),
        *((spec, 0) for spec in ("IVF2,PQ8x4fs", "BFlat", "BHNSW8")),
    ],
)
def test_an_index_is_searched_on_a_gpu_as_deep_as_faiss_can_and_else_on_the_cpu(
    boards, caplog, spec, depth
):
    vectors = vectors_of(600, 32)
    expected, index = built(spec, vectors, "cpu"), built(spec, vectors)
    for k, device in ((max(1, depth), "cuda" if depth else "cpu"), (depth + 1, "cpu")):
        with caplog.at_level(logging.WARNING):
            found = index.search(vectors[:5], k)
        np.testing.assert_array_equal(found.rows, expected.search(vectors[:5], k).rows)
        assert index.device == device
        assert isinstance(index._index, Board) == (device == "cuda")
        assert (f"{spec} is searched on the CPU" in caplog.text) == (device == "cpu")


@pytest.mark.parametrize(
    ("spec", "dim", "depth"),
    [
        *(("IVF2,SQ8", dim, 512) for dim in (384, 768, 3072)),
        ("IVF2,SQ8", 3073, 256),
        ("IVF2,SQ8", 6144, 0),
        ("IVF2,SQ6", 768, 512),
        ("IVF2,SQ4", 768, 512),
        ("IVF2,SQfp16", 6144, 2048),
    ],
)
def test_ranges_and_candidates_fit(spec, dim, depth):
    """Into the shared memory of a thread block."""
    index = faiss.index_factory(dim, spec, faiss.METRIC_INNER_PRODUCT)
    assert largest_gpu_depth(index) == depth


def test_an_index_that_faiss_refuses_to_copy_is_searched_on_the_cpu(boards, caplog):
    vectors = vectors_of(260, 128)
    index = built("IVF2,PQ128", vectors)
    assert index.device == "cpu"
    assert "IVF2,PQ128 is searched on the CPU: 'requiredSmemSize" in caplog.text
    expected = built("IVF2,PQ128", vectors, "cpu").search(vectors[:5], 9)
    np.testing.assert_array_equal(index.search(vectors[:5], 9).rows, expected.rows)


@pytest.mark.parametrize(
    ("spec", "trained"),
    [
        ("Flat", []),
        ("SQ8", []),
        ("IVF4,Flat", [(16, 4)]),
        ("IVF4_HNSW8,SQ8", [(16, 4)]),
        ("PQ8", [(2, 256)]),
        ("IVF4,PQ8x4fs", [(16, 4), (2, 16)]),
        ("RR16,IVF4,PQ8", [(16, 4), (2, 256)]),
        ("IVF4,PQ8,RFlat", [(16, 4), (2, 256)]),
    ],
)
def test_lists_and_codebooks_are_trained_on_the_gpu(boards, spec, trained):
    vectors, asked = vectors_of(600, 16), IndexSpec.parse(spec)
    index = FaissIndex(asked, 16, "cuda")
    if index.needs_training:
        index.train(vectors)
    used = [(board.d, board.ntotal) for board in boards if isinstance(board, Board)]
    assert used == trained  # centroids that k-means leaves in the index that assigns vectors
    assert trained_on(asked, 16, "cuda") == ("cuda" if trained else "")
    assert trained_on(asked, 16, "cpu") == ""
    index.add(vectors)
    expected = built(spec, vectors, "cpu").search(vectors[:5], 9)
    np.testing.assert_array_equal(index.search(vectors[:5], 9).rows, expected.rows)


@pytest.mark.slow
def test_where_an_index_was_trained_and_searched_is_in_its_key_in_the_result_and_in_the_table(
    boards, bench: Bench, tmp_path: Path
):
    collection = write_collection(tmp_path / "tiny")
    run = ("run", collection, "--model", "hashing", "--recall-queries", "0")

    def read(path: Path) -> dict[str, Any]:
        return json.loads(path.read_bytes())

    shown = {}
    for device, spec in (("auto", "IVF2,Flat"), ("auto", "HNSW8"), ("cpu", "IVF2,Flat")):
        done = bench(*run, "--device", device, "--index", spec)
        assert done.code == 0, done.stderr
        shown[device, spec] = done.stdout
    results = [read(path) for path in bench.out.rglob("result.json")]
    assert {(each["index"], each["conditions"]["search_device"]) for each in results} == {
        ("IVF2,Flat (trained on cuda)", "cuda"),
        ("IVF2,Flat", "cpu"),
        ("HNSW8", "cpu"),
    }
    for device, row in (("cuda", r"IVF2,Flat \(trained on cuda\)"), ("cpu", "HNSW8")):
        table = shown["auto", row.partition(" ")[0]]
        assert re.search(rf"searched on .*{row} +[|] {device} ", table, re.DOTALL)
    manifests = [
        read(path) for path in (bench.out.parent / "cache").rglob("indexes/*/manifest.json")
    ]
    assert sorted((each["spec"], each["trained_on"]) for each in manifests) == [
        ("HNSW8", ""),
        ("IVF2,Flat", ""),
        ("IVF2,Flat", "cuda"),
    ]


def test_documents_beyond_the_memory_of_a_gpu_give_one_clear_error(boards, monkeypatch):
    monkeypatch.setattr(Board, "most_documents", 100)
    with pytest.raises(BenchError, match=r"the memory of the GPU is too small: .*4513349632") as e:
        built("IVF4,Flat?nprobe=4", vectors_of(600, 16))
    assert "Error in virtual" not in str(e.value)
    assert "--device cpu, or a smaller index" in e.value.hint


@pytest.mark.parametrize("room", [10**9, 400])
def test_several_gpus_have_copies_or_parts_and_find_the_same(room, boards, caplog, monkeypatch):
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 3)
    monkeypatch.setattr(Board, "most_documents", room)
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
