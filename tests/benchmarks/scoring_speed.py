"""How long does it take to score a run of 6,980 queries x 1,000 documents?

That is the size of a run on MS MARCO's development queries (about 7 million rows, one or two
judged documents per query). Wanted: at most 0.15 s. It is scored

- from arrays with ``bench.evaluation.scoring.score``,
- with ir_measures, and with pytrec_eval (trec_eval itself; it knows no RR@10 and computes the
  uncut reciprocal rank instead). The input of both are nested dictionaries: the time to make
  them from the arrays is measured apart, and is in no ratio.

All on the same data in the same process, taking turns; each figure is the median of the rounds.
Processor time is given beside the time on the wall, since other work on the machine adds to the
latter. No two scores of a query are equal, since peers break ties differently; where the means
do not agree, no ratio is printed and the exit code is 1.

    python -m tests.benchmarks.scoring_speed [--queries 6980] [--depth 1000] [--repeat 3]

The last line of stdout is one JSON document; times are in seconds.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version

import ir_measures
import numpy as np
import pyarrow as pa
import pytrec_eval
from tabulate import tabulate

from bench.evaluation.runs import Run
from bench.evaluation.scoring import score
from datasets_cfg.readers.reader import Qrels

MEASURES = ["nDCG@10", "R@100", "R@1000", "RR@10", "AP"]
TREC_EVAL_NAMES = {
    "nDCG@10": "ndcg_cut_10",
    "R@100": "recall_100",
    "R@1000": "recall_1000",
    "AP": "map",
}
CORPUS = 8_841_823
WANTED_S = 0.15
AGREEMENT = 1e-6
LIBRARIES = ("ir_measures", "numpy", "pyarrow", "pytrec_eval-terrier")

Means = Mapping[str, float]
Table = dict[str, dict[str, float]]
Grades = dict[str, dict[str, int]]


def synthetic(queries: int, depth: int, seed: int = 0) -> tuple[Run, Qrels]:
    """A run over random documents, and qrels with one found and, sometimes, one missed passage."""
    rng = np.random.default_rng(seed)
    # Steps of 1 to 8,000 from a random start: distinct within a query.
    rows = np.cumsum(rng.integers(1, CORPUS // (depth + 1), (queries, depth)), axis=1)
    rows = rng.permuted(rows, axis=1)
    scores = np.arange(depth, 0, -1) + rng.uniform(-0.4, 0.4, (queries, depth))
    ids = tuple(f"q{number}" for number in range(queries))
    run = Run.from_columns(
        pa.array(ids, pa.large_string()).take(pa.array(np.repeat(np.arange(queries), depth))),
        pa.array(rows.ravel()).cast(pa.large_string()),
        scores.ravel().astype(np.float32),
    )
    found = rows[np.arange(queries), np.minimum(rng.geometric(0.05, queries), depth) - 1]
    missed = CORPUS + np.arange(0, queries, 15)
    judged = ids + ids[::15]
    documents = tuple(str(number) for number in [*found.tolist(), *missed.tolist()])
    return run, Qrels(judged, documents, np.ones(len(judged), dtype=np.int32))


def dictionaries(run: Run, qrels: Qrels) -> tuple[Table, Grades]:
    """The input of the peers: query -> document -> score, and -> grade."""
    table = {
        query_id: dict(zip(docs, scores.tolist(), strict=True))
        for query_id, docs, scores in run.rankings()
    }
    grades: Grades = {}
    for query_id, doc_id, grade in qrels:
        grades.setdefault(query_id, {})[doc_id] = int(grade)
    return table, grades


def ours(run: Run, qrels: Qrels) -> Means:
    scores = score(run, qrels, MEASURES)
    return {name: scores.mean(name) for name in MEASURES}


def with_ir_measures(table: Table, grades: Grades) -> Means:
    parsed = {name: ir_measures.parse_measure(name) for name in MEASURES}
    means = ir_measures.calc_aggregate(parsed.values(), grades, table)
    return {name: means[measure] for name, measure in parsed.items()}


def with_pytrec_eval(table: Table, grades: Grades) -> Means:
    names = {*TREC_EVAL_NAMES.values(), "recip_rank"}
    found = pytrec_eval.RelevanceEvaluator(grades, names).evaluate(table)
    return {
        name: statistics.fmean(values[theirs] for values in found.values())
        for name, theirs in TREC_EVAL_NAMES.items()
    }


def largest_difference(means: Mapping[str, Means]) -> float:
    """Between our mean of a measure and a peer's."""
    return max(
        abs(means["score"][name] - value)
        for theirs in means.values()
        for name, value in theirs.items()
    )


def main() -> int:
    """Measure and print."""
    options = _options()
    run, qrels = synthetic(options.queries, options.depth)
    start = time.perf_counter()
    table, grades = dictionaries(run, qrels)
    dictionaries_s = time.perf_counter() - start
    jobs: dict[str, Callable[[], Means]] = {
        "score": lambda: ours(run, qrels),
        "ir_measures": lambda: with_ir_measures(table, grades),
        "pytrec_eval": lambda: with_pytrec_eval(table, grades),
    }
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    means: dict[str, Means] = {}
    for _ in range(options.repeat):
        for name, job in jobs.items():
            wall, processor = time.perf_counter(), time.process_time()
            means[name] = job()
            rounds[name].append((time.perf_counter() - wall, time.process_time() - processor))
    difference = largest_difference(means)
    if difference > AGREEMENT:
        print(f"the means differ by {difference:.2g}: {means}", file=sys.stderr)
        return 1
    spent = {
        name: tuple(map(statistics.median, zip(*pairs, strict=True)))
        for name, pairs in rounds.items()
    }
    rows = [
        [name, *pair, *(one / own for one, own in zip(pair, spent["score"], strict=True))]
        for name, pair in spent.items()
    ]
    headers = ["", "wall s", "processor s", "times score (wall)", "times score (processor)"]
    print(tabulate(rows, headers, "github", floatfmt=".3f"))
    report = {
        "rows": len(run),
        "measures": MEASURES,
        "wanted_s": WANTED_S,
        "wall_and_processor_s": rounds,
        "dictionaries_s": dictionaries_s,
        "largest_difference_of_means": difference,
        "cpus": os.cpu_count(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }
    print(json.dumps(report))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=6980)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
