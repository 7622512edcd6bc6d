"""Bounds of the error of a proposed score, for each arithmetic that proposes."""

from dataclasses import dataclass

import numpy as np

from foundation.arrays import Float32Array, Float64Array
from foundation.errors import BenchError

FLOAT32_ROUNDOFF = 2.0**-24
FLOAT64_ROUNDOFF = 2.0**-53
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic by which an engine multiplies vectors; sums are always kept in float32.

    Attributes:
        name: ``float32``, ``tf32``, ``bfloat16`` or ``float16``.
        operand_roundoff: unit round-off of what is multiplied; 0 where it is the float32 given.
        result_roundoff: of the score that comes out; 0 where it is the float32 sum.
        smallest: most by which an operand is changed because it is small.
        largest: a vector or score that is longer does not fit.
    """

    name: str
    operand_roundoff: float = 0.0
    result_roundoff: float = 0.0
    smallest: float = TINY
    largest: float = float(np.finfo(np.float32).max)

    def fits(self, query_norm: float, document_norm: float) -> bool:
        """True where no operand and no score of vectors up to these norms overflows."""
        longest = max(query_norm, document_norm, query_norm * document_norm)
        return 2 * longest < self.largest


FLOAT32 = Arithmetic("float32")
# Tensor cores read a float32 with ten bits of its fraction; whether the rest is rounded or cut
# off is not specified, so it counts as cut off.
TF32 = Arithmetic("tf32", operand_roundoff=2.0**-10)
BFLOAT16 = Arithmetic("bfloat16", 2.0**-8, 2.0**-8)
FLOAT16 = Arithmetic("float16", 2.0**-11, 2.0**-11, smallest=2.0**-24, largest=65504.0)
ARITHMETICS = {each.name: each for each in (FLOAT32, TF32, BFLOAT16, FLOAT16)}


def dot_error(
    dim: int, query_norms: Float64Array, document_norm: float, arithmetic: Arithmetic = FLOAT32
) -> Float64Array:
    """Largest distance between a proposed and a float64 dot product, float64 ``(q,)``.

    In any order of summation, with or without fused multiply-add, a dot product of n terms is
    off by at most gamma_n |x|.|y| <= gamma_n ||x|| ||y||, gamma_n = n u / (1 - n u), with u the
    unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1).
    Operands rounded with u change a term by at most 2 u + u^2 of it, a rounded result by u of
    the sum. Higham leaves out underflow: a product or an operand flushed to zero costs less than
    the last term.
    """
    operand, result = arithmetic.operand_roundoff, arithmetic.result_roundoff
    relative = _gamma(dim, FLOAT32_ROUNDOFF)
    for roundoff in (operand, operand, result):
        relative += roundoff + relative * roundoff
    relative += _gamma(dim, FLOAT64_ROUNDOFF)
    underflow = dim * arithmetic.smallest * (1 + query_norms + document_norm)
    return relative * query_norms * document_norm + underflow


def double_distance(dim: int, query_norms: Float64Array, document_norm: float) -> Float64Array:
    """Largest distance between two float64 dot products summed in different orders, ``(q,)``.

    With room for the rounding of an addition of this distance.
    """
    return 2 * _gamma(dim + 4, FLOAT64_ROUNDOFF) * query_norms * document_norm


def lowest_score(bar: Float32Array, error: Float64Array) -> Float32Array:
    """The proposed score below which the exact one cannot reach ``bar``, float32 ``(q,)``."""
    goal = np.nextafter(bar, np.float32(-np.inf)).astype(np.float64)
    return np.nextafter((goal - error).astype(np.float32), np.float32(-np.inf))


def reached_score(proposed: Float32Array, error: Float64Array) -> Float32Array:
    """A score that rows with these proposed scores reach at least, float32 ``(q,)``."""
    least = (proposed.astype(np.float64) - error).astype(np.float32)
    return np.nextafter(least, np.float32(-np.inf))


def norm_bounds(vectors: Float32Array, what: str, first_row: int = 0) -> Float64Array:
    """Upper bounds of the Euclidean norms, float64 ``(m,)``.

    Raises:
        BenchError: a vector is not finite, or so long that float32 dot products may overflow.
    """
    squares = np.einsum("ij,ij->i", vectors, vectors)
    return norms_of_squares(squares, vectors.shape[1], what, first_row)


def norms_of_squares(
    squares: Float32Array, dim: int, what: str, first_row: int = 0
) -> Float64Array:
    """Bounds as of `norm_bounds`, from squared norms summed in any order, float32 ``(m,)``."""
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


def _gamma(terms: int, roundoff: float) -> float:
    return terms * roundoff / (1 - terms * roundoff)
