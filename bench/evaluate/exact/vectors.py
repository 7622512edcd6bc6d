"""What is searched: vectors that come in tiles, from memory or from disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from foundation.arrays import Float32Array


class Vectors(Protocol):
    """The vectors of a corpus, wherever they are kept."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        ...

    def tiles(self, rows: int) -> Iterator[tuple[int, Float32Array]]:
        """First row and float32 ``(m, dim)``, C-contiguous, m <= ``rows``, in row order."""
        ...


@dataclass(frozen=True)
class ArrayVectors:
    """Vectors in one float32 array ``(n, dim)``, in memory or memory-mapped. Tiles are views."""

    array: Float32Array

    def __post_init__(self) -> None:
        array = self.array
        if array.ndim != 2 or array.dtype != np.float32 or not array.flags.c_contiguous:
            raise ValueError("vectors are a C-contiguous float32 array of two dimensions")

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        return self.array.shape[0], self.array.shape[1]

    def tiles(self, rows: int) -> Iterator[tuple[int, Float32Array]]:
        """First row and view of each run of at most ``rows`` rows."""
        for start in range(0, len(self.array), rows):
            yield start, self.array[start : start + rows]
