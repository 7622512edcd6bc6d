"""Exact search over tiles of vectors, certified.

The ranking does not depend on tile size, query block, engine or device: float32 only picks
candidates, an error bound says which other documents could still enter, and float64 decides.

`search` goes through the tiles, on the processor with NumPy; `torch_engine` finds and scores
candidates on a GPU; `certificate` has the vectors, the error bounds, and the scores that decide.
"""

from bench.evaluate.exact.certificate import ArrayVectors, Vectors
from bench.evaluate.exact.search import TILE_ROWS, exact_search

__all__ = ["TILE_ROWS", "ArrayVectors", "Vectors", "exact_search"]
