"""Two workers of one thread beside one process of two threads, on the same processors.

Both encode the same texts, turn and turn about, with models that are loaded; given are texts a
second on the wall and seconds of the processor, and the ratio of the two. A ratio of 1 means that
workers cost nothing; below 1 is what leases, pipes and a second copy of the weights cost. Vectors
are compared, too: one thread and two may differ in the last bits.

    python -m tests.benchmarks.workers_speed --model minilm --shards 4 --rounds 3
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from bench.execution.processes import ProcessPool, environments
from bench.store.planning import SHARD_ROWS
from tests.support.collections import write_collection
from tests.support.engines import Bed

WORKERS = 2
WORDS = Path(__file__).read_text(encoding="utf-8").split()


def collection(folder: Path, shards: int, words: int) -> Path:
    """Texts of some words each, which fill whole shards."""
    drawn = np.random.default_rng(0).choice(WORDS, (shards * SHARD_ROWS, words))
    documents = {f"d{row}": ("", f"{row} {' '.join(text)}") for row, text in enumerate(drawn)}
    return write_collection(folder, documents, {"q": "text"}, {("q", "d1"): 1})


def processor_s(pool: ProcessPool) -> float:
    """Seconds of the processor that this process and its workers have had."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    for pid in pool.pids.values():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measured(bed: Bed, engine: object, pool: ProcessPool) -> tuple[float, float]:
    """Seconds on the wall and of the processor for all shards that are missing."""
    shards = bed.missing()
    start, before = time.perf_counter(), processor_s(pool)
    encoded = engine.encode(shards, lambda texts: None)  # type: ignore[attr-defined]
    spent = time.perf_counter() - start, processor_s(pool) - before
    assert encoded.shards == set(shards)
    return spent


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="minilm")
    options.add_argument("--shards", type=int, default=4)
    options.add_argument("--words", type=int, default=20)
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    torch.set_num_threads(WORKERS)
    pool = ProcessPool(environments(WORKERS, threads=WORKERS, gpus=0))
    seconds: dict[str, list[tuple[float, float]]] = {"local": [], "workers": []}
    differences = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = collection(folder / "small", WORKERS, 2)
        texts = collection(folder / "texts", asked.shards, asked.words)
        warm = Bed(folder / "warm", small, asked.model)
        assert warm.encoder is not None
        warm.encoder.encode_documents([""], ["a text"])  # loads the weights
        warm.pooled(pool).encode(warm.missing(), lambda texts: None)
        for turn in range(asked.rounds):
            beds = {side: Bed(folder / f"{side}{turn}", texts, asked.model) for side in seconds}
            for bed in beds.values():  # its weights are those of this process's first
                bed.encoder = warm.model.on(bed.opened.name).encoder
            order = list(seconds) if turn % 2 == 0 else list(seconds)[::-1]
            for side in order:
                bed = beds[side]
                engine = bed.local() if side == "local" else bed.pooled(pool)
                seconds[side].append(measured(bed, engine, pool))
            differences.append(
                float(np.abs(beds["local"].vectors() - beds["workers"].vectors()).max())
            )
    pool.close()
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
