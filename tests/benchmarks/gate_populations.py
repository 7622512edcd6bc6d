"""Real queries for `gate_simulation`: what each scores as documents are put before its first hit.

BM25 ranks a collection. Then 0, 1, 2, … documents are put before the first relevant one of every
query, and each ranking is scored by the scorer that evaluations use: a table of queries by numbers
of documents. Drawing queries and numbers from it plants losses as a worse model makes them, in any
measure, graded or not. The embedded collection is one population; others are independent of it.

    python -m tests.benchmarks.gate_populations      shows their mean by documents pushed in
"""

import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from tabulate import tabulate

from bench.evaluate.pipeline import evaluate
from bench.evaluate.retrieval import EvaluationOptions
from bench.evaluate.runs import Run
from bench.evaluate.scoring import score
from bench.workspace import Workspace
from datasets_cfg.dataset import Dataset, open_dataset
from foundation.errors import BenchError

MOST_PUSHED = 12
PUSHED = 0.3  # of the geometric distribution of how many documents are pushed in
OWN, INDEPENDENT = "stdlib-code", ("beir/nfcorpus", "beir/scifact")
MEASURES = {OWN: ("RR@10", "nDCG@10", "R@10"), "": ("nDCG@10", "R@10")}


@dataclass(frozen=True)
class Population:
    """Queries that BM25 finds something for.

    Attributes:
        values: float64 ``(queries, MOST_PUSHED + 1)``: the measure with so many documents put
            before the first relevant one.
    """

    name: str
    values: np.ndarray

    def losses(self, shape: int | tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Differences of degraded rankings of drawn queries, 0 or less."""
        drawn = rng.integers(len(self.values), size=shape)
        pushed = np.minimum(rng.geometric(PUSHED, size=shape), MOST_PUSHED)
        return self.values[drawn, pushed] - self.values[drawn, 0]


def populations(names: Iterable[str] = (OWN, *INDEPENDENT)) -> list[Population]:
    """Of each collection that is on this machine, and each of its measures."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(os.environ.get("BENCH_DATA", folder))
            try:
                dataset = open_dataset(name, cache_dir=Path(folder), data_dir=data, download=False)
            except BenchError:
                print(f"{name} is not here, and left out", file=sys.stderr)
                continue
            found += _of(dataset, Workspace(Path(folder)))
    return found


def _of(dataset: Dataset, workspace: Workspace) -> list[Population]:
    measures = MEASURES.get(dataset.name, MEASURES[""])
    options = EvaluationOptions(depth=100, measures=measures)
    run = evaluate(workspace.prepare(workspace.open(dataset), workspace.load("bm25"), options)).run
    first = _first_relevant(dataset, run)
    tables = [
        score(_pushed(run, first, n), dataset.qrels, measures) for n in range(MOST_PUSHED + 1)
    ]
    found = []
    for measure in measures:
        values = np.stack([table.values[measure] for table in tables], axis=1)
        found.append(Population(f"{dataset.name} {measure}", values[values[:, 0] > 0]))
    return found


def _first_relevant(dataset: Dataset, run: Run) -> np.ndarray:
    """Place of the first relevant document of each query in the run's rows; its end where none."""
    relevant = {(query, document) for query, document, grade in dataset.qrels if grade > 0}
    ends = run.offsets[1:].tolist()
    documents = run.doc_ids.to_pylist()
    places = []
    for query, start, end in zip(run.query_ids, run.offsets.tolist(), ends, strict=False):
        hits = (at for at in range(start, end) if (query, documents[at]) in relevant)
        places.append(next(hits, end))
    return np.array(places)


def _pushed(run: Run, first: np.ndarray, count: int) -> Run:
    """The run with ``count`` unknown documents before the first relevant one of each query."""
    places = np.repeat(first, count)
    strangers = [f"pushed in {i}" for i in range(count)] * len(first)
    ids = np.insert(np.array(run.doc_ids.to_pylist(), dtype=object), places, strangers)
    offsets = run.offsets + count * np.arange(len(run.offsets))
    queries = np.diff(offsets)
    ranks = np.arange(len(ids)) - np.repeat(offsets[:-1], queries)
    scores = -ranks.astype(np.float32)
    codes = pa.array(np.repeat(np.arange(len(queries)), queries))
    names = pa.DictionaryArray.from_arrays(codes, pa.array(run.query_ids, pa.large_string()))
    return Run.from_columns(names, pa.array(ids.tolist(), pa.large_string()), scores)


if __name__ == "__main__":
    rows = [[one.name, len(one.values), *one.values.mean(axis=0)] for one in populations()]
    print(tabulate(rows, ["", "queries", *range(MOST_PUSHED + 1)], "pipe", floatfmt=".3f"))
