"""Exact search with PyTorch: the hits of NumPy, bit for bit.

It runs on the processor here, and on a GPU where there is one.
"""

import inspect
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluation import certificate, device_search, exact
from bench.evaluation.certificate import proposal_error
from bench.evaluation.device_search import DeviceSearch, DeviceTile
from bench.evaluation.exact import ArrayVectors, exact_search, search_device
from foundation.errors import BenchError
from foundation.machine import count_threads
from tests.support.collections import Bench, write_collection
from tests.support.exact_oracle import (
    assert_filled_as,
    assert_same,
    brute_force,
    corpora,
    error_ratio,
    nearly_tied,
    search_on_device,
    ties,
)
from tests.support.examples import with_examples

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def between_two_floats(rows: int, dim: int) -> np.ndarray:
    """Rows whose sum is 1 + 2^-24, half-way between two float32 numbers, and a little more.

    The little more is lost or kept by the order in which float64 adds it.
    """
    rng = np.random.default_rng(0)
    vectors = np.zeros((rows, dim), np.float32)
    for row in vectors:
        places = rng.choice(dim, 6, replace=False)
        row[places[:2]] = 1, 2.0**-24
        row[places[2:]] = 2.0**-53
    return vectors


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", [48, 100, 768])
def test_roundings_that_depend_on_the_order_of_a_sum_are_decided_by_the_processor(
    dim, device, monkeypatch
):
    vectors, query = between_two_floats(2000, dim), np.ones((1, dim), np.float32)
    search = ArrayVectors(vectors), query, 1990, np.arange(2000)
    truth = brute_force(vectors, query, 1990, np.arange(2000))
    assert len(np.unique(truth.scores)) == 2
    assert_same(search_on_device(*search, device=device), truth)
    monkeypatch.setattr(device_search, "float64_error", lambda dim, norms, norm: 0 * norms)
    careless = search_on_device(*search, device=device)
    assert (careless.rows != truth.rows).any(), "the data do not test anything"


# Proposals that are as wrong as their bound allows


def worst_of(vectors: np.ndarray, queries: np.ndarray, best: np.ndarray, share: float) -> Any:
    """`DeviceSearch.propose`, off by ``share`` of the bound: low for ``best``, else high."""
    truth = queries.astype(np.float64) @ vectors.astype(np.float64).T
    is_best = np.zeros(truth.shape, bool)
    np.put_along_axis(is_best, best, True, axis=1)

    def propose(self: DeviceSearch, tile: DeviceTile, piece: slice, some: slice) -> torch.Tensor:
        rows = slice(tile.start + piece.start, tile.start + piece.stop)
        off = share * self.error(tile)[:, None] * np.where(is_best[:, rows], -1, 1)
        factor = np.ldexp(1.0, self.exponents + tile.exponent)[:, None]
        proposed = ((truth[:, rows] + off) * factor)[some]
        return torch.from_numpy(proposed.astype(np.float32)).to(self.device)

    return propose


@st.composite
def hard_corpora(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Corpora with duplicates, zeros, long and short vectors, and extreme ranges."""
    vectors, queries, tie_rank = draw(corpora())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["plain", "zeros", "lengths", "range", "halves", "equal"]))
    if kind == "zeros":
        vectors[rng.random(len(vectors)) < 0.5] = 0
        queries[0] = 0
    elif kind == "lengths":  # long documents first, then short ones, or the reverse
        scale = np.sort(10.0 ** rng.uniform(-8, 8, len(vectors)))[:: rng.choice([-1, 1])]
        vectors *= scale[:, None].astype(np.float32)
    elif kind == "range":
        vectors *= (10.0 ** rng.uniform(-20, 12, vectors.shape)).astype(np.float32)
    elif kind == "halves":
        vectors = (vectors * 10.0 ** rng.uniform(-7, 3)).astype(np.float16)
    elif kind == "equal":
        vectors[:] = vectors[0]
    return vectors, queries, tie_rank


@pytest.mark.parametrize("device", DEVICES)
@with_examples(40)
@given(
    corpus=hard_corpora(),
    k=st.integers(1, 80),
    tile_rows=st.integers(1, 700),
    scores=st.integers(1, 3000),
    slack=st.integers(1, 20),
    share=st.sampled_from([0.0, 0.9, -0.9]),
    room=st.sampled_from([0, 20_000, 1 << 30]),
    most_pending=st.integers(1, 8),
)
def test_proposals_as_wrong_as_their_bound_allows_give_the_hits_of_the_processor(
    corpus, k, tile_rows, scores, slack, share, room, most_pending, device
):
    vectors, queries, tie_rank = corpus
    truth = brute_force(vectors, queries, k, tie_rank)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_search, "MAX_SCORES", scores)
        patch.setattr(device_search, "MOST_PENDING", most_pending)
        patch.setattr(certificate, "SLACK", slack)
        make = DeviceSearch.__init__

        def with_room(self: DeviceSearch, *given: Any) -> None:
            make(self, *given)
            self.resident_bytes = room

        patch.setattr(DeviceSearch, "__init__", with_room)
        if share:
            patch.setattr(DeviceSearch, "propose", worst_of(vectors, queries, truth.rows, share))
        asked = ArrayVectors(vectors), queries, k, tie_rank, device
        hits = search_on_device(*asked, tile_rows=tile_rows)
    assert_filled_as(hits, truth)


def test_a_bound_that_is_too_small_loses_documents(monkeypatch):
    vectors, query = nearly_tied(400, 48)
    truth = brute_force(vectors, query, 10, np.arange(400))
    asked = ArrayVectors(vectors), query, 10, np.arange(400)
    assert_same(search_on_device(*asked), truth)
    monkeypatch.setattr(
        device_search, "proposal_error", lambda *given: 1e-3 * proposal_error(*given)
    )
    assert (search_on_device(*asked).rows != truth.rows).any(), "the data do not test anything"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products_stay_within_their_bound(device, dtype):
    rng = np.random.default_rng(0)
    documents = rng.standard_normal((3000, 768)).astype(dtype)
    queries = np.vstack([rng.standard_normal((20, 768)), 10.0 ** rng.uniform(-6, 2, (20, 768))])
    queries = queries.astype(np.float32)
    assert 1e-5 < error_ratio(documents, queries, device) < 1


# Memory of the device


@pytest.mark.parametrize("most", [40, 700, 5000])
def test_a_full_device_is_searched_in_smaller_tiles_and_products(most, monkeypatch):
    vectors, tie_rank = ties(3000)
    queries, full = vectors[:30], Counter[str]()
    stage, propose = DeviceSearch.stage, DeviceSearch.propose

    def small_stage(self: DeviceSearch, start: int, array: Any) -> DeviceTile:
        if len(array) > most:
            full["tile"] += 1
            raise torch.OutOfMemoryError
        return stage(self, start, array)

    def small_products(self: DeviceSearch, tile: DeviceTile, piece: slice, some: slice) -> Any:
        proposed = propose(self, tile, piece, some)
        if proposed.numel() > 2 * most:
            full["products"] += 1
            raise torch.OutOfMemoryError
        return proposed

    monkeypatch.setattr(DeviceSearch, "stage", small_stage)
    monkeypatch.setattr(DeviceSearch, "propose", small_products)
    monkeypatch.setattr(device_search, "MIN_SCORES", 1)
    asked = ArrayVectors(vectors), queries, 10, tie_rank
    assert_same(
        search_on_device(*asked, tile_rows=999), brute_force(vectors, queries, 10, tie_rank)
    )
    assert full["products"]
    assert full["tile"] or most > 999


@pytest.mark.parametrize("name", ["_find_candidates", "_raise_threshold"])
def test_work_that_a_full_device_stops_is_repeated_and_not_counted_twice(name, monkeypatch):
    vectors, tie_rank = ties(3000)
    queries, work, calls = vectors[:30], getattr(DeviceSearch, name), Counter[str]()

    def stopped(self: DeviceSearch, *given: Any) -> Any:
        done = work(self, *given)  # the device is full late in the work
        caller = inspect.stack()[1].function
        calls[caller] += 1
        if caller == "_search_tile" and calls[caller] % 2:
            raise torch.OutOfMemoryError
        return done

    monkeypatch.setattr(DeviceSearch, name, stopped)
    monkeypatch.setattr(device_search, "MIN_SCORES", 1)
    asked = ArrayVectors(vectors), queries, 10, tie_rank
    truth = brute_force(vectors, queries, 10, tie_rank)
    assert_same(search_on_device(*asked, tile_rows=999), truth)
    assert calls["_search_tile"] > 2


def test_a_device_without_memory_for_a_single_row_is_an_error(monkeypatch):
    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    vectors, tie_rank = ties(50)
    for name in ("stage", "propose"):
        with monkeypatch.context() as patch:
            patch.setattr(DeviceSearch, name, full)
            with pytest.raises(torch.OutOfMemoryError):
                search_on_device(ArrayVectors(vectors), vectors[:2], 5, tie_rank)


def test_products_are_float32_with_a_global_switch_and_leave_it_unchanged(monkeypatch):
    seen, multiply = [], torch.mm

    def look(*factors: Any, **options: Any) -> torch.Tensor:
        seen.append(getattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"))
        return multiply(*factors, **options)

    monkeypatch.setattr(torch, "mm", look)
    torch.set_float32_matmul_precision("medium")
    try:
        device_search.products(torch.ones(2, 3).half(), torch.ones(4, 3).half())
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == ["ieee"]


# Devices, and FAISS that is not there


@pytest.mark.parametrize("device", ["cuda:x", "cuda:", "tpu", "cuda:99"])
def test_a_device_that_does_not_exist_is_one_clear_error(device):
    ones = np.ones((1, 4), np.float32)
    with pytest.raises(BenchError, match=f"unknown device .{device}|{device} is not available"):
        exact_search(ArrayVectors(ones), ones, 1, np.arange(1), device=device)


@pytest.mark.parametrize(("setting", "expected"), [("3", 3), ("2,1", 2), ("", 5), ("no", 5)])
def test_threads_follow_openmp_or_the_allowed_processors(setting, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert count_threads() == expected


def test_a_run_without_faiss_writes_the_same_ranking_and_an_index_says_what_is_missing(
    bench: Bench, tmp_path: Path, monkeypatch
):
    pytest.importorskip("faiss")
    collection = write_collection(tmp_path / "tiny")
    assert bench("run", collection, "--model", "hashing").code == 0
    (ranking,) = bench.out.rglob("run.arrow")
    before = ranking.read_bytes()
    shutil.rmtree(bench.out)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert bench("run", collection, "--model", "hashing").code == 0
    (ranking,) = bench.out.rglob("run.arrow")
    assert ranking.read_bytes() == before
    refused = bench("run", collection, "--model", "hashing", "--index", "HNSW32")
    assert refused.code == 2
    assert "FAISS cannot be imported" in refused.stderr


def test_auto_is_a_gpu_if_pytorch_has_one_and_imports_it_only_if_there_is_a_driver(monkeypatch):
    assert search_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert search_device("auto") == "cuda"
    assert [search_device(each) for each in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    monkeypatch.setattr(exact, "GPU_FILES", ())
    monkeypatch.delitem(sys.modules, "torch")
    assert search_device("auto") == "cpu"
    assert "torch" not in sys.modules
