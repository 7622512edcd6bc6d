"""How long does it take to score a run of 6,980 queries x 1,000 documents?

That is the size of a run on MS MARCO's development queries (about 7 million rows, one or two
judged documents per query). It is scored from arrays with ``bench.scoring.score``, and, on the
same data in the same process, with ir_measures, whose input are nested dictionaries: the time to
make them from the arrays is reported apart (``dictionaries_s``) and both ways in the ratios. The
means of both must agree. Every time is the median of the repetitions of one implementation.

    python -m tests.benchmarks.scoring_speed [--queries 6980] [--depth 1000] [--repeat 3]

The last line of stdout is one JSON document; times are in seconds.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

import ir_measures
import numpy as np
import pyarrow as pa

from bench.runs import Run
from bench.scoring import score
from datasets_cfg.records import Qrels

MEASURES = ["nDCG@10", "R@100", "R@1000", "RR@10", "AP"]
CORPUS = 8_841_823


def synthetic(queries: int, depth: int, seed: int = 0) -> tuple[Run, Qrels]:
    """A run over random documents, and qrels with one found and, sometimes, one missed passage."""
    rng = np.random.default_rng(seed)
    # Steps of 1 to 8,000 from a random start: distinct within a query.
    rows = np.cumsum(rng.integers(1, CORPUS // (depth + 1), (queries, depth)), axis=1)
    rows = rng.permuted(rows, axis=1)
    scores = -np.sort(-rng.random((queries, depth), dtype=np.float32), axis=1)
    ids = tuple(f"q{number}" for number in range(queries))
    doc_ids = pa.array(rows.ravel()).cast(pa.large_string())
    run = Run(ids, np.arange(queries + 1) * depth, doc_ids, scores.ravel())
    found = rows[np.arange(queries), np.minimum(rng.geometric(0.05, queries), depth) - 1]
    missed = CORPUS + np.arange(0, queries, 15)
    judged = ids + ids[::15]
    documents = tuple(str(number) for number in [*found.tolist(), *missed.tolist()])
    return run, Qrels(judged, documents, np.ones(len(judged), dtype=np.int32))


def dictionaries(run: Run, qrels: Qrels) -> tuple[dict, dict]:
    """The input of ir_measures: query -> document -> score, and -> grade."""
    table = {
        query_id: dict(zip(docs, scores.tolist(), strict=True))
        for query_id, docs, scores in run.rankings()
    }
    grades: dict[str, dict[str, int]] = {}
    for query_id, doc_id, grade in qrels:
        grades.setdefault(query_id, {})[doc_id] = grade
    return table, grades


def timed(work: Callable[[], object], repeat: int) -> tuple[float, object]:
    """Median seconds of the repetitions, and the last result."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), result


def main() -> None:
    parser = argparse.ArgumentParser(description="Time scoring beside ir_measures.")
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    run, qrels = synthetic(options.queries, options.depth)
    ours_s, ours = timed(lambda: score(run, qrels, MEASURES), options.repeat)
    dictionaries_s, (table, grades) = timed(lambda: dictionaries(run, qrels), 1)
    parsed = [ir_measures.parse_measure(name) for name in MEASURES]
    theirs_s, theirs = timed(
        lambda: ir_measures.calc_aggregate(parsed, grades, table), options.repeat
    )
    difference = max(
        abs(ours.mean(name) - theirs[one]) for name, one in zip(MEASURES, parsed, strict=True)
    )
    print(f"score from arrays      {ours_s:8.3f} s")
    print(f"ir_measures            {theirs_s:8.3f} s  ({theirs_s / ours_s:.1f} x)")
    print(f"  making its input     {dictionaries_s:8.3f} s")
    report = {
        "rows": len(run),
        "measures": MEASURES,
        "repeat": options.repeat,
        "score_s": ours_s,
        "ir_measures_s": theirs_s,
        "dictionaries_s": dictionaries_s,
        "ratio_without_dictionaries": theirs_s / ours_s,
        "ratio_with_dictionaries": (theirs_s + dictionaries_s) / ours_s,
        "largest_difference_of_means": difference,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ir_measures": ir_measures.__version__,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
