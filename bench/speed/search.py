"""Speed and recall of nearest-neighbour search: latency, indexes, growth."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.evaluate import search
from bench.evaluate.exact import TILE_ROWS, ArrayVectors, exact_search
from bench.evaluate.pipeline import faiss_device
from bench.speed import fit as growth
from bench.speed.machine import timed
from bench.speed.records import Growth, IndexPoint, Latency, Spread
from foundation.arrays import Float32Array, Float64Array
from retrievers.encoders.protocol import Encoder
from retrievers.index.faiss_index import FaissIndex, Hits, IndexSpec

K = 10  # neighbours in the comparison of indexes
LATENCY_K = 100
GROWTH_K = (1, 10, 100, 1000)
WARM_UP_QUERIES = 10
HNSW_SEARCHES = (16, 64, 256)
IVF_PROBES = (1, 8, 32)
PQ_PROBES = (8, 32)
PQ_CENTROIDS = 256  # of each byte of a code: fewer vectors cannot train them


def stand_ins(real: Float32Array, rows: int, seed: int = 0) -> Float32Array:
    """More vectors like some real ones: mixtures of two with noise, float32 ``(rows, dim)``.

    Each is as long as its parents are on average, so that unit vectors stay unit vectors.
    """
    rng = np.random.default_rng(seed)
    first, second = real[rng.integers(0, len(real), (2, rows))]
    share = rng.random((rows, 1), dtype=np.float32)
    mixed = share * first + (1 - share) * second
    lengths = [np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (first, second, mixed)]
    noise = rng.standard_normal(mixed.shape, dtype=np.float32) / np.sqrt(mixed.shape[1])
    mixed += 0.5 * lengths[2] * noise
    wanted = share * lengths[0] + (1 - share) * lengths[1]
    mixed *= wanted / np.linalg.norm(mixed, axis=1, keepdims=True)
    return np.ascontiguousarray(mixed, dtype=np.float32)


def latencies(
    encoder: Encoder, queries: Sequence[str], documents: Float32Array, device: str
) -> tuple[Latency, ...]:
    """One query at a time: encoded, searched exactly at depth 100, and both together."""
    vectors, ranks = ArrayVectors(documents), np.arange(len(documents))
    k = min(LATENCY_K, len(documents))

    def find(vector: Float32Array) -> Hits:
        return exact_search(vectors, vector, k, ranks, device=device)

    encoding, finding = [], []
    for text in [*queries[:WARM_UP_QUERIES], *queries]:
        seconds, vector = timed(lambda text=text: encoder.encode_queries([text]))  # type: ignore[misc]
        encoding.append(seconds)
        finding.append(timed(lambda vector=vector: find(vector))[0])  # type: ignore[misc]
    skipped = len(queries[:WARM_UP_QUERIES])
    by_kind = np.array([encoding[skipped:], finding[skipped:]]) * 1000
    kinds = zip(("encode", "search", "both"), [*by_kind, by_kind.sum(axis=0)], strict=True)
    return tuple(_latency(what, len(documents), k, samples) for what, samples in kinds)


def _latency(what: str, rows: int, k: int, samples_ms: Float64Array) -> Latency:
    p50, p95 = np.percentile(samples_ms, [50, 95])
    return Latency(what, rows, k, float(p50), float(p95), tuple(samples_ms.tolist()))


def specs_for(rows: int, dim: int) -> tuple[IndexSpec, ...]:
    """Indexes worth comparing over ``rows`` vectors: exact, FAISS flat, HNSW, IVF, IVFPQ.

    About four lists for every root of the rows (FAISS's own advice), and a byte for eight
    dimensions, or the next number of bytes that divides them.
    """
    lists = 1 << max(1, min(round(np.log2(4 * np.sqrt(rows))), int(np.log2(max(2, rows // 39)))))
    codes = max(size for size in range(1, max(1, dim // 8) + 1) if dim % size == 0)
    texts = ["flat", "Flat"]
    texts += [f"HNSW32?efSearch={size}" for size in HNSW_SEARCHES]
    texts += [f"IVF{lists},Flat?nprobe={probes}" for probes in IVF_PROBES if probes <= lists]
    if rows >= PQ_CENTROIDS:
        texts += [f"IVF{lists},PQ{codes}?nprobe={n}" for n in PQ_PROBES if n <= lists]
    return tuple(map(IndexSpec.parse, texts))


def compare_indexes(
    documents: Float32Array, queries: Float32Array, repeats: int, device: str, origin: str
) -> tuple[IndexPoint, ...]:
    """Queries per second against recall at 10, all queries in one call.

    Args:
        documents: float32 ``(n, dim)``; queries: float32 ``(q, dim)``.
        origin: where the vectors come from, as it is stated.
    """
    rows, dim = documents.shape
    ranks = np.arange(rows)
    k = min(K, rows)

    def exact() -> Hits:
        return exact_search(ArrayVectors(documents), queries, k, ranks, device=device)

    truth = exact()
    points = []
    for spec in specs_for(rows, dim):
        build_s, size, find = 0.0, documents.nbytes, exact
        if spec.needs_faiss:
            build_s, index = timed(lambda spec=spec: _built(spec, documents, device))  # type: ignore[misc]
            size, find = _saved_bytes(index), _finder(index, queries, k)
        hits = search.canonical(find(), ranks, k)
        rates = [len(queries) / timed(find)[0] for _ in range(repeats)]
        points.append(
            IndexPoint(
                index=str(spec),
                rows=rows,
                dim=dim,
                k=k,
                queries=len(queries),
                recall=float(search.recall(hits, truth, k).mean()),
                queries_per_s=Spread.of(rates),
                build_s=build_s,
                index_bytes=size,
                vectors=origin,
            )
        )
    return tuple(points)


def _finder(index: FaissIndex, queries: Float32Array, k: int) -> Callable[[], Hits]:
    return lambda: index.search(queries, k)


def _built(spec: IndexSpec, documents: Float32Array, device: str) -> FaissIndex:
    index = FaissIndex(spec, documents.shape[1], faiss_device(device))
    if index.needs_training:
        index.train(documents[index.training_rows(len(documents))])
    for start in range(0, len(documents), TILE_ROWS):
        index.add(documents[start : start + TILE_ROWS])
    return index


def _saved_bytes(index: FaissIndex) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(path)
        return path.stat().st_size


def search_growth(
    documents: Float32Array, queries: Float32Array, repeats: int, device: str
) -> tuple[Growth, ...]:
    """Seconds of exact search against rows of the corpus, and against depth."""
    rows = len(documents)
    asked = f"{len(queries):,} queries x {documents.shape[1]} dimensions"

    def find(count: int, k: int) -> Hits:
        vectors = ArrayVectors(documents[:count])
        return exact_search(vectors, queries, k, np.arange(count), device=device)

    sizes = sorted({max(1, rows >> shift) for shift in range(5)})
    k = min(100, sizes[0])
    depths = [depth for depth in GROWTH_K if depth <= rows]
    by_rows = growth.measure(lambda count: find(count, k), sizes, repeats)
    by_depth = growth.measure(lambda depth: find(rows, depth), depths, repeats)
    fits = [growth.fit("documents", "search, s", f"{asked}, k = {k}", sizes, by_rows)]
    if len(depths) > 1:
        at = f"{asked}, {rows:,} documents"
        fits.append(growth.fit("k", "search, s", at, depths, by_depth))
    return tuple(fits)
