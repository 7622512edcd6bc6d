"""Encoding of a collection into the vector store, after a check of the encoder on a sample."""

from typing import Any

import msgspec
import numpy as np

from bench.evaluation.index_search import progress_bar
from bench.store.shards import StoredVectors
from bench.store.store import VectorStore
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.encoders.protocol import Encoder

PREFLIGHT_DOCUMENTS, PREFLIGHT_QUERIES = 128, 32


def run_preflight(dataset: Dataset, encoder: Encoder, store: VectorStore) -> dict[str, Any]:
    """Check an encoder on a sample of a collection, once for each, and raise if it is unusable."""
    from retrievers.encoders.preflight import preflight

    def check() -> Any:
        titles, texts = sample_documents(dataset.corpus, PREFLIGHT_DOCUMENTS)
        queries = dataset.queries.texts[:PREFLIGHT_QUERIES]
        return msgspec.to_builtins(preflight(encoder, titles, texts, queries))

    allowed = " with unknown tokens" if getattr(encoder, "allow_unknown_tokens", False) else ""
    tokens = store.tokens_sha256(encoder, "document")
    about = f"preflight {dataset.corpus.sha256} {tokens}".rstrip() + allowed
    report = store.remember(encoder.recipe, about, check)
    if report["stop"]:
        problem = f"{encoder.recipe.model} on {dataset.name}: {'; '.join(report['stop'])}"
        raise BenchError(problem, "check its card with `python -m bench show`, or its server")
    return report


def sample_documents(corpus: Corpus, count: int) -> tuple[list[str], list[str]]:
    """Return titles and texts of up to ``count`` random documents, always the same ones."""
    rng, most = np.random.default_rng(0), min(count, len(corpus))
    return corpus.documents_at(np.sort(rng.choice(len(corpus), most, replace=False)))


def encode_documents(dataset: Dataset, encoder: Encoder, store: VectorStore) -> StoredVectors:
    """Encode the missing documents of a collection and return the vectors of all."""
    plan = store.plan(encoder, dataset.corpus)
    if not plan.missing_rows:
        return store.documents(encoder, dataset.corpus, plan)
    title = f"{dataset.name}: {encoder.recipe.model} encodes"
    with progress_bar(title, plan.missing_rows) as bar:
        return store.documents(encoder, dataset.corpus, plan, bar.update)
