"""What exactness costs: certified search against plain FAISS, side by side in one run.

``exact_search`` picks candidates in float32 by an error bound and scores them again in
float64, so that a ranking depends on the vectors alone. Plain ``faiss.knn`` is
the peer that gives up the reproducible order. A third peer is a float32 matrix product per tile
with NumPy, the way that searches without FAISS do it. Peers take turns, and the
ratio of each pair is reported; the best of the rounds counts, since other work on the machine
can only add time.

``python -m tests.benchmarks.search_speed --rows 300000 --dim 384 --queries 1000 --depth 1000``
The last line of stdout is one JSON document.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable

import faiss
import numpy as np

from bench.evaluate.exact import TILE_ROWS, ArrayVectors, exact_search, tile_search


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


def best_seconds(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Least wall-clock seconds of each job; the jobs take turns."""
    seconds = dict.fromkeys(jobs, float("inf"))
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
            print(f"{name}: {seconds[name]:.2f} s", file=sys.stderr)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("rows", 300_000), ("dim", 384), ("queries", 1000), ("depth", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slack", type=int, default=tile_search.SLACK)
    parser.add_argument("--tile-rows", type=int, nargs="*", default=[TILE_ROWS])
    options = parser.parse_args()
    documents = clusters(options.rows, options.dim, seed=1)
    queries = clusters(options.queries, options.dim, seed=2)
    tie_rank = np.random.default_rng(3).permutation(options.rows)
    tile_search.SLACK = options.slack
    inner = faiss.METRIC_INNER_PRODUCT
    jobs: dict[str, Callable[[], object]] = {
        "faiss.knn": lambda: faiss.knn(queries, documents, options.depth, metric=inner),
        "numpy tiles": lambda: numpy_tiles(documents, queries, options.depth, 1 << 14),
    }
    for tile in options.tile_rows:
        jobs[f"exact, tiles of {tile}"] = lambda tile=tile: exact_search(
            ArrayVectors(documents), queries, options.depth, tie_rank, tile_rows=tile
        )
    seconds = best_seconds(jobs, options.rounds)
    report = {
        "rows": options.rows,
        "dim": options.dim,
        "queries": options.queries,
        "depth": options.depth,
        "slack": options.slack,
        "threads": faiss.omp_get_max_threads(),
        "faiss": faiss.__version__,
        "numpy": np.__version__,
        "seconds": seconds,
        "times_faiss_knn": {name: value / seconds["faiss.knn"] for name, value in seconds.items()},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
