"""Exact search with PyTorch: the hits of NumPy, bit for bit.

It runs on the processor here, and on a GPU where there is one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.evaluation import exact
from bench.evaluation.collection_search import search_device
from bench.evaluation.exact import ArrayVectors, exact_search
from bench.evaluation.torch_engine import TorchEngine
from foundation.errors import BenchError
from tests.support.collections import Bench, write_collection
from tests.support.exact_oracle import assert_same, brute_force, ties

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
    assert_same(exact_search(*search, engine=TorchEngine(device)), truth)
    monkeypatch.setattr(exact, "float64_error", lambda dim, norms, norm: 0 * norms)
    careless = exact_search(*search, engine=TorchEngine(device))
    assert (careless.rows != truth.rows).any(), "the data do not test anything"


@pytest.mark.slow
@pytest.mark.parametrize("switch_on", ["medium", "tf32"])
def test_products_are_float32_with_any_global_switch_and_leave_it_unchanged(switch_on):
    vectors, _ = ties(50)
    vectors += np.float32(2.0**-12)
    program = f"""
import numpy as np, torch
from bench.evaluation import torch_engine
switch_on, gemm = {switch_on!r}, torch.backends.cuda.matmul
if switch_on == "medium":
    torch.set_float32_matmul_precision("medium")
elif hasattr(torch.backends, "fp32_precision"):
    torch.backends.fp32_precision = "tf32"
else:
    gemm.allow_tf32 = True
seen = []
def matmul(first, second):
    seen.append(getattr(gemm, "fp32_precision", "ieee"))
    return first @ second
torch.matmul, before = matmul, getattr(gemm, "fp32_precision", None)
torch_engine.products(torch.ones(2, 3), torch.ones(4, 3))
assert seen == ["ieee"], seen
assert getattr(gemm, "fp32_precision", None) == before
assert gemm.allow_bf16_reduced_precision_reduction
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# Devices, and FAISS that is not there


@pytest.mark.parametrize("device", ["cuda:x", "cuda:", "tpu", "cuda:99"])
def test_a_device_that_does_not_exist_is_one_clear_error(device):
    ones = np.ones((1, 4), np.float32)
    with pytest.raises(BenchError, match=f"unknown device .{device}|{device} is not available"):
        exact_search(ArrayVectors(ones), ones, 1, np.arange(1), device=device)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "expected"), [("3", 3), ("2,1", 2), ("", 1), ("no", 1)])
def test_threads_follow_openmp_or_the_allowed_processors(setting, expected):
    program = (
        "import os, sys\n"
        "sys.modules['faiss'] = None\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from bench.evaluation.exact import count_threads\n"
        "print(count_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": setting},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == expected


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


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_is_searched_with_pytorch_at_every_depth(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    engine = exact.engine_for(device, None)
    assert isinstance(engine, TorchEngine)
    assert engine.device == torch.device(device)


def test_auto_is_a_gpu_if_pytorch_has_one_and_imports_it_only_if_there_is_a_driver(monkeypatch):
    assert search_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert search_device("auto") == "cuda"
    assert [search_device(each) for each in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    monkeypatch.setattr(exact, "GPU_FILES", ())
    monkeypatch.delitem(sys.modules, "torch")
    assert search_device("auto") == "cpu"
    assert "torch" not in sys.modules
