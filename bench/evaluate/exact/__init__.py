"""Exact search over tiles of vectors, certified.

The ranking does not depend on tile size, query block, engine or device: float32 only picks
candidates, an error bound says which other documents could still enter, and float64 decides.

`tile_search` and `block_search` search on the processor with NumPy, `torch_engine` on a GPU with
PyTorch. Both go tile by tile, and find candidates by a matrix product and a bar that they must
reach.
"""

from bench.evaluate.exact.block_search import most_candidates
from bench.evaluate.exact.streaming import BLOCK_BYTES, TILE_ROWS, exact_search
from bench.evaluate.exact.vectors import ArrayVectors, Vectors

__all__ = [
    "BLOCK_BYTES",
    "TILE_ROWS",
    "ArrayVectors",
    "Vectors",
    "exact_search",
    "most_candidates",
]
