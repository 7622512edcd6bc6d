"""Exact search by brute force in NumPy, and corpora that are hard to search exactly."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bench.evaluation.certificate import Vectors
from bench.evaluation.device_search import DeviceSearch
from bench.evaluation.exact import search_tiles
from retrievers.encoders.protocol import PhaseTimer
from retrievers.index.hits import Hits


def search_on_device(
    vectors: Vectors,
    queries: np.ndarray,
    k: int,
    tie_rank: np.ndarray,
    device: str = "cpu",
    **options: Any,
) -> Hits:
    """`exact_search` as on a GPU, on any device of PyTorch."""
    if not len(queries):
        return Hits.empty(0, k)
    with ThreadPoolExecutor(2) as pool:
        search = DeviceSearch(queries, k, tie_rank, device, pool, PhaseTimer())
        return search_tiles(search, vectors, **options)


def error_ratio(documents: np.ndarray, queries: np.ndarray, device: str) -> float:
    """The largest error of a proposal in shares of its bound."""
    with ThreadPoolExecutor(4) as pool:
        ranks = np.arange(len(documents))
        search = DeviceSearch(queries, 5, ranks, device, pool, PhaseTimer())
        tile = search.stage(0, documents)
        proposed = search.propose(tile, slice(None), slice(None)).double()
        proposed /= search._put(np.ldexp(1.0, search.exponents + tile.exponent))[:, None]
        truth = search.exact @ tile.stored.double().T
        return float(((proposed - truth).abs() / search._put(search.error(tile))[:, None]).max())


def brute_force(vectors: np.ndarray, queries: np.ndarray, k: int, tie_rank: np.ndarray) -> Hits:
    """All products in float64, rounded to float32, sorted by score, then tie rank."""
    scores = np.empty((len(queries), len(vectors)), np.float32)
    for query, line in zip(queries.astype(np.float64), scores, strict=True):
        line[:] = (vectors.astype(np.float64) * query).sum(axis=1)
    best = np.lexsort((-np.broadcast_to(tie_rank, scores.shape), -scores), axis=1)[:, :k]
    return Hits(np.take_along_axis(scores, best, 1), best)


def assert_same(hits: Hits, other: Hits) -> None:
    """Rows and scores, bit for bit."""
    np.testing.assert_array_equal(hits.rows, other.rows)
    np.testing.assert_array_equal(hits.scores, other.scores)


def assert_filled_as(hits: Hits, truth: Hits) -> None:
    """The hits of a corpus that may be smaller than the depth, and then unfilled ranks."""
    filled = truth.rows.shape[1]
    assert_same(Hits(hits.scores[:, :filled], hits.rows[:, :filled]), truth)
    assert (hits.rows[:, filled:] == -1).all()
    assert (hits.scores[:, filled:] == -np.inf).all()


@st.composite
def corpora(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors of random floats, many of them twice or more, in a random or the worst order."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    distinct, dim = draw(st.integers(1, 300)), draw(st.integers(1, 40))
    vectors = rng.standard_normal((distinct, dim)).astype(np.float32)
    vectors = vectors[rng.integers(0, distinct, draw(st.integers(1, 600)))]
    queries = rng.standard_normal((draw(st.integers(1, 6)), dim)).astype(np.float32)
    if draw(st.booleans()):  # every tile is better than the ones before it
        vectors = vectors[np.argsort(vectors @ queries[0], kind="stable")]
    return np.ascontiguousarray(vectors), queries, rng.permutation(len(vectors))


def ties(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Small integers and their tie ranks: thousands of equal scores at every cut."""
    rng = np.random.default_rng(2)
    return rng.integers(-2, 3, (rows, 48)).astype(np.float32), rng.permutation(rows)


def planted(rows: int, dim: int, queries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors, queries and tie ranks, with neighbours that are hard to tell apart.

    Near each query lie rows that are the same, rows that differ in the last bits of a component,
    and rows whose score is that of a random row at the cut.
    """
    rng = np.random.default_rng(7)
    vectors = rng.standard_normal((rows, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = vectors[rng.choice(rows, queries, replace=False)].copy()
    for query in asked:
        near = rng.choice(rows, rows // 10, replace=False)
        copies, shaken = np.array_split(near, 2)
        vectors[copies] = query + np.float32(0.05) * vectors[copies[0]]
        vectors[shaken] = query + np.float32(0.05) * vectors[copies[1]]
        vectors[shaken, 0] += rng.integers(-3, 4, len(shaken)) * np.spacing(np.float32(0.05))
    return vectors, asked, rng.permutation(rows)


def nearly_tied(count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors whose float64 scores differ by less than a float32 dot product is off.

    Their scores are tiny sums of large terms that cancel, so that float32 loses the order.
    """
    rng = np.random.default_rng(11)
    vectors = rng.standard_normal((count, dim)).astype(np.float32) * 100
    query = rng.standard_normal((1, dim)).astype(np.float32)
    exact_rest = (vectors[:, :-1].astype(np.float64) * query[0, :-1]).sum(axis=1)
    vectors[:, -1] = ((1e-3 * rng.random(count) - exact_rest) / query[0, -1]).astype(np.float32)
    return vectors, query
