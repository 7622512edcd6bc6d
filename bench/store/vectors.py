"""The vectors of a corpus, read from the shards that hold them.

Reads are ``pread`` into preallocated arrays: pages of the file never count as memory of this
process, as they would with a memory map.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from bench.store.shards import Shard
from foundation.arrays import Float16Array, Float32Array, Int64Array
from foundation.errors import BenchError

Stored = Float32Array | Float16Array

GAP_BYTES = 1 << 16  # reading on over a gap costs less than another read
SIGN_EXPONENT_FRACTION = np.uint32(0x8FFFE000).view(np.int32)  # of a half that was moved
CACHED_BYTES = 1 << 18  # read at a time where they are widened, from a second-level cache
WIDENED = 1 << 14  # numbers at a time, so that they stay in a first-level cache


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """Vectors of texts wherever they lie; satisfies ``exact.Vectors``.

    Attributes:
        shards: that hold at least one of them.
        places: int64 ``(n,)``, row of each text in all shards put one after the other; texts
            that are the same share one.
        dim: length of a vector.
        encoded: distinct texts that this process encoded; the others were stored already, or
            another process encoded them meanwhile.
    """

    shards: tuple[Shard, ...]
    places: Int64Array
    dim: int
    encoded: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Number of texts and length of a vector."""
        return len(self.places), self.dim

    def tiles(self, rows: int) -> Iterator[tuple[int, Float32Array]]:
        """First row and float32 ``(m, dim)``, m = ``rows`` but for the last."""
        for start in range(0, len(self.places), rows):
            yield start, self._gather(self.places[start : start + rows], "<f4")

    def stored_tiles(self, rows: int) -> Iterator[tuple[int, Stored]]:
        """The same tiles, in float16 where all are stored so: half the bytes, no conversion."""
        halves = {shard.manifest.dtype for shard in self.shards} == {"float16"}
        for start in range(0, len(self.places), rows):
            places = self.places[start : start + rows]
            yield start, self._gather(places, "<f2") if halves else self._gather(places, "<f4")

    def rows(self, wanted: Int64Array) -> Float32Array:
        """Vectors of some rows, in the order asked; float32 ``(len(wanted), dim)``."""
        vectors: Float32Array = self._gather(self.places[wanted], "<f4")
        return vectors

    @cached_property
    def _starts(self) -> Int64Array:
        return np.cumsum([0, *(shard.rows for shard in self.shards)])

    def _gather(self, places: Int64Array, dtype: str) -> Any:
        vectors = np.empty((len(places), self.dim), dtype)
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        cuts = np.searchsorted(ordered, self._starts)
        for number in np.flatnonzero(np.diff(cuts)):
            some = slice(cuts[number], cuts[number + 1])
            local = ordered[some] - self._starts[number]
            _read(self.shards[number], local, order[some], vectors)
        return vectors


def _read(shard: Shard, local: Int64Array, into: Int64Array, vectors: Stored) -> None:
    """Put rows of a shard, rising, into rows of ``vectors``; neighbours are read together."""
    handle = os.open(shard.path, os.O_RDONLY)
    try:
        gaps = np.diff(local) * shard.row_bytes > GAP_BYTES
        for run in np.split(np.arange(len(local)), np.flatnonzero(gaps) + 1):
            rows, targets = local[run], into[run]
            first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
            direct = bool((np.diff(rows) == 1).all() and (np.diff(targets) == 1).all())
            if direct:
                _read_run(handle, shard, first, vectors[targets[0] : targets[0] + count])
            else:
                span = np.empty((count, shard.manifest.dim), vectors.dtype)
                _read_run(handle, shard, first, span)
                vectors[targets] = span[rows - first]
    finally:
        os.close(handle)


def _read_run(handle: int, shard: Shard, first: int, target: Stored) -> None:
    """Fill ``target`` with consecutive rows; float16 becomes float32 where that is asked for."""
    if shard.manifest.dtype == target.dtype.name:
        _read_exactly(handle, shard, first, target)
        return
    step = max(1, CACHED_BYTES // shard.row_bytes)
    halves = np.empty((min(step, len(target)), shard.manifest.dim), "<f2")
    for start in range(0, len(target), step):
        floats = cast(Float32Array, target[start : start + step])
        read = halves[: len(floats)]
        _read_exactly(handle, shard, first + start, read)
        widen(read.reshape(-1), floats.reshape(-1))


def _read_exactly(handle: int, shard: Shard, first: int, array: Stored) -> None:
    wanted = array.data.cast("B")
    offset = first * shard.row_bytes
    while len(wanted):
        size = os.preadv(handle, [wanted], offset)
        if size == 0:
            raise BenchError(
                f"{shard.path} was cut short while it was read", "type the same command again"
            )
        wanted, offset = wanted[size:], offset + size


def widen(halves: Float16Array, floats: Float32Array) -> None:
    """Finite float16 ``(n,)`` to the same numbers as float32; three times as fast as a cast.

    Sign, exponent and fraction of a half, moved to the places that they have in a float32, are the
    number divided by 2^112: the difference of the two exponent biases.
    """
    for start in range(0, len(halves), WIDENED):
        target = floats[start : start + WIDENED]
        bits = target.view(np.int32)
        bits[:] = halves[start : start + WIDENED].view(np.int16)  # the sign in all upper bits
        bits <<= np.int32(13)
        bits &= SIGN_EXPONENT_FRACTION
        target *= np.float32(2.0**112)
