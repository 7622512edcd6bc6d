"""How long does a training wait for its batches, with and without processes that make them?

RetroMAE's collator over 256 texts of 128 tokens. Between two batches the training sleeps, as long
as a step of a GPU takes; what is measured is how long it then waits for the next batch. The loader
is the trainer's. Wanted: next to nothing with processes.

``python -m tests.benchmarks.loader_speed``. The last line of stdout is one JSON document; times are
medians in seconds.
"""

import argparse
import json
import os
import statistics
import time
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from retrievers.training.engine.trainer import tokenizing_alone
from retrievers.training.objectives.retromae import RetroMAE
from retrievers.training.pretrain.texts import Stream
from tests.benchmarks.gpu_proof.texts import wordpiece_tokenizer, words_of

TYPES, VOCABULARY = 50_000, 30_522


def waits(loader: "DataLoader[Any]", step_s: float) -> list[float]:
    """Seconds of waiting for each batch after the first."""
    seconds: list[float] = []
    batches = iter(loader)
    next(batches)
    while True:
        time.sleep(step_s)
        start = time.perf_counter()
        if next(batches, None) is None:
            return seconds
        seconds.append(time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("batch", 256), ("tokens", 128), ("steps", 12), ("processes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--step-s", type=float, default=0.3, help="how long a step takes")
    options = parser.parse_args()
    words, rng = words_of(TYPES), np.random.default_rng(0)
    places = rng.zipf(1.3, (options.batch, options.tokens)) % TYPES
    texts = [" ".join(words[place] for place in row) for row in places.tolist()]
    stream = Stream(texts, options.batch * (options.steps + 1), seed=0)
    collate = RetroMAE().collator(wordpiece_tokenizer(TYPES, VOCABULARY), options.tokens)
    found = {}
    for processes in (0, options.processes):
        loader: DataLoader[Any] = DataLoader(
            stream,  # type: ignore[arg-type]
            batch_size=options.batch,
            collate_fn=collate,
            num_workers=processes,
        )
        with tokenizing_alone(processes):
            found[str(processes)] = statistics.median(waits(loader, options.step_s))
    report = {"wait_s": found, "cpus": len(os.sched_getaffinity(0)), "load": os.getloadavg()}
    print(json.dumps(report | vars(options)))


if __name__ == "__main__":
    main()
