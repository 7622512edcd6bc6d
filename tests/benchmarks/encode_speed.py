"""How fast are real texts encoded on this machine, beside sentence-transformers?

all-MiniLM-L6-v2 encodes the same texts from the same weights, cut at the same 256 tokens, in one
process with the same threads:

- ``ours``: ``encode_documents`` as it is;
- ``st-32``: sentence-transformers' ``encode`` as it is (32 texts a batch);
- ``st-16``: the same with 16 texts a batch, which is faster on small CPUs.

Wanted: 1.5 times the tokens/s of ``st-32``, with vectors that differ by at most 1e-5; where they
differ more, no ratio is printed and the exit code is 1.

The three take turns after a warm-up, and a ratio is that of two neighbours in time: the median of
the rounds is given with the least and the largest. Loading the weights is not in the times.
Tokens are counted once, by the model's tokenizer after the cut, special tokens included, padding
not. The processor's time and its ratios are given beside those on the wall, since other work on
the machine adds to the latter. Texts are distinct: SciFact's abstracts with their titles where
BENCH_DATA names a folder that holds them, else functions of Python's standard library.

    python -m tests.benchmarks.encode_speed [--documents 256] [--repeats 3]

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
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from tabulate import tabulate

from datasets_cfg.dataset import open_dataset
from retrievers.encoders.protocol import join
from retrievers.encoders.routed import open_encoder
from retrievers.encoders.transformer import TransformerEncoder
from retrievers.models.model import Model, resolve_model

MODEL = "minilm"
WANTED_RATIO = 1.5  # of tokens/s, to st-32
AGREEMENT = 1e-5
WARM_UP = 64
LIBRARIES = ("numpy", "sentence-transformers", "tokenizers", "torch", "transformers")

Vectors = npt.NDArray[np.float32]
Job = Callable[[int], Vectors]


class Texts(NamedTuple):
    """Documents of a collection, all distinct."""

    collection: str
    titles: list[str]
    texts: list[str]


class Round(NamedTuple):
    """Seconds that one job took once."""

    wall: float
    processor: float


def real_texts(documents: int) -> Texts:
    """The first distinct documents of SciFact, or of the embedded collection."""
    folder = os.environ.get("BENCH_DATA")
    name = "beir/scifact" if folder else "stdlib-code"
    with tempfile.TemporaryDirectory() as cache:
        dataset = open_dataset(
            name, data_dir=Path(folder) if folder else None, cache_dir=Path(cache), download=False
        )
        _, titles, texts = next(iter(dataset.corpus.iter_batches(2 * documents)))
    distinct = list(dict.fromkeys(zip(titles, texts, strict=True)))[:documents]
    return Texts(name, [title for title, _ in distinct], [text for _, text in distinct])


def jobs_of(model: Model, encoder: TransformerEncoder, texts: Texts) -> dict[str, Job]:
    """What is timed, by name: vectors of the first n documents, float32 ``(n, dim)``."""
    if model.document is None:
        raise ValueError(f"{MODEL} has no checkpoint")
    theirs = SentenceTransformer(str(model.document.root), device="cpu")
    theirs.max_seq_length = model.recipe.max_document_tokens
    rule = model.recipe.title_join
    joined = [
        join(rule, "", title, text)[0]
        for title, text in zip(texts.titles, texts.texts, strict=True)
    ]
    return {
        "ours": lambda n: encoder.encode_documents(texts.titles[:n], texts.texts[:n]),
        "st-32": lambda n: theirs.encode(joined[:n], show_progress_bar=False),
        "st-16": lambda n: theirs.encode(joined[:n], batch_size=16, show_progress_bar=False),
    }


def in_turns(
    jobs: Mapping[str, Job], documents: int, repeats: int
) -> tuple[dict[str, list[Round]], dict[str, Vectors]]:
    """Times of every round, and the last vectors, of each job."""
    rounds: dict[str, list[Round]] = {name: [] for name in jobs}
    vectors: dict[str, Vectors] = {}
    for job in jobs.values():
        job(min(WARM_UP, documents))
    for _ in range(repeats):
        for name, job in jobs.items():
            wall, processor = time.perf_counter(), time.process_time()
            vectors[name] = job(documents)
            spent = Round(time.perf_counter() - wall, time.process_time() - processor)
            rounds[name].append(spent)
            print(f"{name}: {spent.wall:.2f} s", file=sys.stderr)
    return rounds, vectors


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, median and largest."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """A peer's seconds over ours in the same round, by peer."""
    return {
        name: spread([one / own for own, one in zip(seconds["ours"], theirs, strict=True)])
        for name, theirs in seconds.items()
        if name != "ours"
    }


def report_of(texts: Texts, tokens: int, rounds: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """What is printed as JSON."""
    wall = {name: [one.wall for one in some] for name, some in rounds.items()}
    processor = {name: [one.processor for one in some] for name, some in rounds.items()}
    return {
        "model": MODEL,
        "collection": texts.collection,
        "documents": len(texts.texts),
        "tokens": tokens,
        "repeats": len(wall["ours"]),
        "threads": torch.get_num_threads(),
        "wanted_ratio": WANTED_RATIO,
        "tokens_per_s": {
            name: spread([tokens / one for one in some]) for name, some in wall.items()
        },
        "wall_s": wall,
        "processor_s": processor,
        "ratio": ratios(wall),
        "processor_ratio": ratios(processor),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def table_of(report: Mapping[str, Any]) -> str:
    """Speeds and ratios for people."""
    headers = ["", "tokens/s", "wall s", "processor s", "ratio to ours", "of processor s"]
    cells = [
        [
            name,
            f"{speed['median']:,.0f}",
            f"{statistics.median(report['wall_s'][name]):.2f}",
            f"{statistics.median(report['processor_s'][name]):.2f}",
            _ratio(report["ratio"].get(name)),
            _ratio(report["processor_ratio"].get(name)),
        ]
        for name, speed in report["tokens_per_s"].items()
    ]
    alignment = ["left", *["right"] * 5]
    table = tabulate(cells, headers, tablefmt="github", colalign=alignment, disable_numparse=True)
    return str(table)


def _ratio(spread: Mapping[str, float] | None) -> str:
    if spread is None:
        return ""
    return f"{spread['median']:.2f} ({spread['min']:.2f}–{spread['max']:.2f})"


def main() -> int:
    """Measure and print."""
    options = _options()
    texts = real_texts(options.documents)
    model = resolve_model(MODEL)
    encoder = open_encoder(model, "cpu")
    if not isinstance(encoder, TransformerEncoder):
        raise TypeError(f"{MODEL} has no tokenizer to count with")
    lengths = encoder.count_document_tokens(texts.titles, texts.texts)
    tokens = int(np.minimum(lengths, model.recipe.max_document_tokens).sum())
    rounds, vectors = in_turns(jobs_of(model, encoder, texts), len(texts.texts), options.repeats)
    difference = max(float(np.abs(vectors["ours"] - one).max()) for one in vectors.values())
    agreement = f"largest difference of the vectors: {difference:.1e} (wanted: {AGREEMENT:.0e})"
    if not difference <= AGREEMENT:
        print(agreement, file=sys.stderr)
        return 1
    report = report_of(texts, tokens, rounds) | {"largest_difference": difference}
    print(
        f"{MODEL} on {len(texts.texts):,} documents of {texts.collection}, {tokens:,} tokens, "
        f"{report['threads']} threads; wanted: {WANTED_RATIO} times st-32\n"
    )
    print(f"{table_of(report)}\n\n{agreement}")
    print(json.dumps(report))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
