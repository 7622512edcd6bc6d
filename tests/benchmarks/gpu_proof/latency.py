"""Time of one query, from its text to its vector on the host, with and without CUDA graphs."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from retrievers.encoders.transformer import TransformerEncoder
from tests.benchmarks.gpu_proof.encoding import DTYPE, SECTION
from tests.benchmarks.gpu_proof.report import Check, Outcome, Part
from tests.benchmarks.gpu_proof.setup import TITLES, Setup

LONGEST = 30  # tokens of a query, special ones included; most of MS MARCO's have fewer than ten
PERCENTILES = (50, 95)

Floats = npt.NDArray[np.float32]


def parts(setup: Setup, kind: str) -> Iterator[Part]:
    """One network."""
    yield Part(SECTION, f"{TITLES[kind]}, single queries", 15, partial(latency, setup, kind))


def latency(setup: Setup, kind: str) -> Outcome:
    """Milliseconds of single queries, and that graphs change no bit of a vector."""
    draw = np.random.default_rng(8)
    lengths = draw.lognormal(np.log(7), 0.4, setup.sizes.singles).round().astype(np.int64)
    queries = setup.language.texts(lengths.clip(1, LONGEST - 2), seed=8)
    encoder: Any = setup.encoder(kind, DTYPE)
    replayed, from_graphs = timed_queries(encoder, queries)
    graphs = encoder._towers.query._compiled.graphs
    recorded = len(graphs)
    with patch.object(graphs, "record", None):
        launched, without = timed_queries(encoder, queries)
    milliseconds = {
        name: {f"p{share}": float(np.percentile(spent, share)) for share in PERCENTILES}
        for name, spent in (("graphs", replayed), ("without", launched))
    }
    different = int((from_graphs.view(np.uint32) != without.view(np.uint32)).any(axis=1).sum())
    checks = [
        Check("graphs were recorded", recorded > 0, recorded, "> 0"),
        Check("vectors that differ from those without graphs", different == 0, different, "0"),
    ]
    headline = ", ".join(
        f"{name} p50 {of['p50']:.2f} ms, p95 {of['p95']:.2f} ms"
        for name, of in milliseconds.items()
    )
    figures = {"queries": len(queries), "graphs": recorded, "milliseconds": milliseconds}
    return Outcome(headline, figures, checks)


def timed_queries(
    encoder: TransformerEncoder, queries: Sequence[str]
) -> tuple[list[float], Floats]:
    """Milliseconds of each query by itself, and the vectors of all; the first round is warm-up."""
    for query in queries:
        encoder.encode_queries([query])
    spent, vectors = [], []
    for query in queries:
        start = time.perf_counter()
        vectors.append(encoder.encode_queries([query]))
        spent.append(1e3 * (time.perf_counter() - start))
    return spent, np.concatenate(vectors)
