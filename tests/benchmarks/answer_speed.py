"""How long does it take to look up the answers of 3,610 questions in 100 passages each?

The real questions of Natural Questions and the real passages of the sample that lies below
``BENCH_DATA``, each of them as often as it takes for no two retrieved passages to be the same: the
most that DPR's shape can cost. The corpus is built first, which is not counted; what is measured is
what ``run`` does: finding the rows of the ids, reading the passages, cutting them into tokens.
Wanted: at most 60 s.

    BENCH_DATA=DIR python -m tests.benchmarks.answer_speed [--depth 100]

The last line of stdout is one JSON document.
"""

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.evaluate.judging import score_run
from bench.evaluate.runs import Run
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from datasets_cfg.facts import Facts
from datasets_cfg.readers import Reader, reader_for
from datasets_cfg.records import Document
from retrievers.index.faiss_index import Hits


def copies(reader: Reader, count: int) -> Iterator[Document]:
    """The passages again and again, under other ids."""
    passages = list(reader.documents())
    for number, passage in enumerate(itertools.islice(itertools.cycle(passages), count)):
        yield passage._replace(id=str(number))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depth", type=int, default=100)
    depth = parser.parse_args().depth
    reader = reader_for("dpr", Path(os.environ["BENCH_DATA"]) / "nq-dpr-sample", "test")
    read = reader.judgements()
    shape = len(read.queries), depth
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus.build(copies(reader, shape[0] * depth), Path(folder) / "corpus")
        facts = Facts(name="sample", layout="dpr", main_measure="Success@20")
        dataset = Dataset(facts, read.queries, read.qrels, read.answers, reader, Path(folder))
        dataset.__dict__["corpus"] = corpus
        rows = np.random.default_rng(0).permutation(shape[0] * depth).reshape(shape)
        scores = np.broadcast_to(np.arange(depth, 0, -1, dtype=np.float32), shape)
        run = Run.from_hits(Hits(scores, rows), read.queries.ids, corpus.ids, corpus.tie_rank)
        wall, processor = time.perf_counter(), time.process_time()
        score_run(dataset, run, ["Success@20", "Success@100"], depth)
        report = {
            "questions": shape[0],
            "passages": rows.size,
            "wall_s": time.perf_counter() - wall,
            "processor_s": time.process_time() - processor,
            "load_average": os.getloadavg(),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
