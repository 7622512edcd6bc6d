"""What exactness costs: certified search against plain FAISS, side by side in one run.

``exact_search`` picks candidates in float32 by an error bound and scores them again in
float64, so that a ranking depends on the vectors alone. Plain ``faiss.knn`` is
the peer that gives up the reproducible order. A third peer is a float32 matrix product per tile
with NumPy, the way that searches without FAISS do it. The engine of PyTorch, which is that of GPUs,
is measured beside the one of the processor, on each of ``--devices``, with vectors stored as
float32 and as float16, and with each arithmetic of ``--arithmetic``. On a GPU the vectors start in
the processor's memory, and their way up is part of the time; FAISS's own search of a GPU
(``knn_gpu``) is a peer where this FAISS has it and the depth is at most its 2,048.

Peers take turns, and the ratio of each pair is reported; the best of the rounds counts, since other
work on the machine can only add time. Hits of all engines must be the same bit for bit. Peers that
are not installed, and devices that are not there, are named as not measured.

``python -m tests.benchmarks.search_speed --rows 300000 --dim 384 --queries 1000 --depth 1000``
``python -m tests.benchmarks.search_speed --devices cuda --rows 8841823 --dim 768 --queries 6980``
The last line of stdout is one JSON document.
"""

import argparse
import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.evaluate.exact import TILE_ROWS, ArrayVectors, block_search, exact_search, tile_search
from bench.evaluate.exact.bounds import ARITHMETICS
from bench.evaluate.exact.torch_engine import TorchEngine
from bench.speed.timing import timed
from retrievers.index.faiss_index import Hits
from retrievers.index.gpu import MAX_K

try:
    import faiss
except ImportError:
    faiss = None  # its peers are not measured


def clusters(rows: int, dim: int, seed: int) -> np.ndarray:
    """Unit vectors around 1,000 centres, float32: denser at the cut than independent noise."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((1000, dim), dtype=np.float32)
    noise = rng.standard_normal((rows, dim), dtype=np.float32)
    vectors = centres[rng.integers(0, 1000, rows)] + noise
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def numpy_tiles(documents: np.ndarray, queries: np.ndarray, depth: int, tile: int) -> None:
    """Matrix product and partition of each tile, merged; no exactness."""
    best = np.full((len(queries), depth), -np.inf, np.float32)
    for start in range(0, len(documents), tile):
        scores = queries @ documents[start : start + tile].T
        kept = np.partition(scores, -min(depth, scores.shape[1]), axis=1)[:, -depth:]
        both = np.concatenate([best, kept], axis=1)
        best = np.partition(both, -depth, axis=1)[:, -depth:]


def best_seconds(
    jobs: dict[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, float], dict[str, Hits]]:
    """Least wall-clock seconds of each job, and its hits if any; the jobs take turns."""
    seconds, found = dict.fromkeys(jobs, float("inf")), {}
    for _ in range(rounds):
        for name, job in jobs.items():
            spent, result = timed(job)
            seconds[name] = min(seconds[name], spent)
            if isinstance(result, Hits):
                found[name] = result
            print(f"{name}: {seconds[name]:.2f} s", file=sys.stderr)
    return seconds, found


def faiss_jobs(
    queries: np.ndarray, documents: np.ndarray, depth: int, missing: list[str]
) -> dict[str, Callable[[], object]]:
    """Plain FAISS on the processor and on a GPU, where it is installed."""
    if faiss is None:
        missing.append("faiss: not installed")
        return {}
    inner = faiss.METRIC_INNER_PRODUCT
    jobs: dict[str, Callable[[], object]] = {
        "faiss.knn": lambda: faiss.knn(queries, documents, depth, metric=inner)
    }
    if not getattr(faiss, "get_num_gpus", lambda: 0)():
        missing.append("faiss.knn_gpu: this FAISS sees no GPU")
    elif depth > MAX_K:
        missing.append(f"faiss.knn_gpu: its depth ends at {MAX_K}")
    else:
        resources: Any = faiss.StandardGpuResources()
        jobs["faiss.knn_gpu"] = lambda: faiss.knn_gpu(
            resources, queries, documents, depth, metric=inner
        )
    return jobs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("rows", 300_000), ("dim", 384), ("queries", 1000), ("depth", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slack", type=int, default=block_search.SLACK)
    parser.add_argument("--tile-rows", type=int, nargs="*", default=[TILE_ROWS])
    parser.add_argument("--devices", nargs="*", default=["cpu"])
    parser.add_argument("--arithmetic", nargs="*", default=["float32"], choices=ARITHMETICS)
    options = parser.parse_args()
    documents = clusters(options.rows, options.dim, seed=1)
    halves = documents.astype(np.float16)
    queries = clusters(options.queries, options.dim, seed=2)
    tie_rank = np.random.default_rng(3).permutation(options.rows)
    block_search.SLACK = options.slack
    missing: list[str] = []
    jobs = faiss_jobs(queries, documents, options.depth, missing)
    jobs["numpy tiles"] = lambda: numpy_tiles(documents, queries, options.depth, 1 << 14)

    def ours(stored: np.ndarray, tile: int, engine: Any = None) -> Callable[[], object]:
        search = ArrayVectors(stored), queries, options.depth, tie_rank
        return lambda: exact_search(*search, tile_rows=tile, engine=engine)

    for tile in options.tile_rows:
        jobs[f"exact, tiles of {tile}"] = ours(documents, tile)
        for device in options.devices:
            if device != "cpu" and not torch.cuda.is_available():
                missing.append(f"{device}: PyTorch sees no GPU")
                continue
            for arithmetic in options.arithmetic:
                engine = TorchEngine(device, arithmetic)
                name = f"PyTorch, {device}, {arithmetic}, tiles of {tile}"
                jobs[name] = ours(documents, tile, engine)
                jobs[f"{name}, stored as float16"] = ours(halves, tile, engine)
    seconds, found = best_seconds(jobs, options.rounds)
    for kind in (True, False):  # rounding the vectors is another corpus
        same = [hits for name, hits in found.items() if name.endswith("float16") == kind]
        for hits in same:
            np.testing.assert_array_equal(hits.rows, same[0].rows)
            np.testing.assert_array_equal(hits.scores, same[0].scores)
    products = 2 * options.rows * options.queries * options.dim
    report = {
        "rows": options.rows,
        "dim": options.dim,
        "queries": options.queries,
        "depth": options.depth,
        "slack": options.slack,
        "threads": tile_search.thread_count(),
        "torch_threads": torch.get_num_threads(),
        "faiss": faiss.__version__ if faiss else None,
        "numpy": np.__version__,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "not_measured": missing,
        "seconds": seconds,
        "gflops": {name: products / value / 1e9 for name, value in seconds.items()},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if faiss:
        plain = seconds["faiss.knn"]
        report["times_faiss_knn"] = {name: value / plain for name, value in seconds.items()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
