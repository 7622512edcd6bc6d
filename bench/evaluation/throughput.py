"""Speed of encoding in tokens per second, and the tokens of documents, on seeded samples."""

import time
from collections.abc import Sequence
from typing import cast

import numpy as np

from bench.evaluation.encoding import sample_documents
from datasets_cfg.corpus import Corpus
from foundation.arrays import Int64Array
from retrievers.encoders.protocol import Encoder

SAMPLE_DOCUMENTS = 2_000  # whose tokens are counted
FIRST_CHUNK = 64


def measure_speed(encoder: Encoder, corpus: Corpus, budget_s: float) -> float:
    """Measure the encoding speed in tokens per second of wall-clock time, on a seeded sample.

    The weights are loaded before the measurement, which ends after the batch in which ``budget_s``
    seconds have passed, or after the sample. Batches grow until one takes a second, so that a fast
    device reaches its full speed.
    """
    order = np.random.default_rng(0).permutation(len(corpus))  # the probe may use a part only
    titles, texts = corpus.documents_at(order[:SAMPLE_DOCUMENTS])
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
