"""What does `run` cost at the size of MS MARCO, within a memory budget?

The real command line over synthetic passages in MS MARCO's files: 8,841,823 passages with 6,980
queries at depth 1,000. A card names an encoder of this module, whose vectors cost little to make
(the sum of rows of three tables, as unit vectors). The real store keeps them in float16. Each `run`
is a process of its own:

- ``first``: reads the passages, builds the corpus, plans, encodes, keeps, searches, scores, saves;
- ``second``: the same with the vectors stored. Nothing is encoded, all is looked up and searched.

Of each are given: seconds on the wall and of the processor; the peak of the resident set, mapped
file pages and libraries included (what ``VmHWM`` of ``/proc/self/status`` says, by ``wait4``);
the stages as the result states them; and what is outside of encoding, search and scoring. The
rankings of some queries are compared with brute force in float64 over all rows.

``--against-faiss`` lets exact search over the stored vectors race with FAISS flat on the same
vectors in memory as float32 (loading them is not counted), by turns. Wanted: at most 1.3 times its
processor time. ``OPENBLAS_CORETYPE`` decides for both which kernels OpenBLAS has (the command line
sets it to ``SkylakeX`` where the processor has AVX-512).

    python -m tests.benchmarks.real_shapes --dim 64 --max-memory 3GB
    python -m tests.benchmarks.real_shapes --rows 1000000 --queries 1000 --dim 384 --against-faiss

Disk: 2 bytes x rows x dim, and about 120 for each row. The last line of stdout is one JSON
document; the exit code is 1 where a ranking differs or a peak is above the budget.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

from bench.evaluation.exact import exact_search
from bench.evaluation.index_search import plan_search, resident_bytes
from bench.evaluation.result_record import Result
from bench.evaluation.run_files import read_run_file
from bench.runner.workspace import Workspace
from bench.store.shards import StoredVectors
from foundation.arrays import Float32Array, Int64Array
from foundation.machine import parse_size
from retrievers.encoders.transformer import open_encoder
from retrievers.index.hits import Hits, recall_at_k
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings

ROOT = Path(__file__).parents[2]
CENTRES, TABLES = 1000, (8191, 8179)  # primes: their sums are 67 million different vectors
FIRST_QUERY = 8 * CENTRES * TABLES[0]  # then a query shares two of three rows with its passage
BLOCK = 1 << 15


class TableEncoder:
    """Unit vectors of texts that end with a number: around 1,000 centres, so dense at the cut."""

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(0)
        sizes = (CENTRES, *TABLES)
        self._tables = [rng.standard_normal((size, dim), np.float32) for size in sizes]

    def encode(self, texts: Sequence[str]) -> Float32Array:
        """A text without a number is one of the program's probes."""
        ends = [text.rpartition(" ")[2] for text in texts]
        numbers = [int(end) if end.isdigit() else crc32(end.encode()) for end in ends]
        return self.vectors(np.array(numbers))

    def vectors(self, numbers: Int64Array) -> Float32Array:
        summed: Float32Array = sum(table[numbers % len(table)] for table in self._tables)  # type: ignore[assignment]
        summed /= np.sqrt(np.einsum("nd,nd->n", summed, summed))[:, None]
        return summed


def write_collection(folder: Path, rows: int, depth: int, numbers: Int64Array) -> None:
    """Numbered passages, and queries each with a passage."""
    folder.mkdir()
    asked = list(enumerate((numbers - FIRST_QUERY).tolist()))
    with (folder / "collection.tsv").open("w") as lines:
        lines.writelines(f"{number}\tpassage {number}\n" for number in range(rows))
    for name, line in (
        ("queries.dev.small.tsv", "{id}\tquery {query}\n"),
        ("qrels.dev.small.tsv", "{id} 0 {passage} 1\n"),
    ):
        written = [line.format(id=id_, passage=n, query=FIRST_QUERY + n) for id_, n in asked]
        (folder / name).write_text("".join(written))
    (folder / "dataset.toml").write_text(
        'name = "synthetic"\nsplit = "dev"\nmain_measure = "RR@10"\nmeasures = []\n'
        f"depth = {depth}\nexclude_self = false\n"
    )


@dataclass(frozen=True)
class Work:
    """A folder with a collection, in which the real command line runs."""

    folder: Path
    rows: int
    queries: int
    depth: int
    dim: int
    max_memory: str

    @property
    def collection(self) -> Path:
        return self.folder / "collection"

    @property
    def numbers(self) -> Int64Array:
        """Numbers of the queries."""
        step = max(1, self.rows // self.queries)
        return FIRST_QUERY + np.arange(self.queries) * step % self.rows

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def card(self) -> Path:
        code = self.folder / "tables.py"
        code.write_text(
            "from tests.benchmarks.real_shapes import TableEncoder\n"
            f"tables = TableEncoder({self.dim})\n"
            "def encode(texts):\n"
            "    return tables.encode(texts)\n"
        )
        path = self.folder / f"tables-{self.dim}.toml"
        path.write_text(f'name = "{path.stem}"\ntitle = "Tables"\nencoder = "{code}:encode"\n')
        return path

    def run(self) -> dict[str, Any]:
        """One `run --recompute` in a process of its own: time, peak, stages."""
        words = ["run", str(self.collection), "--model", str(self.card)]
        words += ["--trust-code", "--set", "store_dtype=float16", "--device", "cpu", "--recompute"]
        words += ["--max-memory", self.max_memory]
        words += ["--results", str(self.folder / "out"), "--cache-dir", str(self.cache)]
        start = time.perf_counter()
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "bench", *words],
            {**os.environ, "PYTHONPATH": str(ROOT)},
            file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)],
        )
        _, status, used = os.wait4(child, 0)
        wall = time.perf_counter() - start
        if status:
            raise SystemExit("the run failed; see above")
        spent = self.result.timings
        encoding = spent.encode_documents_s if spent.encoded_documents else 0.0
        stages = {
            "encoding_s": encoding,
            "search_s": spent.search_s,
            "score_s": spent.score_s,
            "outside_s": wall - encoding - spent.search_s - spent.score_s,
        }
        return {
            "wall_s": wall,
            "processor_s": used.ru_utime + used.ru_stime,
            **stages,
            "peak_bytes": used.ru_maxrss * 1024,
            "busy_s": spent.busy_s,
        }

    @property
    def result_folder(self) -> Path:
        (folder,) = (self.folder / "out").glob(f"synthetic/tables-{self.dim}/*")
        return folder

    @property
    def result(self) -> Result:
        content = (self.result_folder / "result.json").read_bytes()
        return msgspec.json.decode(content, type=Result)

    def rankings_that_differ(self, count: int) -> int:
        """How many of some queries have another ranking, or other scores, than by brute force."""
        ranking = self.result_folder / "run.arrow"
        encoder, ranked = TableEncoder(self.dim), list(read_run_file(ranking).run.rankings())
        places = np.linspace(0, self.queries - 1, count).astype(np.int64)
        asked = encoder.vectors(self.numbers[places])
        rows, scores = brute_force(encoder, asked, self.rows, self.depth)
        return sum(
            [int(name) for name in ranked[place][1]] != own.tolist()
            or not np.allclose(ranked[place][2], best, rtol=1e-6)
            for place, own, best in zip(places.tolist(), rows, scores, strict=True)
        )

    def vectors(self) -> tuple[StoredVectors, Int64Array]:
        """The stored vectors, and the ranks of the ids."""
        workspace = Workspace(cache_dir=self.cache, offline=True)
        corpus = workspace.dataset(str(self.collection)).corpus
        model = resolve_model(str(self.card), ModelSettings(trust_code=True, store_dtype="float16"))
        vectors = workspace.store.plan(open_encoder(model, "cpu"), corpus).vectors
        assert vectors is not None
        return vectors, corpus.tie_rank


def brute_force(
    encoder: TableEncoder, queries: Float32Array, rows: int, depth: int
) -> tuple[list[Int64Array], list[Float32Array]]:
    """The best passages of each query and their scores, from vectors that were never stored."""
    asked = queries.astype(np.float16).astype(np.float64)  # as they are kept
    best: list[Int64Array] = [np.empty(0, np.int64) for _ in queries]
    scores: list[Float32Array] = [np.empty(0, np.float32) for _ in queries]
    for first in range(0, rows, BLOCK):
        numbers = np.arange(first, min(first + BLOCK, rows))
        stored = encoder.vectors(numbers).astype(np.float16).astype(np.float64)
        for place, line in enumerate((asked @ stored.T).astype(np.float32)):
            own = np.concatenate([scores[place], line])
            names = np.concatenate([best[place], numbers])
            bar = np.sort(own)[-min(depth, len(own))]
            kept = own >= bar
            own, names = own[kept], names[kept]
            falling = np.lexsort((names.astype(str), own))[::-1][:depth]
            scores[place], best[place] = own[falling], names[falling]
    return best, scores


def race_with_faiss(work: Work, rounds: int) -> dict[str, Any]:
    """FAISS flat in memory and exact search from the disk, by turns; medians."""
    import faiss  # not needed without the race
    import torch  # noqa: F401  (in memory after encoding, when it converts what is stored)

    from bench.speed.race import time_pass

    vectors, tie_rank = work.vectors()
    queries = TableEncoder(work.dim).vectors(work.numbers)
    depth, resident = work.depth, resident_bytes()
    flat = faiss.IndexFlatIP(work.dim)
    for _, tile in vectors.tiles(BLOCK):
        flat.add(tile)
    plan = plan_search(
        parse_size(work.max_memory), len(tie_rank), work.dim, len(queries), depth, resident
    )

    def search() -> Any:
        return exact_search(vectors, queries, depth, tie_rank, tile_rows=plan.tile_rows)

    flat_passes, exact_passes = [], []
    for _ in range(rounds):
        flat_passes.append(time_pass(lambda: flat.search(queries, depth)))
        drop_from_cache(vectors)
        exact_passes.append(time_pass(search))
    hits, (_, rows) = exact_passes[-1].result, flat_passes[-1].result
    same = recall_at_k(hits, Hits(hits.scores, rows), depth).mean()
    report: dict[str, Any] = {"share_of_the_same_documents": float(same)}
    for clock in ("seconds", "processor_s"):
        theirs, ours = (
            statistics.median(getattr(each, clock) for each in passes)
            for passes in (flat_passes, exact_passes)
        )
        report[clock] = {"faiss flat": theirs, "exact_search": ours, "ratio": ours / theirs}
    return report


def drop_from_cache(vectors: StoredVectors) -> None:
    """The next search reads from the disk."""
    for shard in vectors.shards:
        with shard.path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both runs, their check, and the race."""
    sizes = {name: getattr(options, name) for name in ("rows", "queries", "depth", "dim")}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        work = Work(Path(folder), **sizes, max_memory=options.max_memory)
        write_collection(work.collection, work.rows, work.depth, work.numbers)
        report: dict[str, Any] = {"first": work.run(), "second": work.run()}
        report["rankings_that_differ"] = work.rankings_that_differ(options.check)
        if options.against_faiss:
            report["race"] = race_with_faiss(work, options.rounds)
    return {**sizes, "max_memory": options.max_memory, **report}


def main() -> int:
    """Measure and print."""
    options = _options()
    kernels = [blas.get("architecture") for blas in threadpool_info()]
    report = {**measure(options), "load_average": os.getloadavg(), "kernels": kernels}
    print(json.dumps(report))
    budget = parse_size(options.max_memory)
    peak = max(report[run]["peak_bytes"] for run in ("first", "second"))
    good = peak <= budget and not report["rankings_that_differ"]
    return 0 if good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, size in (("rows", 8_841_823), ("queries", 6_980), ("depth", 1_000), ("dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--max-memory", default="3GB")
    parser.add_argument("--check", type=int, default=3, help="queries to rank by brute force")
    parser.add_argument("--against-faiss", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="of the race")
    parser.add_argument("--folder", type=Path, help="where to write")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
