"""Exact search with PyTorch: the hits of NumPy, bit for bit, in whatever memory.

It runs on the processor here, and on a GPU where there is one.
"""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.evaluate.exact import ArrayVectors, exact_search, torch_engine
from bench.evaluate.exact import search as exact
from bench.evaluate.exact.task import SearchTask
from bench.evaluate.exact.torch_engine import TorchEngine, Uploads, plan_device
from bench.evaluate.retrieval import search_device
from bench.evaluate.search import canonical, order_keys
from foundation.errors import BenchError
from retrievers.encoders.protocol import Clock
from retrievers.index.faiss_index import Hits
from tests.support.collections import Bench, write_collection
from tests.support.exact_oracle import assert_same, brute_force, copying_engine, planted, ties

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
    monkeypatch.setattr(torch_engine, "double_distance", lambda dim, norms, norm: 0 * norms)
    careless = exact_search(*search, engine=TorchEngine(device))
    assert (careless.rows != truth.rows).any(), "the data do not test anything"


def test_doubtful_pairs_are_few_among_embeddings(monkeypatch):
    vectors, queries, tie_rank = planted(8000, 384, 20)
    decided = []

    def counting(vectors, rows, doubles, numbers):
        decided.append(len(rows))
        return exact(vectors, rows, doubles, numbers)

    exact = torch_engine.exact_scores
    monkeypatch.setattr(torch_engine, "exact_scores", counting)
    exact_search(ArrayVectors(vectors), queries, 1000, tie_rank, engine=TorchEngine("cpu"))
    assert sum(decided) < 1e-3 * 20 * 1000


@given(
    st.lists(st.tuples(st.floats(width=32, allow_nan=False), st.integers(0, 2**32 - 2)), min_size=1)
)
def test_keys_on_a_device_compare_as_those_of_the_processor(places):
    scores = np.array([score for score, _ in places], np.float32)
    ranks = np.array([rank for _, rank in places], np.int64)
    keys = torch_engine.order_keys(torch.from_numpy(scores), torch.from_numpy(ranks))
    np.testing.assert_array_equal(torch_engine.unsigned(keys), order_keys(scores, ranks))


@pytest.mark.parametrize("switch_on", ["medium", "tf32"])
def test_products_are_float32_whatever_is_switched_on_and_leave_it_so(switch_on):
    vectors, _ = ties(50)
    vectors += np.float32(2.0**-12)
    program = f"""
import numpy as np, torch
from bench.evaluate.exact import torch_engine
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


# Memory


def made_task(queries: int, dim: int, k: int, tile_rows: int) -> SearchTask:
    """No real queries: plans look at shapes alone."""
    asked = np.broadcast_to(np.float32(1), (queries, dim))
    return SearchTask(asked, np.ones(queries), k, np.arange(0), tile_rows, 1 << 28, Clock())


@given(
    queries=st.integers(1, 100_000),
    dim=st.sampled_from([64, 384, 768, 4096]),
    k=st.integers(1, 5000),
    gigabytes=st.floats(0.5, 200),
)
def test_a_plan_fits_the_memory_and_uses_what_it_may(queries, dim, k, gigabytes):
    task, budget = made_task(queries, dim, k, 1 << 18), int(gigabytes * 1e9)
    try:
        plan = plan_device(task, budget, 1 << 18)
    except BenchError:
        assert gigabytes < 4
        return
    scores = 4 * plan.block_queries * plan.tile_rows
    best = 16 * queries * k
    tiles = 2 * 4 * plan.tile_rows * dim
    assert scores + best + tiles + 4 * queries * dim <= budget
    assert scores <= plan.workspace_bytes <= budget
    roomier = plan_device(task, 2 * budget, 1 << 18)
    assert roomier.tile_rows >= plan.tile_rows
    assert plan.tile_rows >= 1 << 10


def test_the_scores_of_ms_marco_are_cut_to_a_small_gpu_and_not_to_a_large_one():
    task = made_task(6980, 768, 10, 1 << 18)
    small, large = (plan_device(task, int(gb * 1e9), 1 << 18) for gb in (6, 60))
    assert 4 * small.block_queries * small.tile_rows < 5e9 < 4 * 6980 * (1 << 18)
    assert (large.block_queries, large.tile_rows) == (6980, 1 << 18)
    with pytest.raises(BenchError, match="6,980 queries at depth 10 do not fit"):
        plan_device(task, 20_000_000, 1 << 18)


def failing_above(scores: int, monkeypatch) -> None:
    """Products of more than so many scores run out of memory."""
    whole = torch_engine.products

    def products(queries, documents):
        if len(queries) * len(documents) > scores:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.30 GiB.")
        return whole(queries, documents)

    monkeypatch.setattr(torch_engine, "products", products)


def test_out_of_memory_halves_the_queries_says_so_once_and_changes_nothing(monkeypatch, caplog):
    vectors, queries, tie_rank = planted(2000, 24, 60)
    truth = brute_force(vectors, queries, 50, tie_rank)
    failing_above(9 * 700, monkeypatch)
    with caplog.at_level(logging.WARNING):
        hits = exact_search(
            ArrayVectors(vectors), queries, 50, tie_rank, tile_rows=700, engine=TorchEngine("cpu")
        )
    assert_same(hits, truth)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["cpu is out of memory with 60 queries at a time: the search goes on with fewer"]


def test_a_tile_that_is_staged_again_for_lack_of_memory_leaves_the_one_before_it(monkeypatch):
    vectors, queries, tie_rank = planted(600, 24, 5)
    norms = np.linalg.norm(queries, axis=1).astype(np.float64)
    task = SearchTask(queries, norms, 10, tie_rank, 300, 1 << 20, Clock())
    norm, calls = torch.linalg.vector_norm, []

    def vector_norm(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:  # the second tile has gone up, and is not measured
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return norm(*arguments, **options)

    monkeypatch.setattr(torch.linalg, "vector_norm", vector_norm)
    with copying_engine("cpu").open(task) as search:
        first, second = (search.stage(start, vectors[start : start + 300]) for start in (0, 300))
        assert len(calls) == 3
        for tile, part in ((first, vectors[:300]), (second, vectors[300:])):
            np.testing.assert_array_equal(tile.vectors.numpy(), part)
            np.testing.assert_array_equal(tile.stored, part)


def test_out_of_memory_while_candidates_are_merged_merges_none_twice(monkeypatch):
    vectors, queries, tie_rank = planted(2000, 24, 60)
    whole, calls = torch_engine.merge_candidates, []

    def merge(best, numbers, candidates, count):
        calls.append(len(count))
        if len(calls) % 3 == 2 and len(count) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return whole(best, numbers, candidates, count)

    monkeypatch.setattr(torch_engine, "merge_candidates", merge)
    hits = exact_search(
        ArrayVectors(vectors),
        queries,
        50,
        tie_rank,
        tile_rows=300,
        block_bytes=700_000,
        engine=TorchEngine("cpu"),
    )
    assert len(set(calls)) > 2
    assert_same(hits, brute_force(vectors, queries, 50, tie_rank))


def test_out_of_memory_with_a_single_query_says_what_to_do(monkeypatch):
    vectors, queries, tie_rank = planted(200, 24, 3)
    failing_above(100, monkeypatch)
    with pytest.raises(BenchError, match="cpu is out of memory with one query") as raised:
        exact_search(ArrayVectors(vectors), queries, 5, tie_rank, engine=TorchEngine("cpu"))
    assert "--device cpu" in raised.value.hint


LIMITED = """
import logging, resource, sys, threading
import numpy as np
from bench.evaluate.exact import ArrayVectors, exact_search
from bench.evaluate.exact.torch_engine import TorchEngine
logging.basicConfig(stream=sys.stdout, format="%(message)s")
threading.stack_size(1 << 18)
vectors = np.random.default_rng(0).standard_normal((80_000, 8), np.float32)
search = ArrayVectors(vectors), vectors[:200], 10, np.arange(80_000)
exact_search(*search, engine=TorchEngine("cpu"), block_bytes=1 << 20)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 40_000_000,) * 2)
hits = exact_search(*search, engine=TorchEngine("cpu"), block_bytes=1 << 32)
np.savez(sys.argv[1], rows=hits.rows, scores=hits.scores)
"""


def test_a_real_limit_of_the_allocator_halves_the_queries(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "hits.npz")]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # 64 MB less for each thread
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.startswith("cpu is out of memory with 200 queries at a time")
    assert child.stdout.count("out of memory") == 1
    vectors = np.random.default_rng(0).standard_normal((80_000, 8), np.float32)
    truth = exact_search(ArrayVectors(vectors), vectors[:200], 10, np.arange(80_000))
    with np.load(tmp_path / "hits.npz") as found:
        np.testing.assert_array_equal(found["rows"], truth.rows)
        np.testing.assert_array_equal(found["scores"], truth.scores)


# Tiles


@pytest.mark.parametrize("device", DEVICES)
def test_an_upload_is_good_until_the_next_but_one(device):
    rng = np.random.default_rng(0)
    tiles = [rng.standard_normal((rows, 3)).astype(np.float32) for rows in (5, 4, 5)]
    tiles[1] = tiles[1].astype(np.float16)
    tiles[2].setflags(write=False)
    uploads = Uploads(5, 3, torch.device(device))
    with uploads.copying():
        first = uploads.upload(tiles[0])
        uploads.keep()
        second = uploads.upload(tiles[1])
        uploads.keep()
        for (tensor, kept), tile in ((first, tiles[0]), (second, tiles[1])):
            np.testing.assert_array_equal(tensor.cpu().numpy(), tile.astype(np.float32))
            np.testing.assert_array_equal(kept, tile)
            assert kept.dtype == tile.dtype
        third = uploads.upload(tiles[2])
        np.testing.assert_array_equal(third[0].cpu().numpy(), tiles[2])
        assert third[0].data_ptr() == first[0].data_ptr()
        np.testing.assert_array_equal(second[0].cpu().numpy(), tiles[1].astype(np.float32))


def test_tiles_are_halved_where_even_they_find_no_memory(monkeypatch):
    rows, make = [], Uploads.__init__

    def failing(self, count, *made):
        rows.append(count)
        if count > 2000:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        make(self, count, *made)

    monkeypatch.setattr(Uploads, "__init__", failing)
    vectors, queries, tie_rank = planted(5000, 16, 3)
    search = ArrayVectors(vectors), queries, 10, tie_rank
    hits = exact_search(*search, engine=copying_engine("cpu"))
    assert rows == [5000, 2500, 1250]
    assert_same(hits, brute_force(vectors, queries, 10, tie_rank))


def test_memory_that_ends_where_nothing_can_be_halved_is_one_clear_error(monkeypatch):
    def failing(self, *made):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(Uploads, "__init__", failing)
    vectors, queries, tie_rank = planted(5000, 16, 3)
    with pytest.raises(BenchError, match="cpu is out of memory: CUDA error") as raised:
        exact_search(ArrayVectors(vectors), queries, 10, tie_rank, engine=copying_engine("cpu"))
    assert "--device cpu" in raised.value.hint


# Devices, and FAISS that is not there


@pytest.mark.parametrize("device", ["cuda:x", "cuda:", "tpu", "cuda:99"])
def test_a_device_that_does_not_exist_is_one_clear_error(device):
    ones = np.ones((1, 4), np.float32)
    with pytest.raises(BenchError, match=f"{device}.*(unknown|asked)|(unknown|asked).*{device}"):
        exact_search(ArrayVectors(ones), ones, 1, np.arange(1), device=device)


WITHOUT_FAISS = """
import sys
sys.modules["faiss"] = None
import numpy as np
from bench.evaluate.exact import ArrayVectors, exact_search
from tests.support.exact_oracle import assert_same, planted, ties
vectors, queries, tie_rank = planted(5000, 40, 9)
small, _ = ties(5000)
found = {}
for name, corpus, asked in (("planted", vectors, queries), ("ties", small, small[:9])):
    for k in (10, 1000, 3000):
        hits = exact_search(ArrayVectors(corpus), asked, k, tie_rank, tile_rows=1999)
        found[f"{name} {k} rows"], found[f"{name} {k} scores"] = hits.rows, hits.scores
if "torch" in sys.argv:
    from bench.evaluate.exact.torch_engine import TorchEngine
    for name, corpus, asked in (("planted", vectors, queries), ("ties", small, small[:9])):
        for k in (10, 1000, 3000):
            search = ArrayVectors(corpus), asked, k, tie_rank
            hits = exact_search(*search, tile_rows=1999, engine=TorchEngine("cpu"))
            np.testing.assert_array_equal(found[f"{name} {k} rows"], hits.rows)
            np.testing.assert_array_equal(found[f"{name} {k} scores"], hits.scores)
else:
    assert "torch" not in sys.modules
np.savez(sys.argv[1], **found)
"""


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_without_faiss_every_engine_gives_the_hits_of_faiss(library, tmp_path):
    faiss = pytest.importorskip("faiss")
    program = [sys.executable, "-c", WITHOUT_FAISS, str(tmp_path / "hits.npz"), library]
    subprocess.run(program, check=True)
    vectors, queries, tie_rank = planted(5000, 40, 9)
    small, _ = ties(5000)
    # Products of small integers are exact in float32, so FAISS's own scores are those of float64.
    scores, rows = faiss.knn(small[:9], small, 5000, metric=faiss.METRIC_INNER_PRODUCT)
    with np.load(tmp_path / "hits.npz") as without:
        for k in (10, 1000, 3000):
            for name, truth in (
                ("planted", brute_force(vectors, queries, k, tie_rank)),
                ("ties", canonical(Hits(scores, rows), tie_rank, k)),
            ):
                hits = Hits(without[f"{name} {k} scores"], without[f"{name} {k} rows"])
                assert_same(hits, truth)


@pytest.mark.parametrize(("setting", "expected"), [("3", 3), ("2,1", 2), ("", 1), ("no", 1)])
def test_threads_are_those_of_openmp_or_the_processors_allowed(setting, expected):
    program = (
        "import os, sys\n"
        "sys.modules['faiss'] = None\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from bench.evaluate.exact.numpy_engine import thread_count\n"
        "print(thread_count())"
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
    engine = exact.engine_for(device)
    assert isinstance(engine, TorchEngine)
    assert engine.device == torch.device(device)
    assert engine.copies_tiles


def test_auto_is_a_gpu_where_pytorch_has_one_and_imports_it_only_where_a_driver_is(monkeypatch):
    assert search_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert search_device("auto") == "cuda"
    assert [search_device(each) for each in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    monkeypatch.setattr(exact, "GPU_FILES", ())
    monkeypatch.delitem(sys.modules, "torch")
    assert search_device("auto") == "cpu"
    assert "torch" not in sys.modules
