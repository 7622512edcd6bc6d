"""Estimates of an evaluation before it starts: texts to encode, time, memory and disk space.

Token counts come from a sample and the real tokenizer, the encoding speed from a probe of the real
encoder on this machine.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import cast

import msgspec
import numpy as np

from bench.evaluation.collection_search import sample_documents
from bench.evaluation.pipeline import Job
from datasets_cfg.corpus import Corpus
from foundation.arrays import Int64Array
from retrievers.encoders.protocol import Encoder

PROBE_S = 5.0
SAMPLE_DOCUMENTS = 2_000
FIRST_CHUNK = 64
WORTH_AN_ESTIMATE = 20_000  # documents that take long to encode
ITEM_BYTES = {"float32": 4, "float16": 2}


class EncodingCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one model on one collection, on this machine.

    Attributes:
        model: name of the model.
        collection: name of the collection.
        documents: number of documents in the collection.
        to_encode: distinct texts without stored vectors. Texts that several evaluations share count
            for the first.
        tokens: tokens to encode, after truncation, with special tokens.
        encode_s: wall-clock time of the encoding, in seconds.
        memory_bytes: peak memory of this process.
        disk_bytes: size of the new vectors.
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
    """Estimate the cost of each of the ``jobs`` that encodes at least ``least`` documents."""
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
    """Print how long encoding will take on ``machines`` like this one, if it is long."""
    rows = list(estimate_costs(jobs, WORTH_AN_ESTIMATE))
    if rows:
        seconds = sum(row.encode_s for row in rows) / machines
        print(
            f"encoding {sum(row.to_encode for row in rows):,} documents will take about "
            f"{timedelta(seconds=round(seconds))} on this machine; it can be stopped and resumed",
            file=sys.stderr,
        )


def measure_speed(encoder: Encoder, corpus: Corpus, budget_s: float) -> float:
    """Measure the encoding speed in tokens per second of wall-clock time, on a seeded sample.

    The weights are loaded before the measurement, which takes ``budget_s`` seconds. Batches grow
    until one takes a second, so that a fast device reaches its full speed.
    """
    titles, texts = sample_documents(corpus, SAMPLE_DOCUMENTS)
    order = np.random.default_rng(0).permutation(len(texts))  # the probe may use a part only
    titles, texts = [titles[i] for i in order], [texts[i] for i in order]
    lengths = truncated_lengths(encoder, titles, texts)
    encoder.encode_documents(titles[:4], texts[:4])  # loads the weights and warms up
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
    """Return the mean number of tokens of a document, estimated on a seeded sample."""
    return float(truncated_lengths(encoder, *sample_documents(corpus, SAMPLE_DOCUMENTS)).mean())


def truncated_lengths(encoder: Encoder, titles: Sequence[str], texts: Sequence[str]) -> Int64Array:
    """Count the tokens of documents, int64 ``(n,)``, as ``encoder`` truncates them.

    Words are counted if it has no tokenizer.
    """
    count = getattr(encoder, "count_document_tokens", None)
    if count is None:  # an encoder without a tokenizer, such as hashing
        return np.array([len(f"{a} {b}".split()) for a, b in zip(titles, texts, strict=True)])
    lengths = np.array(cast("list[int]", count(titles, texts)), dtype=np.int64)
    return np.minimum(lengths, encoder.recipe.max_document_tokens or lengths)
