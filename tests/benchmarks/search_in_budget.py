"""Does exact search over a large corpus keep to a memory budget, and what does that cost?

Two parts, over unit vectors in one float16 file. The file is made once and dropped from the file
cache before each search, so that ours really reads it.

- ``speed``, at a size where both fit: FAISS flat over float32 vectors in memory (loading them is
  not counted) against ``exact_search`` streaming the file with the tiles and blocks
  that a budget of 1.5 GB allows, float64 rescoring included. They take turns; medians of wall-clock
  and of processor time, and both ratios. Processor time is what to look at where other work
  shares the cores. Wanted: at most 1.3. ``OPENBLAS_CORETYPE`` decides for both which kernels
  OpenBLAS has (the command line sets it to ``SkylakeX`` where the processor has AVX-512).
- ``budget``: a corpus that does not fit, in a fresh process. Its peak is ``VmHWM`` of
  ``/proc/self/status``: the most that was ever resident, mapped file pages and all libraries
  included. Pages of the file cache are not in it: the file is read, not mapped, and the system
  can take those pages back at any time. Wanted: at most 1.5 GB.

``python -m tests.benchmarks.search_in_budget`` (5 GB of disk). The last line of stdout is one
JSON document.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_info

from bench.evaluate.exact import exact_search
from bench.evaluate.memory import parse_size, plan_search, resident_bytes
from bench.store.vectors import widen
from retrievers.encoders.clock import Clock
from retrievers.index.faiss_index import Hits

ROOT = Path(__file__).parents[2]
CENTRES = 1000
BLOCK = 1 << 14


@dataclass(frozen=True)
class FileVectors:
    """Vectors in one raw float16 file, C order; each tile is read and widened to float32."""

    path: Path
    dim: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        return self.path.stat().st_size // (2 * self.dim), self.dim

    def tiles(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """First row and float32 ``(m, dim)``, in row order."""
        count = self.shape[0]
        halves = np.empty((min(BLOCK, rows), self.dim), np.float16)
        with self.path.open("rb", buffering=0) as file:
            for start in range(0, count, rows):
                yield start, self._read(file, min(rows, count - start), halves)

    def _read(self, file: Any, rows: int, halves: npt.NDArray[np.float16]) -> Any:
        tile = np.empty((rows, self.dim), np.float32)
        for first in range(0, rows, len(halves)):
            some = halves[: min(len(halves), rows - first)]
            if file.readinto(some.data) != some.nbytes:
                raise OSError(f"{self.path} is cut short")
            widen(some.reshape(-1), tile[first : first + len(some)].reshape(-1))
        return tile

    def drop_from_cache(self) -> None:
        """The next reader reads from the disk."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def unit_vectors(rows: int, dim: int, seed: int) -> npt.NDArray[np.float32]:
    """Vectors around 1,000 centres: denser at the cut than independent noise."""
    rng = np.random.default_rng([seed, 1])
    centres = np.random.default_rng(0).standard_normal((CENTRES, dim), dtype=np.float32)
    vectors = rng.standard_normal((rows, dim), dtype=np.float32)
    vectors += centres[rng.integers(0, CENTRES, rows)]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def write_vectors(path: Path, rows: int, dim: int) -> FileVectors:
    """Make the file, block by block; always the same one."""
    with path.open("wb") as file:
        for start in range(0, rows, BLOCK):
            some = unit_vectors(min(BLOCK, rows - start), dim, start + 1)
            file.write(some.astype(np.float16).data)
    return FileVectors(path, dim)


def search(vectors: FileVectors, options: argparse.Namespace, resident: int) -> Any:
    """Hits of exact search within the budget, its plan, and where the time went."""
    rows, dim = vectors.shape
    budget = parse_size(options.max_memory)
    plan = plan_search(budget, rows, dim, options.queries, options.depth, resident)
    queries = unit_vectors(options.queries, dim, 0)
    clock = Clock()
    hits = exact_search(
        vectors,
        queries,
        options.depth,
        np.random.default_rng(3).permutation(rows),
        tile_rows=plan.tile_rows,
        block_bytes=plan.block_bytes,
        clock=clock,
    )
    return hits, plan, clock.seconds


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall-clock seconds, processor seconds, and the result."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - processor, result


def measure_speed(vectors: FileVectors, options: argparse.Namespace) -> dict[str, Any]:
    """FAISS flat in memory and ours from the file, in turns."""
    import faiss  # others read the vectors of this file where it is not installed

    started_with = resident_bytes()
    flat = faiss.IndexFlatIP(vectors.dim)
    for _, tile in vectors.tiles(BLOCK):
        flat.add(tile)
    queries = unit_vectors(options.queries, vectors.dim, 0)
    rounds: dict[str, list[tuple[float, float]]] = {"faiss flat": [], "exact_search": []}
    shared = 0.0
    for number in range(options.rounds):
        wall, processor, (_, rows) = timed(lambda: flat.search(queries, options.depth))
        rounds["faiss flat"].append((wall, processor))
        vectors.drop_from_cache()
        wall, processor, (hits, _, phases) = timed(lambda: search(vectors, options, started_with))
        rounds["exact_search"].append((wall, processor))
        shared = _shared(hits, rows)
        print(f"round {number + 1}: {rounds} {phases}", file=sys.stderr)
    walls, processors = (
        {name: statistics.median(pair[i] for pair in pairs) for name, pairs in rounds.items()}
        for i in (0, 1)
    )
    return {
        "rows": vectors.shape[0],
        "wall_s": walls,
        "processor_s": processors,
        "rounds_wall_and_processor_s": rounds,
        "wall_ratio": walls["exact_search"] / walls["faiss flat"],
        "processor_ratio": processors["exact_search"] / processors["faiss flat"],
        "share_of_the_same_documents": shared,
    }


def measure_budget(vectors: FileVectors, options: argparse.Namespace) -> dict[str, Any]:
    """One search in this process, and the most memory that the process ever held."""
    held = resident_bytes()
    vectors.drop_from_cache()
    wall, processor, (hits, plan, phases) = timed(lambda: search(vectors, options, held))
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    budget = parse_size(options.max_memory)
    return {
        "rows": vectors.shape[0],
        "wall_s": wall,
        "processor_s": processor,
        "phases_s": phases,
        "tile_rows": plan.tile_rows,
        "block_bytes": plan.block_bytes,
        "planned_bytes": plan.memory_bytes,
        "peak_bytes": peak,
        "budget_bytes": budget,
        "within_budget": peak <= budget,
        "filled": bool((hits.rows >= 0).all()),
    }


MEASUREMENTS = {"speed": measure_speed, "budget": measure_budget}


def _shared(hits: Hits, rows: npt.NDArray[np.int64]) -> float:
    same = [len(np.intersect1d(ours, theirs)) for ours, theirs in zip(hits.rows, rows, strict=True)]
    return sum(same) / rows.size


def _in_a_process(name: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.search_in_budget", *sys.argv[1:]]
    child = subprocess.run(
        [*command, "--measure", name, "--file", str(path)],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
    )
    measured: dict[str, Any] = json.loads(child.stdout)
    return measured


def _report(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for name, rows in (("speed", options.speed_rows), ("budget", options.rows)):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "vectors.f16"
            write_vectors(path, rows, options.dim)
            report[name] = _in_a_process(name, path)
            print(f"{name}: {report[name]}", file=sys.stderr)
    return report


def main() -> None:
    """Measure and print."""
    import faiss

    options = _options()
    if options.measure:
        vectors = FileVectors(options.file, options.dim)
        print(json.dumps(MEASUREMENTS[options.measure](vectors, options)))
        return
    report = {
        **_report(options),
        "dim": options.dim,
        "queries": options.queries,
        "depth": options.depth,
        "threads": faiss.omp_get_max_threads(),
        "load_average": os.getloadavg(),
        "machine": platform.machine(),
        "faiss": faiss.__version__,
        "numpy": np.__version__,
        "kernels": [blas.get("architecture") for blas in threadpool_info()],
    }
    print(json.dumps(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000, help="of the part `budget`")
    parser.add_argument("--speed-rows", type=int, default=1_000_000, help="of the part `speed`")
    for name, default in (("dim", 384), ("queries", 1000), ("depth", 1000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--max-memory", default="1.5GB")
    parser.add_argument("--folder", type=Path, help="where to write")
    parser.add_argument("--measure", choices=sorted(MEASUREMENTS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
