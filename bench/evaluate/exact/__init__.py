"""Exact search over tiles of vectors, certified.

The ranking does not depend on tile size, query block, engine or device: float32 only picks
candidates, an error bound says which other documents could still enter, and float64 decides.

`task` is what is asked, with the error bound and the scores that decide; `search` goes through the
tiles. `numpy_engine` searches a tile on the processor and `torch_engine` on a GPU, by a matrix
product and a bar that candidates must reach.
"""

from bench.evaluate.exact.search import BLOCK_BYTES, TILE_ROWS, exact_search
from bench.evaluate.exact.task import ArrayVectors, Vectors, most_candidates

__all__ = [
    "BLOCK_BYTES",
    "TILE_ROWS",
    "ArrayVectors",
    "Vectors",
    "exact_search",
    "most_candidates",
]
