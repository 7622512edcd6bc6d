"""Exact search of one tile, and the canonical order in which hits of two tiles are merged."""

import numpy as np
import pytest

from bench.evaluation.exact import ArrayVectors, exact_search
from retrievers.index.hits import Hits, sort_canonically

QUERIES, DEPTH = 1000, 1000
TILE_ROWS, DIM = 20_000, 384


def unit_vectors(rng: np.random.Generator, rows: int) -> np.ndarray:
    vectors = rng.standard_normal((rows, DIM), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def bench_merge_two_tiles_of_1000_x_1000(benchmark, rng):
    scores = rng.random((QUERIES, 2 * DEPTH), dtype=np.float32)
    rows = np.tile(np.arange(2 * DEPTH), (QUERIES, 1))
    hits = benchmark(sort_canonically, Hits(scores, rows), rng.permutation(2 * DEPTH), DEPTH)
    assert hits.rows.shape == (QUERIES, DEPTH)


@pytest.mark.parametrize("depth", [10, 1000])
def bench_exact_search_of_one_tile(benchmark, rng, depth):
    documents, queries = unit_vectors(rng, TILE_ROWS), unit_vectors(rng, 64)
    tie_rank = rng.permutation(TILE_ROWS)
    hits = benchmark(exact_search, ArrayVectors(documents), queries, depth, tie_rank)
    assert (hits.rows >= 0).all()
