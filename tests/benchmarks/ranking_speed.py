"""What it takes to keep a ranking: the columnar file of results against lines of text.

From hits (scores and rows of the corpus) to a whole file on disk, and back to a run:

- ``columns``: what ``run`` writes, an Arrow file with zstd,
- ``text``: a TREC run file with gzip, as ``export trec`` writes it,
- ``text by lines``: the same, formatted a line at a time in Python and compressed by zlib's
  level 6. That is how all results were kept up to version 0.2.

All on the same hits in the same process, taking turns; each figure is the median of the rounds.
Processor time is given beside the time on the wall, since other work on the machine adds to the
latter; ratios are of processor time. Where a file does not give the same run back, no figure is
printed and the exit code is 1.

    python -m tests.benchmarks.ranking_speed [--queries 2000] [--depth 1000] [--repeat 3]

6,980 queries are the size of MS MARCO's development set. The last line of stdout is one JSON
document; times are in seconds.
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.evaluate.run_files import columnar, read_run_file, write_run
from bench.evaluate.runs import Run
from foundation.files import replacing
from retrievers.index.faiss_index import Hits

CORPUS = 8_841_823
WANTED_S = {2_000_000: 0.5, 6_980_000: 1.5}  # to save so many rows
FILES = {"columns": "run.arrow", "text": "run.trec.gz", "text by lines": "lines.trec.gz"}
Job = Callable[[Path], None]
Corpus = tuple[pa.Array, np.ndarray]


def synthetic(queries: int, depth: int, seed: int = 0) -> tuple[Hits, Corpus]:
    """Distinct random rows for each query with falling scores; ids and byte order of the corpus."""
    rng = np.random.default_rng(seed)
    rows = np.cumsum(rng.integers(1, CORPUS // (depth + 1), (queries, depth)), axis=1)
    scores = np.sort(rng.normal(0.6, 0.1, (queries, depth)).astype(np.float32), axis=1)[:, ::-1]
    ids = pa.array(np.arange(CORPUS)).cast(pa.large_string())
    tie_rank = np.empty(CORPUS, np.int64)
    tie_rank[pc.sort_indices(ids).to_numpy()] = np.arange(CORPUS)
    return Hits(np.ascontiguousarray(scores), rng.permuted(rows, axis=1)), (ids, tie_rank)


def by_lines(run: Run, path: Path) -> None:
    with replacing(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as out:
        for query, documents, scores in run.rankings():
            rows = enumerate(zip(documents, scores.tolist(), strict=True), start=1)
            lines = [f"{query} Q0 {doc} {rank} {score:.9g} tag\n" for rank, (doc, score) in rows]
            out.write("".join(lines).encode())


def as_columns(run: Run, path: Path) -> None:
    with replacing(path) as file:
        file.write(columnar(run))


def jobs_on(hits: Hits, corpus: Corpus) -> dict[str, Job]:
    queries = [f"q{number}" for number in range(len(hits.rows))]

    def run() -> Run:
        return Run.from_hits(hits, queries, *corpus)

    return {
        "columns": lambda path: as_columns(run(), path),
        "text": lambda path: write_run(run(), path, "tag"),
        "text by lines": lambda path: by_lines(run(), path),
    }


def clocked(work: Callable[[], object]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def measured(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Median seconds to save and to read, on the wall and of the processor, and bytes."""
    hits, corpus = synthetic(options.queries, options.depth)
    paths = {name: folder / file for name, file in FILES.items()}
    spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in FILES}
    for _ in range(options.repeat):
        for name, job in jobs_on(hits, corpus).items():
            saved = clocked(lambda job=job, name=name: job(paths[name]))  # type: ignore[misc]
            read = clocked(lambda name=name: read_run_file(paths[name]).run)  # type: ignore[misc]
            spent[name].append((*saved, *read))
            print(f"{name}: saved in {saved[1]:.2f} s of the processor", file=sys.stderr)
    names = ("save_wall_s", "save_processor_s", "read_wall_s", "read_processor_s")
    medians = {
        name: dict(zip(names, map(statistics.median, zip(*rounds, strict=True)), strict=True))
        for name, rounds in spent.items()
    }
    return {name: {**one, "bytes": paths[name].stat().st_size} for name, one in medians.items()}


def same_runs(folder: Path) -> bool:
    first, *others = (read_run_file(folder / file).run for file in FILES.values())
    return all(
        first.query_ids == other.query_ids
        and np.array_equal(first.offsets, other.offsets)
        and first.ids.equals(other.ids)
        and np.array_equal(first.documents, other.documents)
        and np.array_equal(first.scores, other.scores)
        for other in others
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(options, Path(folder))
        if not same_runs(Path(folder)):
            print("the files do not give the same run", file=sys.stderr)
            return 1
    slowest, rows = figures["text by lines"], options.queries * options.depth
    report = {
        "rows": rows,
        "wanted_s": WANTED_S.get(rows),
        **figures,
        "save_ratio": slowest["save_processor_s"] / figures["columns"]["save_processor_s"],
        "text_save_ratio": slowest["save_processor_s"] / figures["text"]["save_processor_s"],
        "read_ratio": slowest["read_processor_s"] / figures["columns"]["read_processor_s"],
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
