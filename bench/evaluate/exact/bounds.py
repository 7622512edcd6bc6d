"""How far a float32 score may be from the exact one."""

import numpy as np

from foundation.arrays import Float32Array, Float64Array
from foundation.errors import BenchError

FLOAT32_ROUNDOFF = 2.0**-24
FLOAT64_ROUNDOFF = 2.0**-53
TINY = float(np.finfo(np.float32).tiny)


def dot_error(dim: int, query_norms: Float64Array, document_norm: float) -> Float64Array:
    """Largest distance between a float32 and a float64 dot product, float64 ``(q,)``.

    In any order of summation, with or without fused multiply-add, a dot product of n terms is
    off by at most gamma_n |x|.|y| <= gamma_n ||x|| ||y||, gamma_n = n u / (1 - n u), with u the
    unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1).
    Higham leaves out underflow: a product or an operand flushed to zero costs less than the last
    term.
    """
    relative = sum(dim * u / (1 - dim * u) for u in (FLOAT32_ROUNDOFF, FLOAT64_ROUNDOFF))
    underflow = dim * TINY * (1 + query_norms + document_norm)
    return relative * query_norms * document_norm + underflow


def norm_bounds(vectors: Float32Array, what: str, first_row: int = 0) -> Float64Array:
    """Upper bounds of the Euclidean norms, float64 ``(m,)``.

    Raises:
        BenchError: a vector is not finite, or so long that float32 dot products may overflow.
    """
    dim = vectors.shape[1]
    squares = np.einsum("ij,ij->i", vectors, vectors)
    bad = np.flatnonzero(~np.isfinite(squares))
    if len(bad):
        raise BenchError(
            f"the vector of {what} {first_row + int(bad[0])} is not finite, or too long for "
            f"float32 ({len(bad)} such vectors)"
        )
    norms: Float64Array = np.sqrt(
        (squares.astype(np.float64) + dim * TINY) / (1 - dim * FLOAT32_ROUNDOFF)
    )
    return norms
