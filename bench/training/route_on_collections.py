"""Route adapters by training queries of collections: names in, a model that ``run`` takes out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.training.leaks import seen
from bench.training.training_sets import Split
from datasets_cfg.dataset import Dataset
from foundation.arrays import Float32Array
from foundation.errors import BenchError
from retrievers.adapters.routing import By, fit_router, route_adapters
from retrievers.encoders.opening import open_encoder
from retrievers.encoders.protocol import Encoder
from retrievers.models.model import Model

QUERIES = 1_000  # of each collection; its mean and its classes need no more


def route_on(
    base: Model, folders: Sequence[Path], out: Path, training: Sequence[Dataset], by: By | None
) -> None:
    """Write adapters that queries, or collections, choose among.

    Args:
        training: for each adapter the collection of its domain, opened with the split whose
            queries are its texts: up to 1,000, drawn with seed 0.
        by: how a query chooses; None where its collection does.

    Raises:
        BenchError: not one collection for each adapter, one without such queries, or see
            `retrievers.adapters.routing.route_adapters`.
    """
    if len(training) != len(folders):
        raise BenchError(
            f"{len(training)} collections for {len(folders)} adapters",
            "name one for each, in their order: --on A B",
        )
    domains = [seen([dataset.name]) for dataset in training]
    router = None
    if by:
        encoder = open_encoder(base)
        router = by, fit_router(by, [_vectors(encoder, dataset) for dataset in training])
    route_adapters(base, folders, out, domains, router)


def _vectors(encoder: Encoder, dataset: Dataset) -> Float32Array:
    texts = Split.of(dataset).queries.texts
    drawn = np.sort(np.random.default_rng(0).permutation(len(texts))[:QUERIES])
    return encoder.encode_queries([texts[row] for row in drawn])
