"""How long does one query wait, on an idle machine and on a busy one?

all-MiniLM-L6-v2 encodes one short query at a time, in one process on the CPU, in turns of many:

- ``one thread``: as ``encode_queries`` does with a query;
- ``all threads``: every operator cut over PyTorch's threads, as it does with long texts.

First as the machine is, then beside ``--busy`` processes that only compute. p50 and p95 are of all
queries, in milliseconds on the wall; ``first`` is the query after the weights were loaded. Before
that, fresh processes state the seconds of the processor that it takes to have a first vector:
``imports`` is torch and transformers, ``load`` the weights and what transformers imports for them.

    python -m tests.benchmarks.query_latency [--queries 100] [--busy 1]

The last line of stdout is one JSON document.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

MODEL = "minilm"
FRESH_PROCESSES = 3
WARM_UP = 5
WAYS = {"one thread": 1 << 30, "all threads": 0}  # most tokens that one thread computes


def fresh() -> dict[str, float]:
    """Seconds of the processor in this process, from its start to its second query."""
    laps: dict[str, float] = {}

    def lap(name: str) -> None:
        laps[name] = time.process_time() - sum(laps.values())

    from retrievers.encoders.routed import open_encoder
    from retrievers.models.model import resolve_model

    encoder = open_encoder(resolve_model(MODEL), "cpu")
    lap("start and model's files")
    import retrievers.encoders.tower  # noqa: F401

    lap("imports")
    count: Any = encoder
    count.count_query_tokens(["loads the weights"])
    lap("load")
    encoder.encode_queries(["a first query"])
    lap("first query")
    encoder.encode_queries(["a second query"])
    lap("second query")
    return laps


def latencies(queries: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each way, in blocks: idle threads wait busily for a while."""
    from retrievers.encoders import tower
    from retrievers.encoders.routed import open_encoder
    from retrievers.models.model import resolve_model

    encoder = open_encoder(resolve_model(MODEL), "cpu")
    waited: dict[str, list[float]] = {name: [] for name in WAYS}
    for name in [*WAYS, *reversed(WAYS)]:
        tower.FEW_TOKENS = WAYS[name]
        for number in range(-WARM_UP, queries // 2):
            start = time.perf_counter()
            encoder.encode_queries([f"what is the effect of vitamin {number} on growth"])
            if number >= 0:
                waited[name].append(1000 * (time.perf_counter() - start))
    return {name: _summary(samples) for name, samples in waited.items()}


def _summary(samples: list[float]) -> dict[str, float]:
    p50, p95 = np.percentile(samples, [50, 95])
    return {"p50_ms": float(p50), "p95_ms": float(p95), "max_ms": max(samples)}


@contextmanager
def others(count: int) -> Iterator[None]:
    """Processes that compute all the time."""
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_compute, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _compute() -> None:
    while True:
        sum(range(10_000))


def _fresh_processes() -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.query_latency", "--fresh"]
    done = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        for _ in range(FRESH_PROCESSES)
    ]
    return {name: statistics.median(laps[name] for laps in done) for name in done[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--busy", type=int, default=1, help="processes of the second part")
    parser.add_argument("--fresh", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fresh:
        print(json.dumps(fresh()))
        return
    import torch

    report: dict[str, Any] = {
        "model": MODEL,
        "queries": options.queries,
        "busy": options.busy,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "fresh_processor_s": _fresh_processes(),
        "as_it_is": latencies(options.queries),
    }
    with others(options.busy):
        report["busy_too"] = latencies(options.queries)
    for part in ("as_it_is", "busy_too"):
        alone, cut = (report[part][name] for name in WAYS)
        report[f"{part}_all_by_one"] = {name: cut[name] / alone[name] for name in alone}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
