"""How long does it take to compare every pair of 64 models on one collection?

2,016 pairs over 6,980 queries with 9,999 resamples each: interval and p for every pair, from one
matrix of signs and one of weights for all of them. Beside it, SciPy's ``permutation_test`` and
``bootstrap`` on a few of the pairs, on the same differences with the same numbers of resamples,
as one would call them pair by pair; their time for all pairs is the mean times the number of
pairs. The p of both must agree within the error of sampling.

    python -m tests.benchmarks.compare_speed [--models 64] [--queries 6980] [--resamples 9999]

The last line of stdout is one JSON document; times are in seconds.
"""

import argparse
import itertools
import json
import os
import platform
import time

import numpy as np
import scipy
from scipy import stats

from bench.comparing.statistics import PairedScores, Resampling, paired, resample

THEIRS = 2  # pairs that SciPy compares


def synthetic(queries: int, models: int, seed: int = 0) -> np.ndarray:
    """Reciprocal ranks: most are 0 or 1, and models mostly agree."""
    rng = np.random.default_rng(seed)
    ranks = rng.geometric(0.2, (queries, 1))
    moved = np.where(rng.random((queries, models)) < 0.3, rng.integers(1, 5, (queries, models)), 1)
    ranks = np.where(rng.random((queries, models)) < 0.5, ranks * moved, ranks)
    return np.where(ranks <= 10, 1 / ranks, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time all comparisons of pairs beside SciPy's.")
    parser.add_argument("--models", type=int, default=64)
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--resamples", type=int, default=9999)
    options = parser.parse_args()
    scores = synthetic(options.queries, options.models)
    pairs = list(itertools.combinations(range(options.models), 2))

    start = time.perf_counter()
    drawn = resample(scores, Resampling(options.resamples))
    resample_s = time.perf_counter() - start
    found = {}
    for i, j in pairs:
        found[i, j] = paired([PairedScores.of(scores, drawn, i, j)])
    ours_s = time.perf_counter() - start

    start, largest = time.perf_counter(), 0.0
    for i, j in pairs[:THEIRS]:
        values = (scores[:, i] - scores[:, j],)
        test = stats.permutation_test(
            values,
            np.mean,
            permutation_type="samples",
            vectorized=True,
            n_resamples=options.resamples,
            batch=256,
            rng=1,
        )
        stats.bootstrap(values, np.mean, n_resamples=options.resamples, batch=256, rng=1)
        error = np.sqrt(2 * max(test.pvalue, 1e-3) / options.resamples)
        largest = max(largest, abs(found[i, j].p - test.pvalue) / error)
    theirs_s = (time.perf_counter() - start) / THEIRS * len(pairs)

    print(
        f"{len(pairs):,} pairs            {ours_s:9.2f} s, of which resampling {resample_s:.2f} s"
    )
    print(
        f"SciPy, pair by pair  {theirs_s:9.2f} s, from {THEIRS} pairs ({theirs_s / ours_s:.0f} x)"
    )
    report = {
        "pairs": len(pairs),
        "queries": options.queries,
        "resamples": options.resamples,
        "ours_s": ours_s,
        "resample_s": resample_s,
        "scipy_s": theirs_s,
        "ratio": theirs_s / ours_s,
        "largest_difference_of_p_in_standard_errors": largest,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
