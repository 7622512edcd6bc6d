"""Documents become vectors: the checks before it, what it will cost, and the work with its bar."""

import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np
from tqdm import tqdm

from bench.store import EncodingPlan, StoredVectors, VectorStore
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.arrays import Int64Array
from foundation.errors import BenchError
from retrievers.encoders.protocol import Clock, Encoder

PREFLIGHT_DOCUMENTS, PREFLIGHT_QUERIES = 128, 32
SAMPLE_DOCUMENTS = 2_000
FIRST_CHUNK = 64


def check_encoder(dataset: Dataset, encoder: Encoder, store: VectorStore) -> dict[str, Any]:
    """Preflight on a sample of the collection, once for an encoder and collection.

    Raises:
        BenchError: vectors that no score could be trusted with.
    """
    from retrievers.models.preflight import preflight

    def check() -> dict[str, Any]:
        titles, texts = sample_documents(dataset.corpus, PREFLIGHT_DOCUMENTS)
        queries = dataset.queries.texts[:PREFLIGHT_QUERIES]
        record: dict[str, Any] = msgspec.to_builtins(preflight(encoder, titles, texts, queries))
        return record

    report = store.remember(encoder, f"preflight {dataset.corpus.sha256}", check)
    if report["stop"]:
        raise BenchError(
            f"{encoder.recipe.model} on {dataset.name}: {'; '.join(report['stop'])}",
            "the checkpoint is damaged, or its card does not fit: see `python -m bench show`",
        )
    return report


def sample_documents(corpus: Corpus, count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Titles and texts of up to ``count`` documents, drawn with the seed."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(corpus), min(count, len(corpus)), replace=False))
    return corpus.titles.take(rows).to_pylist(), corpus.texts.take(rows).to_pylist()


def encode_documents(
    dataset: Dataset,
    encoder: Encoder,
    store: VectorStore,
    plan: EncodingPlan,
    clock: Clock,
) -> StoredVectors:
    """Vectors of the documents; what is missing is encoded, with a bar.

    Raises:
        BenchError: as `VectorStore.documents`.
    """
    if not plan.missing_rows:
        return store.documents(encoder, dataset.corpus, plan)
    with tqdm(
        desc=f"{dataset.name}: {encoder.recipe.model} encodes",
        total=plan.missing_rows,
        unit=" texts",
    ) as bar:
        start, before = time.perf_counter(), clock.counts.get("tokens", 0)

        def advance(documents: int) -> None:
            done = clock.counts.get("tokens", 0) - before
            if done:
                speed = done / (time.perf_counter() - start)
                bar.set_postfix_str(f"{speed:,.0f} tokens/s", refresh=False)
            bar.update(min(documents, plan.missing_rows - bar.n))

        return store.documents(encoder, dataset.corpus, plan, advance)


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
    return np.minimum(lengths, encoder.recipe.max_document_tokens)
