"""How much time, memory and disk BM25 takes for a million passages of MS MARCO's length.

Passages of 56 words on average, whose ranks are drawn so that a word is as frequent as it is rare
in the list (Zipf's law), the most frequent ones stop words: more postings a passage, and more
different words, than English has. They are made while they are read. Given are, each for a process
of its own:

- seconds of the processor to build, without making the passages;
- the peak of the resident set (``VmHWM``), and what the process held before;
- milliseconds a query of six words at depth 1,000, of the processor.

For MS MARCO's 8,841,823 passages time is multiplied, and the peak has 12 bytes more for each
further passage and 150 for each further word of 3 million: what a million passages lack.

    python -m tests.benchmarks.bm25_build --passages 1000000

The last line of stdout is one JSON document.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.evaluate.memory import resident_bytes
from retrievers.encoders.bm25 import BM25, STOP_WORDS
from retrievers.models.model import resolve_model

ROOT = Path(__file__).parents[2]
MARCO = 8_841_823
WORDS = 3_000_000  # as many as MS MARCO has
QUERIES, DEPTH = 50, 1000
BATCH = 10_000


def texts(count: int, mean: int, seed: int) -> list[str]:
    """Texts of Poisson lengths, of words by Zipf's law."""
    rng = np.random.default_rng(seed)
    lengths = rng.poisson(mean, count)
    ranks = np.exp(rng.random(lengths.sum()) * np.log(WORDS)).astype(np.int64)
    stop = sorted(STOP_WORDS)
    words = [stop[rank] if rank < len(stop) else f"w{rank}" for rank in ranks.tolist()]
    ends = np.cumsum(lengths).tolist()
    return [" ".join(words[end - size : end]) for end, size in zip(ends, lengths, strict=True)]


def batches(count: int, spent: list[float]) -> Iterator[tuple[list[str], list[str]]]:
    """Titles and texts; ``spent`` is told the processor seconds that it takes to make them."""
    for first in range(0, count, BATCH):
        start = time.process_time()
        some = texts(min(BATCH, count - first), 56, first)
        spent.append(time.process_time() - start)
        yield [""] * len(some), some


def peak_bytes() -> int:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def measure(passages: int) -> dict[str, float]:
    """Build and search in this process."""
    bm25, making = BM25(resolve_model("bm25").recipe), [0.0]
    texts(BATCH, 56, 0)
    held = resident_bytes()
    start = time.process_time()
    bm25.index(batches(passages, making))
    built = time.process_time() - start - sum(making)
    peak = peak_bytes()
    queries = texts(QUERIES, 6, 1)
    start = time.process_time()
    for query in queries:
        bm25.search([query], DEPTH)
    return {
        "passages": passages,
        "words": len(bm25._words.vocabulary),
        "held_bytes": held,
        "build_processor_s": built,
        "peak_build_bytes": peak,
        "peak_bytes": peak_bytes(),
        "query_processor_ms": (time.process_time() - start) / QUERIES * 1000,
    }


def main() -> None:
    """Measure each size in a process of its own, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passages", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    sizes = []
    for passages in options.passages:
        command = [sys.executable, "-m", "tests.benchmarks.bm25_build", "--measure", str(passages)]
        child = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT)
        sizes.append(json.loads(child.stdout))
        print(sizes[-1], file=sys.stderr, flush=True)
    last = sizes[-1]
    more = MARCO - last["passages"]
    report = {
        "sizes": sizes,
        "load_average": os.getloadavg(),
        f"at {MARCO:,}": {
            "peak_bytes": last["peak_bytes"] + 12 * more + 150 * (WORDS - last["words"]),
            "build_processor_s": last["build_processor_s"] * MARCO / last["passages"],
            "query_processor_ms": last["query_processor_ms"] * MARCO / last["passages"],
        },
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
