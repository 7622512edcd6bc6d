"""Documents become vectors: the checks before it, and the work with its bar."""

import time
from typing import Any

import msgspec
import numpy as np
from tqdm import tqdm

from bench.store import EncodingPlan, StoredVectors, VectorStore
from datasets_cfg.corpus import Corpus
from datasets_cfg.dataset import Dataset
from foundation.errors import BenchError
from retrievers.encoders.clock import Clock
from retrievers.encoders.protocol import Encoder

PREFLIGHT_DOCUMENTS, PREFLIGHT_QUERIES = 128, 32


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
