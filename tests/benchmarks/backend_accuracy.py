"""What does each back end cost in accuracy, and what does it give in speed?

all-MiniLM-L6-v2 encodes the same documents and queries of SciFact and NFCorpus (in BENCH_DATA)
through PyTorch in float32 and with dense layers in int8, in one process on the CPU with the same
threads. For each back end and collection:

- the largest difference of a number in a document's vector from PyTorch's, and the least cosine;
- the difference of nDCG@10 from PyTorch's (exact search, the collection's own protocol);
- tokens/s, and its ratio to PyTorch's: back ends take turns, a block of documents each, and the
  ratio is the median over blocks, on the wall and in processor time, which other work on the
  machine adds less to;
- the largest difference of a text encoded alone from the same text in its batch.

With ``--documents`` a collection is that many documents, judged ones first: its scores are not the
published ones, and only their differences are of use. Where a back end costs more than .005 of
nDCG@10, or a text's vector moves by more than 1e-6 with its batch, the exit code is 1.

    BENCH_DATA=... python -m tests.benchmarks.backend_accuracy [--documents 1500]

The last line of stdout is one JSON document; times are in seconds.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tabulate import tabulate

from bench.evaluate.exact import ArrayVectors, exact_search
from bench.evaluate.runs import Run
from bench.evaluate.scoring import score
from bench.evaluate.search import drop_self
from datasets_cfg.dataset import Dataset, open_dataset
from retrievers.encoders.routed import open_encoder
from retrievers.encoders.transformer import TransformerEncoder
from retrievers.index.faiss_index import Hits
from retrievers.models.model import resolve_model

MODEL = "minilm"
BACKENDS = ("torch", "int8")
COLLECTIONS = ("beir/scifact", "beir/nfcorpus")
MEASURE = "nDCG@10"
DEPTH = 10
WANTED_LOSS = 0.005
WANTED_ALONE = 1e-6
BLOCK = 256  # documents of one turn
ALONE = 32  # texts
LIBRARIES = ("numpy", "torch", "transformers")

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


class Turn(NamedTuple):
    """One block of documents through one back end."""

    tokens: int
    wall: float
    processor: float


class Encoded(NamedTuple):
    """What one back end made of a collection."""

    documents: Vectors
    queries: Vectors
    turns: list[Turn]
    alone: float


def chosen_rows(dataset: Dataset, documents: int | None, seed: int = 0) -> Rows:
    """That many rows in random order, those of judged documents first; None is all rows."""
    shuffled = np.random.default_rng(seed).permutation(len(dataset.corpus))
    if documents is None:
        return shuffled
    found = dataset.corpus.rows_of(tuple(dict.fromkeys(dataset.qrels.doc_ids)))
    judged = np.isin(shuffled, found[found >= 0])
    return np.concatenate([shuffled[judged], shuffled[~judged]])[:documents]


def encode(
    encoders: Mapping[str, TransformerEncoder], dataset: Dataset, rows: Rows
) -> dict[str, Encoded]:
    """Vectors, times and the difference of a text alone, by back end; rows in blocks, in turns."""
    titles = dataset.corpus.titles.take(rows).to_pylist()
    texts = dataset.corpus.texts.take(rows).to_pylist()
    vectors: dict[str, list[Vectors]] = {name: [] for name in encoders}
    turns: dict[str, list[Turn]] = {name: [] for name in encoders}
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        for name, encoder in encoders.items():
            before = encoder.clock.counts.get("tokens", 0)
            wall, processor = time.perf_counter(), time.process_time()
            vectors[name].append(encoder.encode_documents(titles[block], texts[block]))
            spent = time.perf_counter() - wall, time.process_time() - processor
            turns[name].append(Turn(encoder.clock.counts["tokens"] - before, *spent))
        print(f"{dataset.name}: {min(start + BLOCK, len(rows)):,} documents", file=sys.stderr)
    found: dict[str, Encoded] = {}
    for name, encoder in encoders.items():
        queries = encoder.encode_queries(dataset.queries.texts)
        documents = np.concatenate(vectors[name])
        pairs = zip(titles[:ALONE], texts[:ALONE], strict=True)
        alone = [encoder.encode_documents([title], [text])[0] for title, text in pairs]
        moved = float(np.abs(np.stack(alone) - documents[:ALONE]).max())
        found[name] = Encoded(documents, queries, turns[name], moved)
    return found


def mean_score(dataset: Dataset, rows: Rows, encoded: Encoded) -> float:
    """Mean of the measure over the queries, from exact search in the chosen documents."""
    corpus = dataset.corpus
    depth = DEPTH + 1 if dataset.facts.exclude_self else DEPTH
    vectors = ArrayVectors(encoded.documents)
    hits = exact_search(vectors, encoded.queries, depth, corpus.tie_rank[rows])
    hits = Hits(hits.scores, np.where(hits.rows >= 0, rows[hits.rows], -1))
    if dataset.facts.exclude_self:
        hits = drop_self(hits, corpus.rows_of(dataset.queries.ids), DEPTH)
    run = Run.from_hits(hits, dataset.queries.ids, corpus.ids, corpus.tie_rank)
    return score(run, dataset.qrels, [MEASURE]).mean(MEASURE)


def compared(encoded: Mapping[str, Encoded], scores: Mapping[str, float]) -> dict[str, Any]:
    """Figures of each back end beside those of PyTorch."""
    exact = encoded["torch"]
    return {
        name: {
            "largest_difference": float(np.abs(one.documents - exact.documents).max()),
            "least_cosine": float((one.documents * exact.documents).sum(axis=1).min()),
            "alone": one.alone,
            MEASURE: scores[name],
            "change": scores[name] - scores["torch"],
            "tokens_per_s": sum(t.tokens for t in one.turns) / sum(t.wall for t in one.turns),
            "ratio": _ratio([t.wall for t in exact.turns], [t.wall for t in one.turns]),
            "processor_ratio": _ratio(
                [t.processor for t in exact.turns], [t.processor for t in one.turns]
            ),
        }
        for name, one in encoded.items()
    }


def _ratio(theirs: Sequence[float], own: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, own, strict=True))


def table_of(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Figures for people."""
    headers = ["", "back end", "largest difference", "least cosine", "alone", MEASURE, "change"]
    headers += ["tokens/s", "ratio", "of processor s"]
    cells = [
        [
            collection,
            name,
            f"{one['largest_difference']:.1e}",
            f"{one['least_cosine']:.6f}",
            f"{one['alone']:.1e}",
            f"{one[MEASURE]:.4f}",
            f"{one['change']:+.4f}",
            f"{one['tokens_per_s']:,.0f}",
            f"{one['ratio']:.2f}",
            f"{one['processor_ratio']:.2f}",
        ]
        for collection, by_backend in figures.items()
        for name, one in by_backend.items()
    ]
    alignment = ["left", "left", *["right"] * 8]
    table = tabulate(cells, headers, tablefmt="github", colalign=alignment, disable_numparse=True)
    return str(table)


def encoders_of(backends: Sequence[str]) -> dict[str, TransformerEncoder]:
    """Encoders by back end, with their weights loaded."""
    found = {name: open_encoder(resolve_model(MODEL, backend=name), "cpu") for name in backends}
    opened = {name: one for name, one in found.items() if isinstance(one, TransformerEncoder)}
    for one in opened.values():
        one.encode_queries(["warm up"])
    return opened


def measure(encoders: Mapping[str, TransformerEncoder], documents: int | None) -> dict[str, Any]:
    """Figures by collection and back end."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in COLLECTIONS:
            dataset = open_dataset(
                name,
                data_dir=Path(os.environ["BENCH_DATA"]),
                cache_dir=Path(cache),
                download=False,
            )
            rows = chosen_rows(dataset, documents)
            encoded = encode(encoders, dataset, rows)
            scores = {key: mean_score(dataset, rows, one) for key, one in encoded.items()}
            figures[name] = compared(encoded, scores)
            print(f"{name}: {json.dumps(figures[name])}", file=sys.stderr)
    return figures


def main() -> int:
    """Measure and print."""
    options = _options()
    if "BENCH_DATA" not in os.environ:
        print("BENCH_DATA must name a folder with beir/scifact and beir/nfcorpus", file=sys.stderr)
        return 2
    figures = measure(encoders_of(options.backends), options.documents)
    every = [one for by_backend in figures.values() for one in by_backend.values()]
    kept = all(abs(one["change"]) <= WANTED_LOSS and one["alone"] <= WANTED_ALONE for one in every)
    report = {
        "model": MODEL,
        "documents": options.documents,
        "threads": torch.get_num_threads(),
        "wanted": {"change": WANTED_LOSS, "alone": WANTED_ALONE},
        "kept": kept,
        "figures": figures,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }
    print(table_of(figures) + "\n")
    print(json.dumps(report))
    return 0 if kept else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, help="of each collection (default: all)")
    parser.add_argument(
        "--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="torch among them"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
