"""Exact search on the GPU: equal to the CPU's bit for bit, and how fast.

Vectors lie around a thousand centres, so that many are nearly as near as the k-th best. For each
query four rows are planted: a copy of the query, and three equal rows near it. So the first four
hits and the order of the tied ones are known without any search.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.evaluate.exact import TILE_ROWS, ArrayVectors, exact_search
from bench.evaluate.exact.torch_engine import TorchEngine
from bench.speed.timing import peak_bytes, timed
from retrievers.encoders.protocol import Clock
from retrievers.index.faiss_index import FaissIndex, Hits, IndexSpec
from tests.benchmarks.gpu_proof.report import Check, NotHereError, Outcome, Part
from tests.benchmarks.gpu_proof.setup import Setup

SECTION = "search"
CENTRES = 1_000
PLANTED = 4  # of each query
MADE = 1 << 17  # vectors at a time
BRUTE_QUERIES = 3
K = 10  # of the comparison of indexes
NEAR = 0.1  # length of the noise between a query and its near rows
LEAST_FOUND = 0.95  # share of the queries whose planted rows an approximate index finds

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Planted:
    """Vectors to search, and what must be found first.

    Attributes:
        documents: float32 ``(n, dim)``; queries: float32 ``(q, dim)``.
        tie_rank: int64 ``(n,)``.
        first: int64 ``(q, 4)``, the first rows of each query in canonical order.
    """

    documents: Floats
    queries: Floats
    tie_rank: Ints
    first: Ints


def first_parts(setup: Setup) -> Iterator[Part]:
    """Equality, and the rate of the smaller corpus."""
    for depth in setup.sizes.depths:
        yield Part(SECTION, f"equal to the CPU, k = {depth:,}", 30, partial(equal, setup, depth))
    yield _rate_part(setup, setup.sizes.rows[0], 40)


def large_part(setup: Setup) -> Part:
    """The size of MS MARCO."""
    return _rate_part(setup, setup.sizes.rows[1], 100)


def faiss_part(setup: Setup) -> Part:
    """The indexes of FAISS, where it is installed."""
    return Part(SECTION, "FAISS", 90, partial(faiss_indexes, setup))


def _rate_part(setup: Setup, rows: int, needs_s: float) -> Part:
    name = f"{rows:,} x {setup.sizes.dim}, k = {setup.sizes.depth:,}"
    return Part(SECTION, name, needs_s, partial(rate, setup, rows))


def planted(rows: int, queries: int, dim: int, device: str) -> Planted:
    """Unit vectors made on the device, with known neighbours; the same ones for the same sizes."""
    made = torch.Generator(device).manual_seed(0)
    centres = torch.randn(CENTRES, dim, generator=made, device=device)

    def around(count: int) -> torch.Tensor:
        near = torch.randint(CENTRES, (count,), generator=made, device=device)
        noise = torch.randn(count, dim, generator=made, device=device)
        return torch.nn.functional.normalize(centres[near] + noise)

    documents = np.empty((rows, dim), np.float32)
    for start in range(0, rows, MADE):
        documents[start : start + MADE] = around(min(MADE, rows - start)).cpu().numpy()
    asked = around(queries).cpu().numpy()
    rng = np.random.default_rng(0)
    tie_rank = rng.permutation(rows)
    places = rng.permutation(rows)[: PLANTED * queries].reshape(queries, PLANTED)
    noise = rng.standard_normal(asked.shape, dtype=np.float32) * np.float32(NEAR / np.sqrt(dim))
    close = asked + noise
    close /= np.linalg.norm(close, axis=1, keepdims=True)
    documents[places[:, 0]] = asked
    documents[places[:, 1:]] = close[:, None]
    order = np.argsort(-tie_rank[places[:, 1:]], axis=1)  # ties: the higher rank comes first
    first = np.concatenate([places[:, :1], np.take_along_axis(places[:, 1:], order, 1)], axis=1)
    return Planted(documents, asked, tie_rank, first)


def find(setup: Setup, corpus: Planted, depth: int, clock: Clock | None = None) -> Hits:
    """The search that is proved: by the engine of GPUs, in the dry run on the processor."""
    vectors, engine = ArrayVectors(corpus.documents), TorchEngine(setup.device)
    return exact_search(vectors, corpus.queries, depth, corpus.tie_rank, engine=engine, clock=clock)


def find_on_cpu(corpus: Planted, depth: int, few: slice, tile_rows: int = TILE_ROWS) -> Hits:
    """The search that it is compared with, of some queries."""
    vectors = ArrayVectors(corpus.documents)
    return exact_search(
        vectors, corpus.queries[few], depth, corpus.tie_rank, tile_rows=tile_rows, device="cpu"
    )


def brute_force(documents: Floats, query: Floats, tie_rank: Ints, k: int) -> Hits:
    """All products of one query in float64, rounded to float32, in canonical order."""
    doubles = query.astype(np.float64)
    scores = np.empty(len(documents), np.float32)
    for start in range(0, len(documents), MADE):
        some = documents[start : start + MADE].astype(np.float64) * doubles
        scores[start : start + MADE] = some.sum(axis=1)
    best = np.lexsort((-tie_rank, -scores))[:k]
    return Hits(scores[best][None], best[None])


def same(hits: Hits, other: Hits, name: str) -> Check:
    """That two searches gave the same rows and the same bits of scores."""
    rows = int((hits.rows != other.rows).sum())
    scores = int((hits.scores.view(np.uint32) != other.scores.view(np.uint32)).sum())
    return Check(name, rows == scores == 0, {"rows": rows, "scores": scores}, "no difference")


def found_first(hits: Hits, first: Ints) -> Check:
    """That the planted rows lead the ranking, tied ones in canonical order."""
    share = float((hits.rows[:, : first.shape[1]] == first).all(axis=1).mean())
    return Check("planted rows come first", share == 1.0, share, "1.0")


def whole_numbers(rows: int, queries: int) -> Planted:
    """Small whole numbers, so that most scores are tied; nothing is planted."""
    rng = np.random.default_rng(1)
    documents = rng.integers(-2, 3, (rows, 48)).astype(np.float32)
    asked = rng.integers(-2, 3, (queries, 48)).astype(np.float32)
    return Planted(documents, asked, rng.permutation(rows), np.empty((queries, 0), np.int64))


def equal(setup: Setup, depth: int) -> Outcome:
    """Searches on the device and on the CPU, and some queries by brute force in float64."""
    sizes = setup.sizes
    corpora = {
        "unit vectors": planted(sizes.equal_rows, sizes.equal_queries, sizes.dim, setup.device),
        "whole numbers": whole_numbers(sizes.equal_rows // 8, sizes.equal_queries),
    }
    checks, seconds = [], {}
    for name, corpus in corpora.items():
        seconds[name], hits = timed(partial(find, setup, corpus, depth))
        other_tiles = len(corpus.documents) // 3 + 1
        on_cpu = find_on_cpu(corpus, depth, slice(None), other_tiles)
        checks.append(same(hits, on_cpu, f"{name}: equal to the CPU"))
        if corpus.first.size:
            checks.append(found_first(hits, corpus.first))
        for row in range(BRUTE_QUERIES if depth == sizes.depths[0] else 0):
            exact = brute_force(corpus.documents, corpus.queries[row], corpus.tie_rank, depth)
            own = Hits(hits.scores[row : row + 1], hits.rows[row : row + 1])
            checks.append(same(own, exact, f"{name}: query {row} equal to float64"))
    headline = ", ".join(f"{name} {spent:.2f} s" for name, spent in seconds.items())
    return Outcome(headline, {"seconds": seconds}, checks)


def rate(setup: Setup, rows: int) -> Outcome:
    """Seconds of a search over vectors in memory; some queries are searched on the CPU too."""
    sizes = setup.sizes
    made_s, corpus = timed(lambda: planted(rows, sizes.queries, sizes.dim, setup.device))
    first = min(rows, MADE)
    find(setup, replace(corpus, documents=corpus.documents[:first], tie_rank=np.arange(first)), K)
    if setup.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    clock = Clock()
    seconds, hits = timed(lambda: find(setup, corpus, sizes.depth, clock))
    figures = {
        "rows": rows,
        "queries": sizes.queries,
        "k": sizes.depth,
        "seconds": seconds,
        "phases_s": clock.seconds,
        "tflops": 2e-12 * rows * sizes.dim * sizes.queries / seconds,
        "read_gb_per_s": corpus.documents.nbytes / seconds / 1e9,
        "made_s": made_s,
        "peak_gpu_bytes": torch.cuda.max_memory_allocated() if setup.on_gpu else 0,
        "peak_host_bytes": peak_bytes(),
    }
    checks = hits_checks(setup, corpus, hits)
    return Outcome(f"{seconds:.2f} s, {figures['tflops']:,.1f} TFLOP/s", figures, checks)


def hits_checks(setup: Setup, corpus: Planted, hits: Hits) -> list[Check]:
    """That some queries have the CPU's hits, and all of them their planted rows."""
    few = slice(0, setup.sizes.sampled)
    on_cpu = find_on_cpu(corpus, setup.sizes.depth, few)
    sampled = Hits(hits.scores[few], hits.rows[few])
    return [
        same(sampled, on_cpu, "sampled queries equal to the CPU"),
        found_first(hits, corpus.first),
    ]


def faiss_indexes(setup: Setup) -> Outcome:
    """FAISS flat (float32 and, on a GPU, float16), inverted lists, and product quantisation."""
    if find_spec("faiss") is None:
        raise NotHereError("not installed: faiss")
    import faiss

    if setup.on_gpu and not (hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus()):
        raise NotHereError(f"not installed: this faiss {faiss.__version__} sees no GPU")
    sizes = setup.sizes
    corpus = planted(sizes.rows[0], sizes.queries, sizes.dim, setup.device)
    found: dict[str, dict[str, float]] = {}
    for name, search in _flat_indexes(faiss, setup, corpus).items():
        seconds, (_, rows) = timed(search)
        found[name] = {"seconds": seconds, "planted_found": share_found(rows, corpus.first)}
    for pattern in ("IVF{lists},Flat?nprobe={probes}", "IVF{lists},PQ{codes}?nprobe={probes}"):
        codes = max(n for n in range(1, sizes.dim // 8 + 1) if sizes.dim % n == 0)
        probes = max(4, sizes.lists // 16)
        text = pattern.format(lists=sizes.lists, probes=probes, codes=codes)
        found[text] = _approximate(IndexSpec.parse(text), setup, corpus)
    checks = [
        Check(
            f"{name}: a planted row among the first {K}",
            figures["planted_found"] >= LEAST_FOUND,
            figures["planted_found"],
            f">= {LEAST_FOUND}",
        )
        for name, figures in found.items()
    ]
    headline = ", ".join(f"{name} {figures['seconds']:.2f} s" for name, figures in found.items())
    return Outcome(headline, {"faiss": faiss.__version__, "k": K, **found}, checks)


def share_found(rows: Ints, first: Ints) -> float:
    """Share of the queries with at least one of their planted rows among the first hits."""
    found = (rows[:, :K, None] == first[:, None]).any(axis=(1, 2))
    return float(found.mean())


def _approximate(spec: IndexSpec, setup: Setup, corpus: Planted) -> dict[str, float]:
    """Seconds to train, to fill and to search an index of the product."""
    index = FaissIndex(spec, setup.sizes.dim, setup.device)
    rows = index.training_rows(len(corpus.documents))
    train_s, _ = timed(lambda: index.train(corpus.documents[rows]))

    def add() -> None:
        for start in range(0, len(corpus.documents), MADE):
            index.add(corpus.documents[start : start + MADE])

    add_s, _ = timed(add)
    index.search(corpus.queries[:10], K)
    seconds, hits = timed(lambda: index.search(corpus.queries, K))
    share = share_found(hits.rows, corpus.first)
    return {"train_s": train_s, "add_s": add_s, "seconds": seconds, "planted_found": share}


def _flat_indexes(faiss: Any, setup: Setup, corpus: Planted) -> dict[str, Callable[[], Any]]:
    """FAISS's own flat search of all queries."""
    if not setup.on_gpu:
        index = faiss.IndexFlatIP(setup.sizes.dim)
        index.add(corpus.documents)
        return {"flat float32": partial(index.search, corpus.queries, K)}
    found: dict[str, Callable[[], Any]] = {}
    resources = faiss.StandardGpuResources()
    for name, half in (("flat float32", False), ("flat float16", True)):
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16 = half
        index = faiss.GpuIndexFlatIP(resources, setup.sizes.dim, config)
        index.add(corpus.documents)
        index.search(corpus.queries[:10], K)
        found[name] = partial(index.search, corpus.queries, K)
    return found
