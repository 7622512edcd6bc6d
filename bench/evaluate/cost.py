"""The cost of evaluations before they start: what is encoded, for how long, in how much memory.

Tokens come from a sample through the real tokenizer, the speed of encoding from a probe of the real
encoder on this machine.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import cast

import msgspec
import numpy as np

from bench.evaluate.pipeline import Job
from bench.evaluate.retrieval import sample_documents
from datasets_cfg.corpus import Corpus
from foundation.arrays import Int64Array
from retrievers.encoders.protocol import Encoder

PROBE_S = 5.0
SAMPLE_DOCUMENTS = 2_000
FIRST_CHUNK = 64
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


def estimate_costs(jobs: Iterable[Job], least: int = 0) -> Iterator[EncodingCost]:
    """The cost of each job that encodes ``least`` documents or more.

    Raises:
        BenchError: an encoder fails.
    """
    speeds: dict[str, float] = {}  # tokens a second, by the model's name
    seen = set()
    for job in jobs:
        corpus, recipe, encoder = job.dataset.corpus, job.recipe, job.prompted_model.encoder
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
    rows = list(estimate_costs(jobs, WORTH_AN_ESTIMATE))
    if rows:
        seconds = sum(row.encode_s for row in rows) / machines
        print(
            f"encoding {sum(row.to_encode for row in rows):,} documents will take about "
            f"{timedelta(seconds=round(seconds))} on this machine; Ctrl-C stops it, and what is "
            "done is kept",
            file=sys.stderr,
        )


def measure_speed(encoder: Encoder, corpus: Corpus, budget_s: float) -> float:
    """Tokens a second, wall clock, from encoding a seeded sample for about ``budget_s`` seconds.

    The weights are loaded first, and not counted. Chunks grow until one takes a second, so that a
    fast device is seen at work and not at its start.
    """
    titles, texts = sample_documents(corpus, SAMPLE_DOCUMENTS)
    order = np.random.default_rng(0).permutation(len(texts))  # the probe may see a part only
    titles, texts = [titles[i] for i in order], [texts[i] for i in order]
    lengths = _lengths(encoder, titles, texts)
    encoder.encode_documents(titles[:4], texts[:4])  # loads the weights, warms the processor up
    tokens, spent, chunk, start = 0, 0.0, FIRST_CHUNK, 0
    while spent < budget_s and start < len(texts):
        some = slice(start, start + chunk)
        before = time.perf_counter()
        encoder.encode_documents(titles[some], texts[some])
        took = time.perf_counter() - before
        tokens, spent, start = tokens + int(lengths[some].sum()), spent + took, start + chunk
        if took < 1.0:
            chunk *= 2
    return tokens / spent


def mean_tokens(encoder: Encoder, corpus: Corpus) -> float:
    """Tokens of a document as it is encoded, mean of a seeded sample; words without a tokenizer."""
    return float(_lengths(encoder, *sample_documents(corpus, SAMPLE_DOCUMENTS)).mean())


def _lengths(encoder: Encoder, titles: Sequence[str], texts: Sequence[str]) -> Int64Array:
    count = getattr(encoder, "count_document_tokens", None)
    if count is None:  # an encoder without a tokenizer, such as hashing
        return np.array([len(f"{a} {b}".split()) for a, b in zip(titles, texts, strict=True)])
    lengths = np.array(cast("list[int]", count(titles, texts)), dtype=np.int64)
    return np.minimum(lengths, encoder.recipe.max_document_tokens or lengths)
