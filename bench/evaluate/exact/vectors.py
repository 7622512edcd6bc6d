"""The vectors that are searched: they come in tiles, from memory or from disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from foundation.arrays import Float16Array, Float32Array

TileArray = Float32Array | Float16Array


def as_float32(tile: TileArray) -> Float32Array:
    """The same numbers as float32: a copy where they are float16."""
    return np.ascontiguousarray(tile, np.float32)


class Vectors(Protocol):
    """The vectors of a corpus, wherever they are kept."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        ...

    def tiles(self, rows: int) -> Iterator[tuple[int, TileArray]]:
        """First row and ``(m, dim)``, C-contiguous, m <= ``rows``, in row order.

        A tile is float32, or float16 that counts as the same numbers in float32.
        """
        ...


@runtime_checkable
class HasStored(Protocol):
    """Vectors that can also be had without a conversion."""

    def stored_tiles(self, rows: int) -> Iterator[tuple[int, TileArray]]:
        """The tiles of ``Vectors.tiles``, of the type in which they are kept."""
        ...


@dataclass(frozen=True)
class ArrayVectors:
    """Vectors in one array ``(n, dim)``, in memory or memory-mapped. Tiles are views.

    The array is float32 or float16.
    """

    array: TileArray

    def __post_init__(self) -> None:
        array = self.array
        known = array.dtype in (np.float32, np.float16)
        if array.ndim != 2 or not known or not array.flags.c_contiguous:
            raise ValueError(
                "vectors are a C-contiguous float32 or float16 array of two dimensions"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Number of documents and length of a vector."""
        return self.array.shape[0], self.array.shape[1]

    def tiles(self, rows: int) -> Iterator[tuple[int, TileArray]]:
        """First row and view of each run of at most ``rows`` rows."""
        for start in range(0, len(self.array), rows):
            yield start, self.array[start : start + rows]
