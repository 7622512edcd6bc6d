"""Run files that others made and published give the figures known for them."""

import csv
from pathlib import Path

import numpy as np
import pytest

from bench.evaluation.run_files import read_run_file
from bench.evaluation.scoring import score
from datasets_cfg.readers.reader import Qrels

QRELS = {
    "dl19": "msmarco-sample/qrels.dl19-passage.txt",
    "dl20": "msmarco-sample/qrels.dl20-passage.txt",
    "scifact": "beir/scifact/qrels/test.tsv",
}
# Run, nDCG@10, RR (grade >= 1), AP, R@100, R@1000, queries; trec_eval's figures.
FIGURES = [
    ("dl19.bm25", 0.505831, 0.824544, 0.247600, 0.491050, 0.491050, 43),
    ("dl19.bm25-webis", 0.479540, 0.795028, 0.286448, 0.488133, 0.755332, 43),
    ("dl19.tas-b", 0.721033, 0.950997, 0.404959, 0.609660, 0.609660, 43),
    ("dl19.repllama", 0.738440, 0.988372, 0.529775, 0.660192, 0.872105, 43),
    ("dl20.bm25", 0.479637, 0.826923, 0.268536, 0.559868, 0.559868, 54),
    ("dl20.tas-b", 0.685361, 0.924162, 0.452027, 0.713472, 0.713472, 54),
    ("scifact.all-minilm-l6-v2", 0.645082, 0.610968, 0.603074, 0.925000, 0.925000, 300),
]


def qrels_of(path: Path) -> Qrels:
    """TREC qrels, or BEIR's three columns with a header."""
    with path.open(newline="") as file:
        if path.suffix == ".tsv":
            rows = [(q, doc, grade) for q, doc, grade in csv.reader(file, delimiter="\t")][1:]
        else:
            rows = [(q, doc, grade) for q, _, doc, grade in map(str.split, file)]
    queries, documents, grades = zip(*rows, strict=True)
    return Qrels(queries, documents, np.array(grades, dtype=np.int32))


def files_of(name: str, folder: Path) -> tuple[Path, Path]:
    return folder / "runs" / f"{name}.trec", folder / QRELS[name.split(".")[0]]


@pytest.mark.parametrize("name", [row[0] for row in FIGURES])
def test_a_published_run_gives_its_figures(name, bench_data):
    run_path, qrels_path = files_of(name, bench_data)
    rel = "" if name.startswith("scifact") else "(rel=2)"
    measures = ["nDCG@10", "RR", f"AP{rel}", f"R{rel}@100", f"R{rel}@1000"]
    scores = score(read_run_file(run_path).run, qrels_of(qrels_path), measures)
    *expected, queries = next(row[1:] for row in FIGURES if row[0] == name)
    assert len(scores.query_ids) == queries
    assert [scores.mean(measure) for measure in measures] == pytest.approx(expected, abs=5e-7)
