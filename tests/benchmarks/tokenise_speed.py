"""How fast are real texts tokenised on one core, from the cache of words and without it?

Passages of MS MARCO, SciFact, NFCorpus, Cranfield, CISI and Natural Questions below BENCH_DATA, cut
at 256 tokens by the WordPiece tokenizer of bert-base-uncased, 2,048 at a time:

- ``tokenizer``: Hugging Face's fast tokenizer, ids into arrays;
- ``first``: from an empty cache of words, which the tokenizer fills;
- ``again``: from the filled cache, as in a corpus many times as large.

Each is measured by the processor's time, since other work on the machine adds to the time on the
wall; they take turns block by block. With ``--end-to-end N``, all-MiniLM-L6-v2 also encodes N of
the passages on the CPU with the cache and without it, in turns: seconds on the wall.

    python -m tests.benchmarks.tokenise_speed [--texts 30000] [--end-to-end 256]

Where an id differs, the exit code is 1. The last line of stdout is one JSON document.
"""

import argparse
import csv
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.encoders.protocol import Segments, join
from retrievers.encoders.tokens import TextTokenizer, Tokens
from retrievers.models.recipe import TitleJoin

BLOCK = 2_048
MOST = 256


def real_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Title and text of every document and query of the collections in a folder."""
    for path in sorted(folder.glob("*/*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            yield record.get("title", ""), record["text"]
    for path in sorted(folder.glob("msmarco-sample/[cq]*.tsv")):
        if not path.name.startswith("qrels"):
            for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
                yield "", line.split("\t", 1)[1]
    with (folder / "nq-dpr-sample" / "psgs_w100.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            yield row["title"], row["text"]


def segments_of(rule: TitleJoin, documents: Sequence[tuple[str, str]]) -> list[Segments]:
    """What a tokenizer is given."""
    return [join(rule, "", title, text, "[SEP]") for title, text in documents]


def same(found: Tokens, expected: Tokens) -> bool:
    """Whether all ids are."""
    return np.array_equal(found.ids, expected.ids) and np.array_equal(
        found.lengths, expected.lengths
    )


def measure(tokenizer: Path, segments: Sequence[Segments]) -> dict[str, Any]:
    """Tokens/s of one core."""
    from tokenizers import Tokenizer

    def opened(cached: bool) -> TextTokenizer:
        return TextTokenizer(Tokenizer.from_file(str(tokenizer)), "right", False, cached=cached)

    plain, words = opened(False), opened(True)
    seconds = {"tokenizer": 0.0, "first": 0.0, "again": 0.0}
    tokens, differing = 0, 0

    def timed(name: str, own: TextTokenizer, block: Sequence[Segments]) -> Tokens:
        start = time.process_time()
        found = own(block, MOST)
        seconds[name] += time.process_time() - start
        return found

    for again in (False, True):
        for start in range(0, len(segments), BLOCK):
            block = segments[start : start + BLOCK]
            found = timed("again" if again else "first", words, block)
            if not again:
                expected = timed("tokenizer", plain, block)
                tokens += len(expected.ids)
                differing += not same(found, expected)
    return {
        "texts": len(segments),
        "tokens": tokens,
        "blocks_that_differ": differing,
        "seconds": seconds,
        "tokens_per_s": {name: tokens / spent for name, spent in seconds.items()},
        "ratio": {name: seconds["tokenizer"] / spent for name, spent in seconds.items()},
    }


def end_to_end(documents: Sequence[tuple[str, str]], rounds: int = 3) -> dict[str, float]:
    """Seconds that all-MiniLM-L6-v2 encodes documents on the CPU, with the cache and without."""
    from retrievers.encoders.routed import open_encoder
    from retrievers.models.model import resolve_model

    encoders: dict[str, Any] = {
        name: open_encoder(resolve_model("minilm"), "cpu") for name in ("cache", "tokenizer")
    }
    encoders["tokenizer"]._towers.document._texts._cache = None
    titles, texts = [title for title, _ in documents], [text for _, text in documents]
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    for turn in range(rounds + 1):
        for name, encoder in encoders.items():
            start = time.perf_counter()
            encoder.encode_documents(titles, texts)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(some) for name, some in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=30_000)
    parser.add_argument("--end-to-end", type=int, default=0, metavar="N")
    options = parser.parse_args(arguments)
    folder = os.environ.get("BENCH_DATA")
    if folder is None:
        print("would measure tokens/s of one core on real texts; set BENCH_DATA")
        return 0
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    documents = list(real_texts(Path(folder)))
    step = max(1, len(documents) // options.texts)
    tokenizer = Path(folder) / "tokenizers" / "bert-base-uncased" / "tokenizer.json"
    report = measure(tokenizer, segments_of("space", documents[::step]))
    for name, speed in report["tokens_per_s"].items():
        print(f"{name:10} {speed:12,.0f} tokens/s of one core, ratio {report['ratio'][name]:.2f}")
    if options.end_to_end:
        report["end_to_end_s"] = end_to_end(documents[:: len(documents) // options.end_to_end])
        print(f"end to end on the CPU: {report['end_to_end_s']}")
    print(json.dumps(report))
    return 1 if report["blocks_that_differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
