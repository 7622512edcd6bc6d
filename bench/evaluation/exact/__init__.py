"""Exact search over tiles of vectors, with a certificate.

The ranking does not depend on tile size, query block, engine or device. float32 products only
propose candidates, an error bound determines which other documents could still enter the top k, and
float64 scores decide.

`tile_search` iterates over the tiles and searches them on the CPU with NumPy. `torch_engine`
proposes and scores candidates on a GPU. `certificate` contains tiles, error bounds and the float64
scores.
"""

from bench.evaluation.exact.certificate import ArrayVectors, Vectors
from bench.evaluation.exact.tile_search import TILE_ROWS, exact_search

__all__ = ["TILE_ROWS", "ArrayVectors", "Vectors", "exact_search"]
