"""Real differences for `gate_simulation`: rankings of several models on the same judged queries.

Published run files of TREC Deep Learning 2019 and 2020 and of all-MiniLM-L6-v2 on SciFact, with
BM25 beside the last, and MiniLM with noise in its scores as a sibling checkpoint of itself. Each
pair is scored by the scorer that evaluations use.

    python -m tests.benchmarks.gate_pairs      shows each pair's means and deviation

`BENCH_DATA` names the folder with ``runs``, ``msmarco-sample`` and ``beir/scifact``.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tabulate import tabulate

from bench.evaluation.collection_search import EvaluationOptions
from bench.evaluation.pipeline import evaluate
from bench.evaluation.runs import Run, read_run_file
from bench.evaluation.scoring import score
from bench.runner.workspace import Workspace
from datasets_cfg.dataset import open_dataset
from datasets_cfg.readers import Qrels
from datasets_cfg.readers.lines import read_beir_qrels, read_trec_qrels

MEASURE = "nDCG@10"
QRELS = {
    "dl19": "msmarco-sample/qrels.dl19-passage.txt",
    "dl20": "msmarco-sample/qrels.dl20-passage.txt",
    "scifact": "beir/scifact/qrels/test.tsv",
}
MINILM, BM25, NOISED = "scifact.all-minilm-l6-v2", "scifact.bm25", "scifact.minilm-with-noise"
NOISE = 0.02  # standard deviation, of cosines
PAIRS = (  # baseline and candidate, as ``collection.model``
    ("dl19.bm25", "dl19.tas-b"),
    ("dl19.tas-b", "dl19.repllama"),
    ("dl19.bm25", "dl19.bm25-webis"),
    ("dl20.bm25", "dl20.tas-b"),
    (BM25, MINILM),
    (MINILM, NOISED),
)
FAMILY = (PAIRS[0], PAIRS[3], PAIRS[4])  # three collections of a lexical and a dense model


@dataclass(frozen=True)
class Pair:
    """Two models on the queries of one collection.

    Attributes:
        baseline, candidate: float64 ``(n,)``, nDCG@10 of each query.
    """

    name: str
    baseline: np.ndarray
    candidate: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """Candidate minus baseline, float64 ``(n,)``."""
        return self.candidate - self.baseline


def real_pairs() -> dict[tuple[str, str], Pair]:
    """The pairs of `PAIRS` whose runs are on this machine."""
    if "BENCH_DATA" not in os.environ:
        print("BENCH_DATA is not set, and real pairs are left out", file=sys.stderr)
        return {}
    folder = Path(os.environ["BENCH_DATA"])
    values: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for pair in PAIRS for name in pair):
        run = _run(name, folder)
        if run is None:
            print(f"{name} is not here, and left out", file=sys.stderr)
            continue
        qrels = _qrels(folder / QRELS[name.partition(".")[0]])
        scores = score(run, qrels, [MEASURE])
        by_query = dict(zip(scores.query_ids, scores.values[MEASURE].tolist(), strict=True))
        values[name] = np.array([by_query[query] for query in sorted(by_query)])
    return {
        (a, b): Pair(f"{a} and {b.partition('.')[2]}", values[a], values[b])
        for a, b in PAIRS
        if a in values and b in values
    }


def _qrels(path: Path) -> Qrels:
    return read_beir_qrels(path) if path.suffix == ".tsv" else read_trec_qrels(path)


def _run(name: str, folder: Path) -> Run | None:
    """The run of this name: a file, or made from one; None where its data is not here."""
    path = folder / "runs" / f"{MINILM if name == NOISED else name}.trec"
    if name == BM25 and (folder / "beir" / "scifact").is_dir():
        return _bm25(folder)
    if not path.is_file():
        return None
    return _noised(read_run_file(path).run) if name == NOISED else read_run_file(path).run


def _bm25(folder: Path) -> Run:
    with tempfile.TemporaryDirectory() as cache:
        dataset = open_dataset(
            "beir/scifact", cache_dir=Path(cache), data_dir=folder, download=False
        )
        workspace = Workspace(Path(cache))
        options = EvaluationOptions(depth=100, measures=(MEASURE,))
        return evaluate(
            workspace.prepare(workspace.open(dataset), workspace.load("bm25"), options)
        ).run


def _noised(run: Run) -> Run:
    """The run with noise in its scores, as a sibling checkpoint has it."""
    queries = np.repeat(run.query_ids, np.diff(run.offsets)).tolist()
    noise = np.random.default_rng(0).normal(0, NOISE, len(run))
    return Run.from_rows(queries, run.doc_ids.to_pylist(), run.scores + noise)


if __name__ == "__main__":
    rows = [
        [
            pair.name,
            len(pair.differences),
            pair.baseline.mean(),
            pair.candidate.mean(),
            pair.differences.std(ddof=1),
            float(np.mean(pair.differences == 0)),
        ]
        for pair in real_pairs().values()
    ]
    headers = ["pair", "queries", "baseline", "candidate", "deviation", "share of zeros"]
    print(tabulate(rows, headers, "pipe", floatfmt=".3f"))
