"""Exact search over tiles of vectors, certified.

The ranking does not depend on tile size, query block, engine or device: float32 only picks
candidates, an error bound says which other documents could still enter, and float64 decides.

There are two ways to candidates. Once a query has k documents, the k-th score is a bar: a matrix
product shows which rows of a tile may reach it, and late tiles have few. Where there is no bar
yet, or too many rows reach it, an engine proposes the nearest of the tile.
"""

from bench.evaluate.exact.streaming import BLOCK_BYTES, TILE_ROWS, exact_search
from bench.evaluate.exact.tile_search import most_candidates
from bench.evaluate.exact.vectors import ArrayVectors, Vectors

__all__ = [
    "BLOCK_BYTES",
    "TILE_ROWS",
    "ArrayVectors",
    "Vectors",
    "exact_search",
    "most_candidates",
]
