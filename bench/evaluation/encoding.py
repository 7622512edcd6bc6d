"""Encoding of a collection into the vector store, and checks and the speed of its encoder."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from bench.evaluation.index_search import progress_bar
from bench.store.shards import StoredVectors
from bench.store.store import VectorStore, texts_for
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array, Int64Array
from foundation.errors import BenchError
from retrievers.encoders.endpoint import TextError
from retrievers.encoders.protocol import Encoder, join_documents
from retrievers.encoders.views import sample_rows
from retrievers.models.card import Recipe

PREFLIGHT_DOCUMENTS, PREFLIGHT_QUERIES = 128, 32
SAMPLE_DOCUMENTS = 2_000  # whose tokens are counted
FIRST_CHUNK = 64


def run_preflight(dataset: Dataset, encoder: Encoder, store: VectorStore) -> dict[str, Any]:
    """Check an encoder on a sample of a collection, once for each, and raise if it is unusable."""
    from retrievers.encoders.preflight import preflight

    def check() -> Any:
        corpus = texts_for(encoder, dataset.corpus)
        titles, texts = sample_documents(corpus, PREFLIGHT_DOCUMENTS)
        queries = query_texts(dataset, encoder)[:PREFLIGHT_QUERIES]
        with name_text(dataset, encoder):
            return msgspec.to_builtins(preflight(encoder, titles, texts, queries))

    allowed = " with unknown tokens" if encoder.allow_unknown_tokens else ""
    tokens = store.tokens_sha256(encoder, "document")
    about = f"preflight {dataset.corpus.sha256} {tokens}".rstrip() + allowed
    report = store.remember(encoder.recipe, about, check)
    if report["stop"]:
        problem = f"{encoder.recipe.model} on {dataset.name}: {'; '.join(report['stop'])}"
        raise BenchError(problem, "Check its card with `python -m bench show`, or its server.")
    return report


@contextmanager
def name_text(dataset: Dataset, encoder: Encoder) -> Iterator[None]:
    """Add the id of the document or query to an error about one text."""
    try:
        yield
    except TextError as error:
        problem = f"{dataset.name}: {_find_text(dataset, encoder.recipe, error.text)}: {error}"
        raise BenchError(problem, error.hint) from error


def _find_text(dataset: Dataset, recipe: Recipe, wanted: str) -> str:
    """Return which document or query is encoded as the text ``wanted``."""
    for first, titles, texts in dataset.corpus.iter_batches(10_000):
        joined = join_documents(recipe, titles, texts)
        if wanted in joined:
            return f"document {dataset.corpus.ids[first + joined.index(wanted)].as_py()}"
    queries = [recipe.prompts.query + text for text in dataset.queries.texts]
    return f"query {dataset.queries.ids[queries.index(wanted)]}" if wanted in queries else "a text"


def sample_documents(corpus: Corpus, count: int) -> tuple[list[str], list[str]]:
    """Return titles and texts of up to ``count`` random documents, always the same ones."""
    return corpus.documents_at(sample_rows(len(corpus), count))


def encode_documents(dataset: Dataset, encoder: Encoder, store: VectorStore) -> StoredVectors:
    """Encode the missing documents of a collection and return the vectors of all."""
    plan = store.plan(encoder, dataset.corpus)
    if not plan.missing_rows:
        return store.documents(encoder, dataset.corpus, plan)
    title = f"{dataset.name}: {encoder.recipe.model} encodes"
    with progress_bar(title, plan.missing_rows) as bar, name_text(dataset, encoder):
        return store.documents(encoder, dataset.corpus, plan, bar.update)


def encode_queries(dataset: Dataset, encoder: Encoder, store: VectorStore) -> Float32Array:
    """Return the vectors of all queries, float32 ``(q, dim)``, and encode missing ones."""
    with name_text(dataset, encoder):
        return store.queries(encoder, query_texts(dataset, encoder))


def query_texts(dataset: Dataset, encoder: Encoder) -> tuple[str, ...]:
    """Return the queries as ``encoder`` reads them."""
    queries = dataset.queries
    return queries.ids if encoder.recipe.traits.reads_ids else queries.texts


def measure_speed(encoder: Encoder, corpus: Corpus, budget_s: float) -> float:
    """Measure the encoding speed in tokens per second of wall-clock time, on a seeded sample.

    The weights are loaded before the measurement, which ends after the batch in which ``budget_s``
    seconds have passed, or after the sample. Batches grow until one takes a second, so that a fast
    device reaches its full speed.
    """
    corpus = texts_for(encoder, corpus)
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
    counts = encoder.count_document_tokens(titles, texts)
    if counts is None:
        return np.array([len(f"{a} {b}".split()) for a, b in zip(titles, texts, strict=True)])
    lengths = np.array(counts, dtype=np.int64)
    return np.minimum(lengths, encoder.recipe.max_document_tokens or lengths)
