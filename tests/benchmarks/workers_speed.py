"""Two workers of one thread beside one process of two threads, on the same processors.

Both encode the same texts, turn and turn about, with models that are loaded; given are texts a
second on the wall and seconds of the processor, and the ratio of the two. A ratio of 1 means that
workers cost nothing; below 1 is what leases and a second copy of the weights cost. Vectors
are compared, too: one thread and two may differ in the last bits.

    python -m tests.benchmarks.workers_speed --model minilm --shards 4 --rounds 3
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch

from bench.runner.engines import WorkerProcesses
from bench.store.shards import SHARD_ROWS
from tests.support.collections import write_collection
from tests.support.engines import Bed

WORKERS = 2
WORDS = Path(__file__).read_text(encoding="utf-8").split()


def collection(folder: Path, shards: int, words: int, seed: int = 0) -> Path:
    """Texts of some words each, which fill whole shards."""
    drawn = np.random.default_rng(seed).choice(WORDS, (shards * SHARD_ROWS, words))
    documents = {f"d{row}": ("", f"{row} {' '.join(text)}") for row, text in enumerate(drawn)}
    return write_collection(folder, documents, {"q": "text"}, {("q", "d1"): 1})


def processor_s() -> float:
    """Seconds of the processor that this process and its children have had."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children())]
    return sum(time.user + time.system for time in times)


def encoded(bed: Bed) -> tuple[float, float]:
    """Seconds on the wall and of the processor for all shards that are missing."""
    start, before = time.perf_counter(), processor_s()
    bed.encode()
    return time.perf_counter() - start, processor_s() - before


def encoded_by_workers(bed: Bed, first: Bed) -> tuple[float, float]:
    """The same with a child, which has loaded its model once it has encoded some of ``first``."""
    workspace, missing = bed.workspace, len(first.missing())
    with WorkerProcesses(WORKERS, "cpu").encoding(workspace, first.work + bed.work):
        while len(first.missing()) == missing:
            time.sleep(0.05)
        first.encode()
        return encoded(bed)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="minilm")
    options.add_argument("--shards", type=int, default=4)
    options.add_argument("--words", type=int, default=20)
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    torch.set_num_threads(WORKERS)
    os.environ["OMP_NUM_THREADS"] = str(WORKERS)
    seconds: dict[str, list[tuple[float, float]]] = {"local": [], "workers": []}
    differences = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = collection(folder / "small", 4, 2, seed=1)
        texts = collection(folder / "texts", asked.shards, asked.words)
        warm = Bed(folder / "warm", small, asked.model)
        warm.encode()  # loads the weights
        for turn in range(asked.rounds):
            beds = {side: Bed(folder / f"{side}{turn}", texts, asked.model) for side in seconds}
            first = Bed(folder / f"workers{turn}", small, asked.model)
            for bed in (*beds.values(), first):  # their weights are those of this process's first
                bed.encoder = warm.model.for_dataset(bed.opened.name).encoder
            order = list(seconds) if turn % 2 == 0 else list(seconds)[::-1]
            for side in order:
                bed = beds[side]
                spent = encoded(bed) if side == "local" else encoded_by_workers(bed, first)
                seconds[side].append(spent)
            differences.append(
                float(np.abs(beds["local"].vectors() - beds["workers"].vectors()).max())
            )
    rows = asked.shards * SHARD_ROWS
    best = {side: np.array(values).min(axis=0) for side, values in seconds.items()}
    wall, processor = best["local"] / best["workers"]
    report = {
        "texts": rows,
        "rounds": asked.rounds,
        "load": os.getloadavg()[0],
        **{f"{side}_texts_per_s": round(rows / values[0], 1) for side, values in best.items()},
        **{f"{side}_processor_s": round(float(v[1]), 2) for side, v in best.items()},
        "ratio_on_the_wall": round(float(wall), 3),
        "ratio_of_processor_time": round(float(processor), 3),
        "largest_difference": max(differences),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
