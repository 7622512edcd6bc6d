"""The cost of evaluations before they start: what is encoded, for how long, in how much memory.

Tokens come from a sample through the real tokenizer, the speed of encoding from a probe of the real
encoder on this machine.
"""

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta

import msgspec

from bench.evaluate.encoding import mean_tokens, measure_speed
from bench.evaluate.pipeline import Job

PROBE_S = 5.0
WORTH_AN_ESTIMATE = 20_000  # documents to encode
ITEM_BYTES = {"float32": 4, "float16": 2}


class EncodingCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one model on one collection, on this machine.

    Attributes:
        documents: of the collection.
        to_encode: distinct texts whose vectors are not stored yet. Texts that several evaluations
            need are counted with the first.
        tokens: to encode, cut as the recipe says, special tokens included.
        encode_s: wall-clock seconds.
        memory_bytes: of this process at its peak.
        disk_bytes: that vectors will add.
    """

    model: str
    collection: str
    documents: int
    to_encode: int = 0
    tokens: int = 0
    encode_s: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0


def costs(jobs: Iterable[Job], least: int = 0) -> Iterator[EncodingCost]:
    """The cost of each job that encodes ``least`` documents or more.

    Raises:
        BenchError: an encoder fails.
    """
    speeds: dict[str, float] = {}  # tokens a second, by the model's name
    seen = set()
    for job in jobs:
        corpus, recipe, encoder = job.dataset.corpus, job.recipe, job.own.encoder
        texts = recipe.side("document").fingerprint, corpus.sha256
        known = job.stored is not None or texts in seen or len(corpus) < least
        missing = 0 if known else job.retriever.missing(job.dataset)
        if missing < least:
            continue
        cost = EncodingCost(
            model=job.name,
            collection=job.dataset.name,
            documents=len(corpus),
            memory_bytes=job.memory_bytes,
        )
        if missing and encoder is not None:
            if job.name not in speeds:
                speeds[job.name] = measure_speed(encoder, corpus, PROBE_S)
            tokens = round(missing * mean_tokens(encoder, corpus))
            cost = msgspec.structs.replace(
                cost,
                to_encode=missing,
                tokens=tokens,
                encode_s=tokens / speeds[job.name],
                disk_bytes=missing * (encoder.dim * ITEM_BYTES[recipe.store_dtype] + 16),
            )
        seen.add(texts)
        yield cost


def announce_encoding(jobs: Iterable[Job], machines: int = 1) -> None:
    """Say how long encoding will take, where it is long.

    Args:
        machines: that share the work, each as fast as this one.
    """
    rows = list(costs(jobs, WORTH_AN_ESTIMATE))
    if rows:
        seconds = sum(row.encode_s for row in rows) / machines
        print(
            f"encoding {sum(row.to_encode for row in rows):,} documents will take about "
            f"{timedelta(seconds=round(seconds))} on this machine; Ctrl-C stops it, and what is "
            "done is kept",
            file=sys.stderr,
        )
